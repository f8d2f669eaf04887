"""The command line: run, explain, dump, doctor. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuser import __version__
from fuser.errors import FuserError, LoweringError, UsageError

if TYPE_CHECKING:
    from fuser.devices import Device
    from fuser.precision import Precision

PRECISIONS = ("model", "bf16", "int8w")
STAGES = ("graph", "regions", "tile", "llvm", "ptx", "asm")
NOTE = (
    "On Linux another `fuser` (of psmisc) may come first on the PATH;"
    " `python -m fuser` always works."
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 ok, 1 mismatch, 2 usage, 3 invalid model,
    4 unsupported, 5 device, 6 memory or another limit, 70 internal."""
    try:
        with _notes_on_stderr():
            code = main.main(args=arguments, prog_name="fuser", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        what = _one_line(error.format_message()).rstrip(".")
        click.echo(f"error: {what}; see fuser --help", err=True)
        return error.exit_code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except FuserError as error:
        click.echo(f"error: {_one_line(str(error))}", err=True)
        return error.exit_code
    except MemoryError:
        click.echo("error: out of memory", err=True)
        return 6
    except Exception as error:  # a defect: one line, the traceback on request
        if "--debug" in (arguments or sys.argv):
            raise
        what = _one_line(f"{type(error).__name__}: {error}")
        click.echo(f"internal error: {what} (fuser --debug ... shows where)", err=True)
        return 70


@contextmanager
def _notes_on_stderr() -> Iterator[None]:
    """Warnings of the library, such as a cache folder that cannot be written, as lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("note: %(message)s"))
    logger = logging.getLogger("fuser")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _one_line(text: str) -> str:
    """Text of a model may be part of it: no control characters, and not without end."""
    line = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= 3000 else f"{line[:2000]} ... {line[-900:]}"


@click.group(epilog=NOTE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fuser")
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
def main(debug: bool) -> None:
    """Compile ONNX models to few fused kernels, and run them on the CPU or an NVIDIA GPU."""


def _parse_dims(items: Sequence[str]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for item in items:
        name, _, size = item.partition("=")
        if not name or not size.isdigit():
            raise UsageError(f"--dim {item}: expected NAME=N with N a whole number")
        dims[name] = int(size)
    return dims


_device = click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
    help="Where to run; auto takes a GPU if there is one.",
)  # fmt: skip
_dim = click.option(
    "--dim",
    "dim",
    multiple=True,
    metavar="NAME=N",
    help="Fix a symbolic dim; else 1 for a batch, about 128 for others.",
)
_LIMITS = (
    ("seconds", "Give up reading and compiling after this; 0: never. Default 1800."),
    ("bytes", "Most memory a plan may take; default: all there is."),
    ("nodes", "Most nodes of a graph, loops and functions written out. Default 100000."),
    ("kernel_seconds", "Split what takes longer to compile as one kernel; 0: never. Default 10."),
)


def _limits(command: Callable[..., int]) -> Callable[..., int]:
    """Options for what a model may ask for; the command runs within them."""

    @functools.wraps(command)
    def run_within(**options: Any) -> int:
        from dataclasses import replace

        from fuser.config import Config, within

        given = {name: options.pop(f"max_{name}") for name, _ in _LIMITS}
        chosen = {name: value for name, value in given.items() if value is not None}
        with within(replace(Config.from_environment().limits, **chosen)):
            return command(**options)

    for name, text in reversed(_LIMITS):
        option = click.option(
            f"--max-{name.replace('_', '-')}", type=click.IntRange(min=0), metavar="N", help=text
        )
        run_within = option(run_within)
    return run_within


_fusion = click.option("--no-fusion", is_flag=True, help="One kernel for every operator.")
_precision = click.option(
    "--precision", type=click.Choice(PRECISIONS), default="model", show_default=True,
    help="What a CPU may round: operands of products to bfloat16, or weights to 8 bits.",
)  # fmt: skip


@main.command("run")
@click.argument("model", type=click.Path(path_type=Path))
@_device
@click.option("-i", "--input", "inputs", multiple=True, metavar="FEED",
              help="NAME=F.npy, F.npz or a folder of input_*.pb; else random.")  # fmt: skip
@_dim
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Seed of the random inputs.")  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to OUT.npz."
)
@click.option("--compare", "against", type=click.Choice(["reference", "unfused"]),
              help="Compare with float64 NumPy, or with the plan without fusion.")  # fmt: skip
@click.option(
    "--expect", type=click.Path(path_type=Path), help="Compare with recorded outputs, F.npz."
)
@click.option("--rtol", type=float, help="Relative tolerance of an element.")
@click.option("--atol", type=float, help="Absolute tolerance of an element.")
@click.option("--iterations", type=click.IntRange(min=0), default=10, show_default=True,
              help="Timed runs.")  # fmt: skip
@click.option("--warmup", type=click.IntRange(min=0), default=2, show_default=True,
              help="Untimed runs before them.")  # fmt: skip
@click.option(
    "--report", "report_file", type=click.Path(path_type=Path), help="Write the report as JSON."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; one a core by default.")
@click.option("--tune", is_flag=True,
              help="Measure schedules of kernels; later compiles use the best.")  # fmt: skip
@_fusion
@_precision
@_limits
def run_command(
    model: Path, device: Device, inputs: tuple[str, ...], dim: tuple[str, ...], seed: int,
    output: Path | None, against: str | None, expect: Path | None, rtol: float | None,
    atol: float | None, iterations: int, warmup: int, report_file: Path | None, as_json: bool,
    threads: int | None, tune: bool, no_fusion: bool, precision: Precision,
) -> int:  # fmt: skip
    """Compile MODEL, run it, and report what fusion saved.

    A folder test_data_set_0 beside the model is used as inputs and compared, unless -i is given.
    """
    if against and expect:
        raise UsageError("--compare and --expect are two references", hint="give one of them")
    from fuser import compiler, feeds
    from fuser.progress import Progress

    with Progress(enabled=not as_json) as progress:
        progress.step("reading the model")
        recorded = None if inputs else feeds.find_test_data(model)
        files = [str(recorded)] if recorded else inputs
        given, dims = {}, _parse_dims(dim)
        if files:
            opened = compiler.open_model(model)
            given = feeds.read_feeds(files, list(opened.inputs))
            dims = feeds.dims_of_feeds(opened.inputs, given) | dims
            opened.check(given, dims)
        plan = compiler.compile(
            model, device=device, dims=dims, threads=threads, fusion=not no_fusion,
            precision=precision, progress=progress.step, tune=tune,
        )  # fmt: skip
        arrays = given or plan.random_feeds(seed)
        progress.step("running")
        outputs = plan.run(arrays)
        report = plan.report()
        if iterations:
            report.latency_ms = plan.profile(arrays, iterations=iterations, warmup=warmup)
        expected, label = None, ""
        if expect:
            expected, label = feeds.read_npz(expect), str(expect)
        elif against == "reference":
            progress.step("evaluating the float64 reference")
            opened = compiler.open_model(model)
            expected, label = compiler.reference(opened, arrays, dims), "float64 reference"
        elif against == "unfused":
            progress.step("compiling without fusion")
            unfused = compiler.compile(
                model, device=device, dims=dims, threads=threads, fusion=False,
                precision=precision,
            )  # fmt: skip
            expected, label = unfused.run(arrays), "unfused plan"
        elif recorded:
            expected, label = feeds.read_test_data(recorded, "output", list(outputs)), recorded.name
    if expected is not None:
        from fuser.compare import compare, tolerance_of

        dtypes = {array.dtype.name for array in (*arrays.values(), *outputs.values())}
        if report.precision.startswith(("bf16", "int8w")):
            dtypes.add("bfloat16")
        tolerance = tolerance_of(dtypes, plan.target.name)
        report.compare = compare(
            outputs, expected, tolerance=tolerance, rtol=rtol, atol=atol, name=label
        )
    if output:
        _save_outputs(output, outputs)
    if report_file:
        _write(report_file, json.dumps(report.to_dict(), indent=2) + "\n")
    if as_json:
        click.echo(json.dumps(report.to_dict()))
    else:
        from fuser.table import print_report

        print_report(report, outputs, random_inputs=not given)
    return 0 if report.compare is None or report.compare.ok else 1


def _save_outputs(path: Path, outputs: dict[str, Any]) -> None:
    import numpy as np

    try:
        np.savez(path, **outputs)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


@main.command("explain")
@click.argument("model", type=click.Path(path_type=Path))
@_device
@_dim
@click.option(
    "--dynamic", is_flag=True, help="Compile for ranges of sizes; print which share kernels."
)
@_fusion
@_precision
@_limits
def explain_command(
    model: Path, device: Device, dim: tuple[str, ...], dynamic: bool, no_fusion: bool,
    precision: Precision,
) -> int:  # fmt: skip
    """Print the regions of MODEL, and every fusion that was refused with its reason."""
    from fuser import compiler
    from fuser.devices import choose_target
    from fuser.partition import explain

    opened = compiler.open_model(model)
    if dynamic:
        return _explain_dynamic(opened, _parse_dims(dim), device=device, fusion=not no_fusion,
                                precision=precision)  # fmt: skip
    partition = compiler.partition_model(
        opened, device=device, dims=_parse_dims(dim), fusion=not no_fusion, precision=precision
    )
    target = choose_target(device)
    tuned: tuple[Any, ...] = ()
    with suppress(LoweringError):  # of a region without a kernel, which the text shows
        programs = compiler.emit_programs(partition, target)
        _, tuned = compiler.with_remembered(partition, programs, target)
    click.echo(explain(partition))
    if tuned:
        click.echo("\n".join(["kernels with measured schedules", *(f"  {one}" for one in tuned)]))
    return 0


def _explain_dynamic(model: Any, dims: dict[str, int], **options: Any) -> int:
    """Print the kernels for the usual sizes, outermost dims of 1 and of more, or for `dims`."""
    from fuser.dynamic import DynamicPlan
    from fuser.progress import Progress
    from fuser.variants import symbols

    with Progress() as progress:
        plan = DynamicPlan(model, progress=progress.step, **options)
        for outer in (2, 1):
            usual = {name: outer for name, is_outer in symbols(model).items() if is_outer}
            plan.prepare({**usual, **dims})
    click.echo(plan.explain())
    return 0


@main.command("dump")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--stage", type=click.Choice(STAGES), default="tile", show_default=True)
@click.option("--region", type=int, help="Only this region.")
@_device
@_dim
@_fusion
@_precision
@_limits
def dump_command(
    model: Path, stage: str, region: int | None, device: Device, dim: tuple[str, ...],
    no_fusion: bool, precision: Precision,
) -> int:  # fmt: skip
    """Print MODEL as it stands after a stage: graph, regions, tile, llvm, ptx or asm."""
    from fuser import compiler, stages

    opened = compiler.open_model(model)
    for text in stages.dump(
        opened, stage=stage, region=region, device=device, dims=_parse_dims(dim),
        fusion=not no_fusion, precision=precision,
    ):  # fmt: skip
        click.echo(text)
    return 0


@main.command("doctor")
def doctor_command() -> int:
    """Check this machine: Python packages, CPU, GPU, kernel cache; compile and run one kernel."""
    from fuser.doctor import examine

    healthy = True
    for check in examine():
        mark = "ok  " if check.ok else ("note" if check.optional else "FAIL")
        click.echo(f"{mark} {check.name}: {check.text}")
        healthy &= check.ok or check.optional
    return 0 if healthy else 5
