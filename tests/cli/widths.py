"""Every command over ten models, piped and in terminals: no line is longer than the width.

    python -m tests.cli.widths                       # all of it: a thousand commands, half an hour
    python -m tests.cli.widths bert vit --columns 80

`--columns 0` is a pipe, whose lines have 80 columns at most. Prints each line that is longer, and
exits with 1 if there is one. Left out is what docs/command-line.md says to be printed as it is:
JSON, `dump`, `cache dir`, what -v tells and, in a pipe, notes; in a pipe also the tokens of
`models generate`. tests/cli/test_width.py has a sample of this walk.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from fuser.runtime.terminal import WIDTH, cells
from models import TINY, build, save

MODELS = ("mlp", "softmax", "layernorm", "attention", "conv_block", "bert", "gpt2", "vit",
          "tiny_llama", "resnet50")  # fmt: skip
"""Of `models.build`, in their sizes for tests."""
DYNAMIC = {"bert": "sequence", "gpt2": "sequence", "tiny_llama": "sequence"}
"""Models that are also compiled for a range of this dim."""
GENERATES = {"tiny_llama": "small_llama"}
"""Models that `python -m models generate` runs in this size."""
AT = ("--device", "cpu")
FEW = ("--iterations", "1")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LOG = re.compile(r"fuser \w+: ")
NOTE = re.compile(r"(?:note|warning|failed|error): ")
READY = re.compile(rb"^model .*\r?$", re.MULTILINE)
"""The last lines that a server writes before it waits."""
TIMEOUT = 300.0
"""Seconds for one command."""

Words = tuple[str | Path, ...]


def commands(model: Path, folder: Path, dim: str = "") -> Iterator[Words]:
    """Command lines of `fuser` in order: later ones read what earlier ones write. dim: one that a
    plan keeps open."""
    plan, report, before = folder / "a.plan", folder / "report.json", folder / "before.json"
    out = folder / "out.npz"
    yield "run", model, *AT, *FEW, "--profile", "--compare", "reference", "-o", out
    yield ("run", model, *AT, *FEW, "--expect", out, "--report", folder / "run.json",
           "--trace", folder / "run.trace")  # fmt: skip
    yield "profile", model, *AT, *FEW, "--report", report
    yield "profile", model, *AT, *FEW, "--no-fusion", "--report", before
    yield "report", report
    yield "report", before, report
    yield ("report", model, *AT, *FEW, "--html", folder / "page.html",
           "--annotate", folder / "annotated.onnx")  # fmt: skip
    yield "explain", model, *AT
    yield "explain", model, *AT, "--kernel", "0"
    yield "compile", model, *AT, "-o", plan
    yield "inspect", plan
    yield "inspect", plan, "--verbose"
    yield "inspect", model
    yield "run", plan, *FEW
    yield ("bench", model, *AT, *FEW, "--warmup", "0", "--duration", "0", "--against",
           "onnxruntime", "--csv", folder / "bench.csv")  # fmt: skip
    yield "cache", "info"
    yield ("doctor",)
    yield "explain", model, *AT, "--dynamic"
    if dim:
        yield "compile", model, *AT, "-o", folder / "open.plan", "--open", f"{dim}=1..64"
        yield "inspect", folder / "open.plan"
        yield "run", folder / "open.plan", *FEW, "--dim", f"{dim}=8", "--dim", "batch=1"


def more(model: Path, folder: Path) -> Iterator[Words]:
    """Command lines after those of `commands`, with more output."""
    report = folder / "report.json"
    yield "run", model, *AT, *FEW, "--verbose", "--compare", "onnxruntime", "--profile"
    yield "run", model, *AT, *FEW, "--compare", "unfused", "--precision", "int8w"
    yield "run", model, *AT, *FEW, "--no-fusion"
    yield "report", model, *AT, "--iterations", "0"
    yield "report", report, "--verbose"
    yield "report", model, "--target", "sm_90a", "--iterations", "0"
    yield "explain", model, "--target", "sm_90a", "--verbose"
    yield "inspect", model, "--verbose"
    yield "bench", model, *AT, *FEW, "--warmup", "0", "--duration", "0", "--batch", "1,2"
    yield "compile", model, "--target", "avx2,sm_80", "-o", folder / "more"
    yield "compile", model, *AT, "--emit", "object", "-o", folder / "objects"
    yield "inspect", model, "--help"
    if shards(model):
        yield "shard", model, "--devices", "2", "-o", folder / "sharded.onnx"
        yield "run", folder / "sharded.onnx", *AT, *FEW, "--devices", "2"


def shards(model: Path) -> bool:
    """Whether a model has matmuls that `fuser shard` divides."""
    return model.stem in ("mlp", "bert", "gpt2", "vit", "tiny_llama")


def processes(model: Path, name: str, folder: Path) -> Iterator[tuple[str, Words]]:
    """Modules that run in a process of their own, and their arguments, after those of
    `commands`."""
    yield "fuser", ("serve", model, folder / "a.plan", *AT, *ANY_PORT)
    yield "models", (name, "-o", folder / "again.onnx", "--feeds", folder / "feeds.npz")
    if name in GENERATES:
        few = ("--prompt", "4", "--tokens", "40", "--device", "cpu")
        yield "models", ("generate", "--model", GENERATES[name], *few)


ANY_PORT = ("--http-port", "0", "--grpc-port", "0")


def written(
    columns: int, *arguments: str | Path, module: str = "fuser", code: int = 0, **variables: str
) -> str:
    """What a module writes, with the error stream, into a terminal of that many columns, 0: into a
    pipe, where it ends with that code. A server is stopped when it waits for requests."""
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    if columns:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    else:
        ours, theirs = os.pipe()
    child = subprocess.Popen(
        command, stdin=theirs if columns else subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env={**kept, "TERM": "xterm", **variables},
    )  # fmt: skip
    os.close(theirs)
    read, wanted = b"", arguments.count("--http-port") and sum(map(_is_file, arguments))
    try:
        while select.select([ours], [], [], TIMEOUT)[0]:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # a terminal whose other side is closed
                break
            if not part:
                break
            read += part
            if wanted and len(READY.findall(read)) >= wanted:
                child.send_signal(signal.SIGTERM)
                wanted = 0
        text = read.decode().replace("\r\n", "\n")
        ended = child.wait(TIMEOUT)
        assert ended == code, f"{command} ended with {ended}: {text}"
    finally:
        child.kill()
        os.close(ours)
    return text


def _is_file(argument: str | Path) -> bool:
    return isinstance(argument, Path)


def too_long(text: str, columns: int) -> list[str]:
    """The lines of more columns, 0: of more than a pipe gets, without escapes for colours. What a
    carriage return begins anew is a line of its own."""
    lines = [line for line in without_escapes(text) if not LOG.match(line)]
    if not columns:
        lines = [line for line in lines if not NOTE.match(line)]
    return [line for line in lines if cells(line) > (columns or WIDTH)]


def without_escapes(text: str) -> list[str]:
    return re.split(r"[\r\n]", ESCAPES.sub("", text))


def walk(names: Sequence[str], widths: Iterable[int]) -> Iterator[tuple[str, int, Words, str]]:
    """Model, columns, command line and text of each command."""
    for name in names:
        for columns in widths:
            folder = Path(tempfile.mkdtemp())
            try:
                model = folder / f"{name}.onnx"
                save(build(name, **TINY.get(name, {})), model)
                first = commands(model, folder, DYNAMIC.get(name, ""))
                steps = [("fuser", words) for words in (*first, *more(model, folder))]
                for module, words in (*steps, *processes(model, name, folder)):
                    if columns or "generate" not in words:
                        yield name, columns, words, written(columns, *words, module=module)
            finally:
                shutil.rmtree(folder)


@click.command(help=(__doc__ or "").replace("\n    python", "\n\b\n    python", 1))
@click.argument("names", nargs=-1, type=click.Choice(MODELS))
@click.option("--columns", multiple=True, type=int, default=(0, 80, 140), show_default=True)
def main(names: Sequence[str], columns: Sequence[int]) -> None:
    count, found = 0, 0
    for name, width, words, text in walk(names or MODELS, columns):
        count += 1
        for line in too_long(text, width):
            found += 1
            shown = " ".join(word.name if isinstance(word, Path) else word for word in words)
            click.echo(f"{name}, {width or 'pipe'}: {shown}\n    {len(line)}: {line}")
    click.echo(f"{count} commands, {found} lines that are too long")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
