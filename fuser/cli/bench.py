"""`fuser bench`: whole runs timed, beside other engines, with thresholds for CI."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuser.cli import options
from fuser.errors import UsageError, nearest

if TYPE_CHECKING:
    from fuser.cli.bench_models import How, Opened
    from fuser.frontends.onnx.hosted import Host
    from fuser.pipeline.devices import Device
    from fuser.pipeline.fusion import Fusing
    from fuser.pipeline.precision import Precision
    from fuser.report.bench import Case, Effort, Thresholds
    from fuser.report.report import Comparison


@click.command("bench")
@click.argument("model", type=click.Path(path_type=Path))
@options.device
@click.option("-i", "--input", "inputs", multiple=True, metavar="FEED",
              help="NAME=F.npy, F.npz or a folder of input_*.pb; else random.")  # fmt: skip
@options.dim
@click.option("--batch", metavar="[NAME=]N,N,...",
              help="A case for each of these sizes of the batch dim.")  # fmt: skip
@click.option("--against", metavar="ENGINE,...", default="",
              help="onnxruntime, openvino, torch; onnxruntime:cpu names the device.")  # fmt: skip
@click.option("--warmup", type=click.IntRange(min=0), default=10, show_default=True,
              help="Untimed runs of each engine before all others.")  # fmt: skip
@click.option("--iterations", type=click.IntRange(min=1), default=10, show_default=True,
              help="Timed runs of each engine, at least.")  # fmt: skip
@click.option("--duration", type=click.FloatRange(min=0), default=1.0, show_default=True,
              metavar="SECONDS", help="Time each engine for so long, at least.")  # fmt: skip
@click.option("--streams", type=click.IntRange(min=1), default=1, show_default=True,
              help="Callers at once.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1),
              help="CPU threads of each engine; one a core by default.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Seed of the random inputs.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write a CSV file, too.")
@click.option("--svg", "svg_file", type=click.Path(path_type=Path),
              help="Draw the latencies with their spread, too.")  # fmt: skip
@click.option("--until-stable", is_flag=True,
              help="Where other work disturbs it, measure again, 10 times at most.")  # fmt: skip
@click.option("--max-latency-ms", type=float, metavar="MS",
              help="Exit with 1 if fuser's median is above.")  # fmt: skip
@click.option("--min-speedup", type=float, metavar="X",
              help="Exit with 1 if fuser is not X times as fast as each peer.")  # fmt: skip
@click.option("--max-error", type=float, metavar="E",
              help="Exit with 1 if an output differs more from a peer's.")  # fmt: skip
@options.measure
@options.fusion
@options.kernels
@options.host
@options.precision
@options.numerics
@options.limits
@options.verbose
def bench_command(
    model: Path, device: Device, inputs: tuple[str, ...], dim: tuple[str, ...],
    batch: str | None, against: str, warmup: int, iterations: int, duration: float, streams: int,
    threads: int | None, seed: int, as_json: bool, csv_file: Path | None, svg_file: Path | None,
    until_stable: bool,
    max_latency_ms: float | None, min_speedup: float | None, max_error: float | None,
    measure: bool, fusion: Fusing, host: Host, precision: Precision,
) -> int:  # fmt: skip
    """Time whole runs of MODEL, an ONNX file or a PyTorch exported program (.pt2), from host arrays
    to host arrays, in turns with its plan without fusion and with other engines.

    Results are compared with theirs. Exit code 1: an output differs, a threshold is missed, or an
    engine was not measured; 2: its package is not installed.
    """
    from fuser.cli.bench_models import How, subject_of
    from fuser.cli.run import say_written, write_text
    from fuser.pipeline.devices import plan_threads
    from fuser.report.bench import ATTEMPTS, SPREAD_RUNS, Bench, Effort, Thresholds
    from fuser.report.bench_chart import chart_of
    from fuser.report.bench_table import csv_of, table_of
    from fuser.report.progress import Progress
    from fuser.runtime.terminal import echo, notice

    peers = _peers(against)
    wanted = Thresholds(max_latency_ms, min_speedup, max_error)
    if not peers and (min_speedup is not None or max_error is not None):
        raise UsageError("--min-speedup and --max-error are about peers", hint="add --against")
    if until_stable and iterations < SPREAD_RUNS:
        raise UsageError(
            f"--until-stable cannot tell the spread of {iterations} runs",
            hint=f"give --iterations {SPREAD_RUNS} or more",
        )
    effort = Effort(warmup, iterations, duration)
    attempts = ATTEMPTS if until_stable else 1
    cases: list[Case] = []
    with Progress(enabled=not as_json) as progress:
        progress.step("reading the model")
        how = How(
            device, plan_threads(threads), streams, seed, precision, fusion, host,
            progress.step, measure,
        )  # fmt: skip
        subject = subject_of(model, how)
        for dims in subject.sizes(inputs, options.parse_dims(dim), batch):
            started = time.perf_counter()
            opened = subject.open(dims)
            compile_s = time.perf_counter() - started
            cases.append(
                _case(opened, compile_s, peers, effort, wanted, how, attempts, progress.step)
            )
    found = Bench(
        model.name, opened.engine.device, opened.report.precision, how.threads, streams, effort,
        tuple(cases),
    )  # fmt: skip
    if csv_file:
        write_text(csv_file, csv_of(found))
    if svg_file:
        write_text(svg_file, chart_of(found))
    if as_json:
        click.echo(json.dumps(found.to_dict(wanted)))
    else:
        echo(table_of(found))
        say_written([file for file in (csv_file, svg_file) if file])
    warnings = found.warnings()
    for line in warnings:
        notice(f"warning: {line}")
    if warnings:
        again = "the least disturbed of all attempts is no better" if until_stable else (
            "--until-stable measures again until they do not differ"
        )  # fmt: skip
        notice(f"note: these numbers are partly of other work of the machine; {again}")
    failures = found.failures(wanted)
    for line in failures:
        notice(f"failed: {line}")
    return 1 if failures else 0


def _peers(text: str) -> list[str]:
    """The names after --against. Raises UsageError for unknown ones, and for those that are not
    installed."""
    from fuser.report.bench_peers import PEERS, missing

    names = [name for name in dict.fromkeys(text.replace(" ", "").split(",")) if name]
    for name in names:
        kind, colon, device = name.partition(":")
        if kind not in PEERS:
            raise UsageError(
                f"--against knows no engine {kind!r}", hint=nearest(kind, PEERS, "one of")
            )
        if colon and device not in ("cpu", "cuda"):
            raise UsageError(f"--against {name}: there is no such device", hint="cpu or cuda")
    if absent := missing(names):
        raise UsageError(
            f"--against: not installed: {', '.join(absent)}",
            hint=f"pip install {' '.join(dict.fromkeys(absent.values()))}",
        )
    return names


def _case(
    opened: Opened, compile_s: float, peers: Sequence[str], effort: Effort, wanted: Thresholds,
    how: How, attempts: int, progress: Callable[[str], None],
) -> Case:  # fmt: skip
    """Measure fuser, its plan without fusion and the peers that there are."""
    from fuser.report.bench import Case, Ratio, Row, measure_until_stable
    from fuser.report.bench_peers import AbsentError, open_peer
    from fuser.report.beside import make_unfused
    from fuser.report.compare import compare, tolerance_of

    own, request = opened.engine, opened.request
    outputs = own.read(own.callers[0]())
    dtypes = set(request.dtypes)
    if opened.report.precision.startswith(("bf16", "int8w")):
        dtypes.add("bfloat16")
    # each of two engines is within the tolerance of what is true
    limit = 2 * tolerance_of(dtypes, request.device.partition(":")[0])
    if wanted.max_error is not None:
        limit = wanted.max_error
    engines, absent = [own], {}
    compared: list[Comparison | None] = []
    note = ""
    if opened.unfused:
        alone, note = make_unfused(opened.report, opened.unfused)
        engines += [alone] if alone else []
        compared += [None] if alone else []
    for name in peers:
        progress(f"opening {name}")
        try:
            peer, expected = open_peer(name, request)
        except AbsentError as error:
            absent[name] = str(error)
            continue
        engines.append(peer)
        compared.append(compare(outputs, expected, tolerance=limit, name=peer.name))
    progress("measuring")
    on_cpu = request.device.startswith("cpu")
    busy = how.streams * (how.threads if on_cpu else 1)
    found = measure_until_stable(engines, effort, busy=busy, attempts=attempts)
    first, *others = found.engines
    ratios = tuple(
        Ratio(
            peer.name, one.latency_ms.p50 / first.latency_ms.p50, first.throughput / one.throughput
        )
        for peer, one in zip(engines[1:], others, strict=True)
    )
    rows = [Row(own.name, own.version, own.device, first, ratios)]
    for peer, one, result in zip(engines[1:], others, compared, strict=True):
        rows.append(Row(peer.name, peer.version, peer.device, one, (), result))
    return Case(
        dict(request.dims), opened.batch, opened.kernels, compile_s, tuple(rows), absent,
        opened.on_device(), found.others, found.crowded, found.attempts, note,
    )  # fmt: skip
