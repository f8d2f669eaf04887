"""`fuser run`: compile, run, compare, report."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuser.cli import options
from fuser.errors import UsageError

if TYPE_CHECKING:
    from fuser.frontends.onnx.hosted import Host, HostedPlan
    from fuser.pipeline.devices import Device
    from fuser.pipeline.fusion import Fusing
    from fuser.pipeline.precision import Precision
    from fuser.report.record import Record
    from fuser.report.trace import Stages
    from fuser.runtime.plan import Plan
    from fuser.runtime.sharded import ShardedPlan


@click.command("run")
@click.argument("model", type=click.Path(path_type=Path))
@options.device
@options.devices
@options.inputs
@options.dim
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Seed of the random inputs.")  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to OUT.npz."
)
@click.option("--compare", "against", type=click.Choice(["reference", "unfused", "onnxruntime"]),
              help="Compare with float64 NumPy, the unfused plan, or ONNX Runtime.")  # fmt: skip
@click.option(
    "--expect", type=click.Path(path_type=Path),
    help="Compare with recorded outputs: F.npz or a folder of output_*.pb.",
)  # fmt: skip
@click.option("--rtol", type=float, help="Relative tolerance of an element.")
@click.option("--atol", type=float, help="Absolute tolerance of an element.")
@click.option("--iterations", type=click.IntRange(min=0), default=10, show_default=True,
              help="Timed runs.")  # fmt: skip
@click.option("--warmup", type=click.IntRange(min=0), default=2, show_default=True,
              help="Untimed runs before them.")  # fmt: skip
@options.measure
@click.option("--profile", is_flag=True, help="Time each kernel, too.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE",
              help="Write compile stages and timed kernels as a trace, for Perfetto.")  # fmt: skip
@click.option(
    "--report", "report_file", type=click.Path(path_type=Path), help="Write the report as JSON."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else.")
@click.option("--schema", type=click.IntRange(1, 2), default=2, show_default=True,
              help="Of that JSON: docs/report.md.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; one a core by default.")
@click.option("--weights", type=click.Path(path_type=Path), metavar="FILE",
              help="The model, of a plan whose weights are in it.")  # fmt: skip
@click.option("--tune", is_flag=True,
              help="Measure schedules of kernels; later compiles use the best.")  # fmt: skip
@options.fusion
@options.kernels
@options.host
@options.precision
@options.numerics
@options.limits
@options.verbose_lists
def run_command(
    model: Path, device: Device, devices: int | str | None, inputs: tuple[str, ...],
    dim: tuple[str, ...], seed: int,
    output: Path | None, against: str | None, expect: Path | None, rtol: float | None,
    atol: float | None, iterations: int, warmup: int, measure: bool, profile: bool,
    trace: Path | None, report_file: Path | None, as_json: bool,
    schema: int, threads: int | None, weights: Path | None, tune: bool, fusion: Fusing,
    host: Host, precision: Precision, verbose: int,
) -> int:  # fmt: skip
    """Compile MODEL, run it, and report what fusion saved. MODEL may be a plan file, which is run
    as it is.

    A folder test_data_set_0 beside the model is used as inputs and compared, unless -i is given.
    """
    if against and expect:
        raise UsageError("--compare and --expect are two references", hint="give one of them")
    from fuser.cli import feeds
    from fuser.report.progress import Progress
    from fuser.report.trace import Stages
    from fuser.runtime.plan import Plan
    from fuser.runtime.sharded import ShardedPlan, is_sharded

    saved = is_sharded(model) or _is_plan(model)
    fixed_only = saved and not _is_plan(model, b"FUSERD")
    if saved and (
        (dim and fixed_only) or devices or against or tune or fusion is not True
        or precision != "model"
    ):  # fmt: skip
        raise UsageError(
            f"{model} is a plan: it is compiled already, and its model is not there",
            hint="--devices, --compare, --tune, --precision and fusion are for models, --dim is for"
            " models and plans of open sizes",
        )
    if weights is not None and not saved:
        raise UsageError(f"--weights is for plans, and {model} is a model")
    with Progress(enabled=not as_json) as progress:
        stages = Stages(progress.step)
        stages.step("reading the model")
        recorded = None if inputs else feeds.find_test_data(model)
        files = [str(recorded)] if recorded else inputs
        plan: Plan | HostedPlan | ShardedPlan
        if saved:
            if model.is_dir():
                plan = ShardedPlan.load(model, threads=threads)
            elif fixed_only:
                plan = Plan.load(model, threads=threads, device=device, weights=weights)
            else:
                plan = _at_sizes(model, files, options.parse_dims(dim), device, threads)
            given = feeds.read_feeds(files, [spec.name for spec in plan.inputs])
        else:
            from fuser.frontends.onnx import model as onnx_models
            from fuser.frontends.onnx.hosted import HostedPlan, compile_on_host

            given, dims = feeds.open_feeds(model, files, options.parse_dims(dim), host)
        if devices is not None:
            plan = _on_devices(
                model, devices, host, tune, device=device, dims=dims, threads=threads,
                fusion=fusion, precision=precision, progress=stages.step,
            )  # fmt: skip
        elif not saved:
            plan = compile_on_host(
                model, host=host, device=device, dims=dims, threads=threads, fusion=fusion,
                precision=precision, progress=stages.step, tune=tune,
            )  # fmt: skip
        stages.end()
        arrays = given or plan.random_feeds(seed)
        progress.step("running")
        outputs = plan.run(arrays)
        report = plan.report()

        @functools.cache
        def unfused() -> Plan | HostedPlan:
            progress.step("compiling without fusion")
            return compile_on_host(
                model, host=host, device=device, dims=dims, threads=threads, fusion=False,
                precision=precision,
            )  # fmt: skip

        from fuser.report import beside

        apart = profile or trace is not None
        if apart and not isinstance(plan, Plan | ShardedPlan):
            raise UsageError(
                "--profile and --trace time plans, and parts of this model run on the host",
                hint="FUSER_LOG=kernels names what is compiled",
            )
        if isinstance(plan, ShardedPlan):
            if iterations:
                report.latency_ms = plan.profile(arrays, iterations=iterations, warmup=warmup)
            if apart:
                runs = iterations or 1
                times = [ms / 1e3 for _, ms in plan.profile_kernels(arrays, iterations=runs)]
                beside.add_times(report, times, runs)
        elif iterations or apart:
            compared = measure and fusion and iterations and not saved
            beside.measure(
                report, plan, arrays, iterations or 1, warmup,
                unfused=unfused if compared else None, kernels="own" if apart else "none",
            )  # fmt: skip
            report.latency_ms = report.latency_ms if iterations else None
        expected, label = None, ""
        if expect:
            expected, label = feeds.read_outputs(expect, list(outputs)), str(expect)
        elif against == "reference":
            progress.step("evaluating the float64 reference")
            if isinstance(plan, HostedPlan):
                expected, label = plan.reference(arrays), "the operators on the host"
            else:
                opened = onnx_models.open_model(model)
                expected, label = onnx_models.reference(opened, arrays, dims), "float64 reference"
        elif against == "unfused":
            expected, label = unfused().run(arrays), "unfused plan"
        elif against == "onnxruntime":
            from fuser.report.peer import run_onnxruntime

            progress.step("running ONNX Runtime")
            expected, report.peer = run_onnxruntime(model, arrays, dims, threads)
            label = f"ONNX Runtime {report.peer['version']}"
        elif recorded:
            expected, label = feeds.read_test_data(recorded, "output", list(outputs)), recorded.name
    if expected is not None:
        import numpy as np

        from fuser.report.compare import compare, tolerance_of

        dtypes = {np.asarray(a).dtype.name for a in (*arrays.values(), *outputs.values())}
        if report.precision.startswith(("bf16", "int8w")):
            dtypes.add("bfloat16")
        tolerance = tolerance_of(dtypes, plan.target.name)
        report.compare = compare(
            outputs, expected, tolerance=tolerance, rtol=rtol, atol=atol, name=label
        )
    if output:
        _save_outputs(output, outputs)
    if trace:
        from fuser.report.record import Record

        write_trace(trace, Record(report.to_dict()), stages)
    if report_file:
        write_text(report_file, json.dumps(report.to_dict(schema), indent=2) + "\n")
    if as_json:
        click.echo(json.dumps(report.to_dict(schema)))
    else:
        from fuser.report.table import print_report

        print_report(report, outputs, random_inputs=not given, plan=str(model) if saved else "")
        if profile:
            from fuser.report.profile import profile_text
            from fuser.runtime.terminal import echo

            echo(f"\n{profile_text(report, verbose > 0)}")
        say_written([path for path in (output, trace, report_file) if path])
    return 0 if report.compare is None or report.compare.ok else 1


def _is_plan(file: Path, *kinds: bytes) -> bool:
    """Whether a file is a plan of fuser compile or of a plan's save, of one of these kinds."""
    if not file.is_file():  # a pipe would be waited for
        return False
    try:
        with open(file, "rb") as opened:
            return opened.read(6) in (kinds or (b"FUSERP", b"FUSERD"))
    except OSError:
        return False  # reading the model says what is wrong


