"""From the start of a process to the first result of a saved model: plan files beside ONNX Runtime.

    python -m benchmarks.load                      # MiniLM and BERT-base, CPU
    python -m benchmarks.load --models minilm --children 50 --threads 2

Each figure is of fresh processes, in turns: the seconds from before the process is made until it
has its first outputs (interpreter, imports, load, one run), and the processor seconds that it took
up to there, all threads counted. fuser's outputs are compared with those of `fuser.compile` bit by
bit, those of ONNX Runtime by their error. Exit code 1 if any is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from models import build, save

DIMS: Mapping[str, Mapping[str, int]] = {
    "minilm": {"batch": 1, "sequence": 32},
    "bert": {"batch": 1, "sequence": 32},
    "gpt2": {"batch": 1, "sequence": 32},
    "resnet50": {"batch": 1},
}
PEER_ERROR = 1e-3
"""The greatest error of a peer, ||peer - fuser|| / ||fuser||, in float32."""

_BEGIN = """
import sys
file, folder, threads, start = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
"""
_FEEDS = """
import os
import numpy as np
feeds = {name[:-4]: np.load(os.path.join(folder, name)) for name in os.listdir(folder)}
"""
_END = """
import resource, time
wall, used = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF)
print(wall, used.ru_utime + used.ru_stime)
np.savez(sys.argv[5], **outputs)
"""
CHILDREN = {
    "fuser": f"""{_BEGIN}
import fuser
plan = fuser.Plan.load(file, threads=threads)
{_FEEDS}
outputs = plan.run(feeds)
{_END}""",
    "onnxruntime": f"""{_BEGIN}
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
{_FEEDS}
names = [item.name for item in session.get_outputs()]
outputs = dict(zip(names, session.run(names, feeds)))
{_END}""",
    "numpy alone": f"{_BEGIN}\nimport numpy as np\noutputs = {{}}\n{_END}",
}
"""What runs in a process. The last is what no program that uses NumPy can be below."""


@dataclass
class Times:
    """Of the children of one kind: seconds and processor seconds up to the first result."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    wrong: int = 0

    def record(self) -> dict[str, float]:
        return {
            "least_wall_s": min(self.wall), "median_wall_s": median(self.wall),
            "least_cpu_s": min(self.cpu), "median_cpu_s": median(self.cpu),
            "wrong": self.wrong,
        }  # fmt: skip


Results = Mapping[str, np.ndarray]


def start(
    kind: str, file: Path, feeds: Path, threads: int, scratch: Path
) -> tuple[list[float], Results]:
    """Run one child; its numbers and its outputs. Raises RuntimeError where it fails."""
    found = scratch / "outputs.npz"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(scratch / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as pip installs it: with bytecode
    command = [sys.executable, "-c", CHILDREN[kind], str(file), str(feeds), str(threads)]
    done = subprocess.run(
        [*command, repr(time.monotonic()), str(found)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{kind} on {file} ended with {done.returncode}: {done.stderr[-2000:]}")
    with np.load(found) as held:
        return list(map(float, done.stdout.split())), dict(held)


def is_right(kind: str, outputs: Results, want: Results) -> bool:
    if kind == "fuser":
        return all(outputs[name].tobytes() == array.tobytes() for name, array in want.items())
    if kind == "numpy alone":
        return not outputs
    return all(
        np.linalg.norm(outputs[name] - array) <= PEER_ERROR * np.linalg.norm(array)
        for name, array in want.items()
    )


def measure(name: str, children: int, threads: int, folder: Path) -> dict[str, Times]:
    """The children of each kind on a model of models/, or an ONNX file."""
    import fuser

    model, feeds = Path(name), folder / "feeds"
    dims = DIMS.get(name)
    if model.suffix != ".onnx":
        model = folder / "model.onnx"
        save(build(name, **(dims or {})), model)
    file = folder / "model.plan"
    with fuser.compile(model, device="cpu", threads=threads) as plan:
        given = plan.random_feeds()
        want = plan.run(given)
        plan.save(file)
    feeds.mkdir()
    for key, array in given.items():
        np.save(feeds / f"{key}.npy", array)
    files = {"fuser": file, "onnxruntime": model, "numpy alone": file}
    found = {kind: Times() for kind in CHILDREN}
    for number in range(children + 1):
        for kind, times in found.items():
            (wall, cpu), outputs = start(kind, files[kind], feeds, threads, folder)
            times.wrong += not is_right(kind, outputs, want)
            if number:  # the first writes the bytecode and brings the files into memory
                times.wall.append(wall)
                times.cpu.append(cpu)
    return found


def print_table(found: Mapping[str, Mapping[str, Times]]) -> None:
    heads = ["model", "", "wall s, least", "median", "CPU s, least", "median"]
    print("| " + " | ".join(heads) + " |")
    print("| --- " * len(heads) + "|")
    for name, kinds in found.items():
        for kind, times in kinds.items():
            record = times.record()
            cells = [f"{record[key]:.3f}" for key in record if key.endswith("_s")]
            print(f"| {name} | {kind} | {' | '.join(cells)} |")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["minilm", "bert"], metavar="NAME",
                        help="of models/, or ONNX files of fixed sizes")  # fmt: skip
    parser.add_argument("--children", type=int, default=20, help="of each kind, one more uncounted")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    given = parser.parse_args(arguments)
    before, found = os.getloadavg()[0], {}
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(name, given.children, given.threads, Path(folder))
    print_table(found)
    print(f"{given.children} processes of each, {given.threads} threads; load of the machine"
          f" {before:.1f} before, {os.getloadavg()[0]:.1f} after")  # fmt: skip
    records = {name: {k: t.record() for k, t in kinds.items()} for name, kinds in found.items()}
    if given.json:
        given.json.write_text(json.dumps(records, indent=1))
    wrong = sum(times.wrong for kinds in found.values() for times in kinds.values())
    if wrong:
        print(f"{wrong} processes had wrong outputs", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
