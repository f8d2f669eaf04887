"""What `fuser bench` times: a model at given sizes, run by fuser and handed to its peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fuser.errors import DeviceError, InvalidModelError, UnsupportedError, UsageError
from fuser.pipeline.fusion import Fusing

if TYPE_CHECKING:
    from fuser.frontends.onnx.hosted import Host, HostedPlan
    from fuser.pipeline.devices import Device
    from fuser.pipeline.precision import Precision
    from fuser.report.bench import Engine
    from fuser.report.bench_peers import Request
    from fuser.report.report import Report
    from fuser.runtime.plan import Plan


@dataclass(frozen=True)
class How:
    """How to compile and call it. threads: of a CPU. measure: whether the plan without fusion is
    run, too."""

    device: Device
    threads: int
    streams: int
    seed: int
    precision: Precision
    fusion: Fusing
    host: Host
    progress: Callable[[str], None]
    measure: bool = True

    def beside(self, compiled: Callable[[], Engine]) -> Callable[[], Engine] | None:
        """What makes the plan without fusion, where it is to be run."""

        def made() -> Engine:
            self.progress("compiling without fusion")
            return compiled()

        return made if self.measure and self.fusion else None


@dataclass(frozen=True)
class Opened:
    """A model compiled at some sizes: fuser's side, and what a peer needs. batch: None where there
    is no one open batch dim. unfused: makes the plan without fusion, where it is to be run."""

    engine: Engine
    report: Report
    kernels: int
    batch: int | None
    request: Request
    unfused: Callable[[], Engine] | None
    on_device: Callable[[], float | None] = lambda: None
    """Milliseconds of the kernels alone, where that is another time than that of a run."""


class Subject(Protocol):
    """A model file. `sizes` gives the dims of each case. Raises UsageError for --dim, --batch or -i
    that do not fit the model."""

    def sizes(
        self, files: tuple[str, ...], dims: dict[str, int], batch: str | None
    ) -> Iterator[dict[str, int]]: ...

    def open(self, dims: Mapping[str, int]) -> Opened: ...


def subject_of(path: Path, how: How) -> Subject:
    return Exported(path, how) if path.suffix == ".pt2" else Onnx(path, how)


class Onnx:
    """An ONNX file. Inputs are seeded, unless files give them."""

    def __init__(self, path: Path, how: How) -> None:
        from fuser.frontends.onnx.model import map_model
        from fuser.pipeline.source import symbols

        self.path, self.how = path, how
        self.feeds: dict[str, Any] = {}
        try:
            found = symbols(map_model(path))
        except UnsupportedError:
            if how.host == "error":
                raise
            found = {}
        self.outermost = [name for name, is_outer in found.items() if is_outer]

    def sizes(
        self, files: tuple[str, ...], dims: dict[str, int], batch: str | None
    ) -> Iterator[dict[str, int]]:
        from fuser.cli.feeds import open_feeds

        if batch is None:
            if files:
                self.feeds, dims = open_feeds(self.path, files, dims, self.how.host)
            yield dims
            return
        if files:
            raise UsageError("the feeds of -i have a batch", hint="leave --batch or -i away")
        name, equals, text = batch.rpartition("=")
        if not equals and len(self.outermost) != 1:
            known = ", ".join(self.outermost) or "none: every outermost dim is fixed"
            raise UsageError(
                f"--batch {batch}: which dim is it?", hint=f"NAME={batch}; outermost are {known}"
            )
        counts = text.split(",")
        if not all(count.isdecimal() and int(count) for count in counts):
            raise UsageError(f"--batch {batch}: expected whole numbers, as in 1,8,32")
        self.outermost = [name] if equals else self.outermost
        if self.outermost[0] in dims:
            raise UsageError(f"--batch and --dim both give {self.outermost[0]!r}")
        for count in counts:
            yield {**dims, self.outermost[0]: int(count)}

    def open(self, dims: Mapping[str, int]) -> Opened:
        from fuser import __version__
        from fuser.frontends.onnx.hosted import HostedPlan, compile_on_host
        from fuser.pipeline.devices import parse_device
        from fuser.report.bench import ALONE, OWN, Engine
        from fuser.report.bench_peers import Request

        how = self.how

        def compiled(fusion: Fusing) -> Plan | HostedPlan:
            return compile_on_host(
                self.path, host=how.host, device=how.device, dims=dims, threads=how.threads,
                fusion=fusion, precision=how.precision, progress=how.progress,
            )  # fmt: skip

        plan = compiled(how.fusion)
        feeds = self.feeds or plan.random_feeds(how.seed)
        outputs = plan.run(feeds)
        device: str = plan.target.name
        if plan.target.is_cuda:
            device += f":{parse_device(how.device)[1]}"
        if isinstance(plan, HostedPlan):
            bound, words = plan.dims, f"{device}, some operators on the host"
        else:
            bound, words = plan.report().dims, plan.device_name

        def engine(name: str, plan: Plan | HostedPlan) -> Engine:
            calls = [lambda: plan.run(feeds)] * how.streams
            return Engine(name, __version__, words, calls, lambda results: results)

        dtypes = {str(getattr(a, "dtype", "")) for a in (*feeds.values(), *outputs.values())}
        request = Request(
            self.path, feeds, list(outputs), bound, how.threads, how.streams, device,
            how.precision, frozenset(dtypes),
        )  # fmt: skip
        batch = bound.get(self.outermost[0]) if len(self.outermost) == 1 else None

        def on_device() -> float | None:
            if isinstance(plan, HostedPlan) or not plan.target.is_cuda:
                return None
            return plan.profile_device(feeds).median

        return Opened(
            engine(OWN, plan), plan.report(), plan.launches, batch, request,
            how.beside(lambda: engine(ALONE, compiled(False))), on_device,
        )  # fmt: skip


class Exported:
    """A `torch.export.ExportedProgram` in a file, on its example inputs, which it holds."""

    def __init__(self, path: Path, how: How) -> None:
        try:
            import torch
            from torch.export.passes import move_to_device_pass
            from torch.utils import _pytree
        except ImportError as error:
            raise UsageError(
                f"{path.name} needs PyTorch: {error}", hint="pip install torch"
            ) from error
        if not path.is_file():
            raise UsageError(f"no such file: {path}")
        self.path, self.how = path, how
        try:
            program = torch.export.load(path)
        except Exception as error:  # PyTorch raises what it likes
            raise InvalidModelError(f"no exported program: {error}", where=str(path)) from error
        if program.example_inputs is None:
            raise UsageError(f"{path.name} holds no example inputs", hint="export it anew")
        kind = str(how.device).partition(":")[0]
        if kind == "cuda" and not torch.cuda.is_available():
            raise DeviceError("PyTorch sees no GPU", hint="use --device cpu")
        if kind != "auto":
            program = move_to_device_pass(program, str(how.device))
        self.program = program
        self.arguments: tuple[tuple[Any, ...], Mapping[str, Any]] = _pytree.tree_map_only(
            torch.Tensor, lambda x: x if kind == "auto" else x.to(how.device),
            program.example_inputs,
        )  # fmt: skip

    def sizes(
        self, files: tuple[str, ...], dims: dict[str, int], batch: str | None
    ) -> Iterator[dict[str, int]]:
        if files or dims or batch:
            raise UsageError(
                f"{self.path.name} runs on the inputs that it was exported with",
                hint="leave -i, --dim and --batch away, or export it for other inputs",
            )
        yield {}

    def open(self, dims: Mapping[str, int]) -> Opened:
        import torch
        from torch.utils import _pytree

        from fuser import __version__
        from fuser.frontends.compile import compile
        from fuser.report.bench import ALONE, OWN, Engine
        from fuser.report.bench_peers import Request, torch_call, torch_results

        how = self.how
        args, named = self.arguments

        def opened(name: str, fusion: Fusing) -> tuple[Engine, Plan]:
            compiled = compile(
                self.program, device=how.device, threads=how.threads, fusion=fusion,
                precision=how.precision,
            )  # fmt: skip
            plan = compiled.plan(*args, **named)
            calls = [torch_call(torch, compiled, self.arguments)] * how.streams
            return Engine(name, __version__, plan.device_name, calls, torch_results), plan

        how.progress("compiling")
        engine, plan = opened(OWN, how.fusion)
        tensors = [*_pytree.tree_leaves(self.arguments), *self.program.state_dict.values()]
        dtypes = {str(x.dtype).removeprefix("torch.") for x in tensors if hasattr(x, "dtype")}
        where = next((str(x.device) for x in tensors if hasattr(x, "device")), "cpu")
        outputs = list(engine.read(engine.callers[0]()))
        request = Request(
            self.program, {}, outputs, {}, how.threads, how.streams, where, how.precision,
            frozenset(dtypes), self.arguments,
        )  # fmt: skip
        return Opened(
            engine, plan.report(), plan.launches, None, request,
            how.beside(lambda: opened(ALONE, False)[0]),
        )  # fmt: skip