def _at_sizes(
    file: Path, files: Sequence[str], dims: dict[str, int], device: Device, threads: int | None
) -> Plan:
    """A plan for open sizes, at those of the feeds or of --dim. Raises UsageError."""
    from fuser.cli import feeds
    from fuser.errors import DeviceError, nearest
    from fuser.graph.dims import symbols_of
    from fuser.pipeline.devices import parse_device
    from fuser.pipeline.dynamic import DynamicPlan

    kind, ordinal = parse_device(device)
    plan = DynamicPlan.load(file, threads=threads, device=ordinal)
    target = plan.variants[0].bound.target
    if kind not in ("auto", target.name):
        raise DeviceError(f"the plan is for {target.name} ({target.arch}), not {kind}")
    given = feeds.read_feeds(files, [spec.name for spec in plan.inputs])
    if given:
        return plan.plan(given)
    names = sorted({name for spec in plan.inputs for d in spec.shape for name in symbols_of(d)})
    for name in dims:
        if name not in names:
            raise UsageError(f"unknown dim {name!r}", hint=nearest(name, names, "the dims are"))
    if missing := [name for name in names if name not in dims]:
        raise UsageError(
            f"{file} has open sizes: {', '.join(missing)}",
            hint=" ".join(f"--dim {name}=N" for name in missing) + ", or feeds by -i",
        )
    return plan.prepare(dims).plan(dims)


