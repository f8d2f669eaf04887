"""A process that takes hostile models through one entry point after another: what came of each, how
much memory and how long it took.

A request on stdin is a line of JSON, [entry point, path, bytes allowed]; the answer on stdout is a
`Result`. An entry point is how a caller comes in: the command line, a session, a compile with the
host, a compile for open sizes.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from select import select
from typing import Any

import numpy as np

MAX_FED_ELEMENTS = 1 << 22
"""Elements of an input that is fed; one of more is left at compiling."""


@dataclass(frozen=True)
class Result:
    """outcome: "ran", "refused: <class>", "raw: <class>: <text>", "died" or "slow". megabytes: the
    most memory in use beyond what was before. seconds: of the processor: other work on the machine
    does not count."""

    outcome: str
    megabytes: float
    seconds: float
    text: str = ""

    @property
    def is_raw(self) -> bool:
        return self.outcome.startswith("raw") or self.outcome == "died"


def memory(key: str) -> float:
    """A line of /proc/self/status in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def through_cli(path: str, limit: int, *more: str) -> str:
    from fuser.cli.main import run

    err = io.StringIO()
    arguments = ["run", "--device", "cpu", "--iterations", "1", "--max-bytes", str(limit)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        code = run([*arguments, *more, path])
    text = err.getvalue()
    if code in (0, 1):
        return "ran"
    if code not in (2, 3, 4, 6) or "Traceback" in text or "internal error" in text:
        return f"raw: exit code {code}: {text[-500:]}"
    return f"refused: {code}: {text[-300:]}"


def feeds_for(inputs: Any) -> dict[str, Any] | None:
    """Random arrays for (name, type, shape) of each input; None where one is too large to make."""
    rng, found = np.random.default_rng(0), {}
    for info in inputs:
        shape = [size if isinstance(size, int) else 2 for size in info.shape]
        if np.prod([float(size or 1) for size in shape]) > MAX_FED_ELEMENTS or len(shape) > 64:
            return None
        kind = info.type.removeprefix("tensor(").removesuffix(")")
        if kind == "string":
            found[info.name] = np.full(shape, "ab", object)
            continue
        kind = {"float": "float32", "double": "float64"}.get(kind, kind)
        try:
            found[info.name] = rng.integers(0, 3, shape).astype(kind)
        except (TypeError, ValueError):  # a sequence, bfloat16, a negative size
            return None
    return found


def through_session(path: str, limit: int) -> str:
    import fuser
    from fuser.base.limits import Limits
    from fuser.onnxruntime import InferenceSession

    try:
        session = InferenceSession(
            path, providers=["CPUExecutionProvider"], limits=Limits(bytes=limit)
        )
        session.get_outputs()
        session.get_modelmeta()
        feeds = feeds_for(session.get_inputs())
        if feeds is not None:
            session.run(None, feeds)
    except fuser.FuserError as error:
        return refusal(error)
    return "ran"


def refusal(error: Any) -> str:
    """A FuserError as an outcome; a defect of fuser is none that a model may reach."""
    import fuser.errors as errors

    defects = (errors.VerifyError, errors.LoweringError, errors.CompileError)
    kind = "raw" if isinstance(error, defects) else "refused"
    return f"{kind}: {type(error).__name__}: {str(error)[:300]}"


def through_host(path: str, limit: int) -> str:
    return through_cli(path, limit, "--host", "allow")


def through_dynamic(path: str, limit: int) -> str:
    """Kernels for open sizes, and a run."""
    import fuser
    from fuser.base.limits import Limits, limited
    from fuser.frontends.onnx.importer import load_model
    from fuser.frontends.onnx.node_args import tensor_info

    try:
        with limited(Limits(bytes=limit)):
            plan = fuser.compile(path, dynamic=True, device="cpu")
            feeds = feeds_for([tensor_info(info) for info in load_model(path).graph.input])
            if feeds is not None:
                plan.run(feeds)
    except fuser.FuserError as error:
        return refusal(error)
    return "ran"


ENTRIES = {
    "cli": through_cli,
    "session": through_session,
    "host": through_host,
    "dynamic": through_dynamic,
}


def through(entry: str, path: str, limit: int) -> Result:
    """Take a model through an entry point in this process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    before, started = memory("VmRSS"), time.process_time()
    try:
        outcome = ENTRIES[entry](path, limit)
    except MemoryError:
        outcome = "raw: MemoryError"
    except Exception as error:  # what no FuserError is
        import traceback

        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome = f"raw: {type(error).__name__}: {str(error)[:300]}"
        outcome += f" ({Path(place.filename).name}:{place.lineno})"
    kind, _, text = outcome.partition(": ")
    if kind != "ran":
        name, _, text = text.partition(": ")
        kind = f"{kind}: {name}"
    peak = memory("VmHWM") - before
    return Result(kind, round(peak, 1), round(time.process_time() - started, 2), text)


class Child:
    """A process that answers requests, started again where it died or was too slow."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def ask(self, entry: str, path: Path, limit: int, seconds: float) -> Result:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.malformed.entries"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip
        child = self.process
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps([entry, str(path), limit]) + "\n")
            child.stdin.flush()
        except BrokenPipeError:
            self.close()
            return Result("died", 0, 0)
        ready, _, _ = select([child.stdout], [], [], 8 * seconds)  # of a clock, beside other work
        line = child.stdout.readline() if ready else ""
        if line:
            return Result(**json.loads(line))
        self.close()
        return Result("died" if ready else "slow", 0, seconds)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def _warm_up() -> None:
    """Load what a compile loads, so that it is not of the first model's memory."""
    import tempfile

    from tests.malformed.bases import base

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "warm.onnx"
        path.write_bytes(base("Sin", (2, 3)).SerializeToString())
        for entry in ENTRIES:
            through(entry, str(path), 1 << 30)
        path.write_bytes(base("NonZero", (2, 3)).SerializeToString())
        through("session", str(path), 1 << 30)


def main() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
    answers = sys.stdout
    sys.stdout = sys.stderr
    _warm_up()
    for line in sys.stdin:
        entry, path, limit = json.loads(line)
        answers.write(json.dumps(asdict(through(entry, path, limit))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