def _on_devices(
    model: Path, devices: int | str, host: Host, tune: bool, **chosen: Any
) -> ShardedPlan:
    if host != "error" or tune:
        raise UsageError("--devices goes with neither --host allow nor --tune")
    from fuser.frontends.onnx.sharding.compile import compile_sharded

    return compile_sharded(model, devices, **chosen)


def _save_outputs(path: Path, outputs: dict[str, Any]) -> None:
    import numpy as np

    try:
        np.savez(path, allow_pickle=False, **{n: _saved(n, out) for n, out in outputs.items()})
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _saved(name: str, output: Any) -> Any:
    """An output as an array that a file of NumPy can hold."""
    import numpy as np

    if isinstance(output, np.ndarray):
        return output.astype(str) if output.dtype == object else output
    raise UsageError(f"output {name!r} is a {type(output).__name__}: -o writes tensors")


def write_text(path: Path, text: str) -> None:
    """Write a file. Raises UsageError where that fails."""
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def say_written(files: Iterable[Path]) -> None:
    """Print the path and size of files that were written."""
    from fuser.graph.units import byte_size
    from fuser.runtime.terminal import echo, table

    rows = [("wrote", f"{file}, {byte_size(file.stat().st_size)}") for file in files]
    if rows:
        echo(table(rows, labels=True, paint=True))


def write_trace(path: Path, record: Record, stages: Stages) -> None:
    """Write the trace of a compile and a run. Raises UsageError where that fails."""
    from fuser.report.trace import trace

    write_text(path, json.dumps(trace(record, stages.spans)) + "\n")
