"""Every FUSER_* environment variable in one record. Bad values are errors, unknown names noted.

docs/command-line.md lists them.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path

from fuser.base.limits import DEFAULT, Limits, are_set, limited, seldom_collected
from fuser.errors import LimitError, UsageError, nearest


@dataclass(frozen=True)
class Config:
    """The environment's say.

    cache_dir: FUSER_CACHE_DIR, where compiled kernels are kept; the user's cache folder by default.
    cache: FUSER_CACHE=0 turns the kernel cache off.
    threads: FUSER_THREADS, CPU threads of a plan; 0 is one a core.
    workers: FUSER_WORKERS, processes that compile; 0 is one a core.
    dump: FUSER_DUMP, a folder that receives the text of every stage of every compile.
    check: FUSER_CHECK=1 runs every kernel of the block language in the interpreter, which reports
    accesses out of bounds and races.
    log: FUSER_LOG, what is told on the standard error stream: names of TOPICS, with commas.
    nvtx: FUSER_NVTX=1 marks runs and compiles as NVTX ranges, for profilers.
    perf: FUSER_PERF=1 writes the addresses of CPU kernels to /tmp/perf-PID.map, for perf.
    verify: FUSER_VERIFY=1 checks the intermediate programs after every pass.
    max_seconds, max_bytes, max_nodes, max_kernel_seconds: FUSER_MAX_SECONDS and so on, what a model
    may ask for (fuser/base/limits.py); 0 seconds is no end, 0 bytes the memory of the machine.
    """

    cache_dir: Path | None = None
    cache: bool = True
    threads: int = 0
    workers: int = 0
    dump: Path | None = None
    verify: bool = False
    check: bool = False
    log: str = ""
    nvtx: bool = False
    perf: bool = False
    max_seconds: int = int(DEFAULT.seconds)
    max_bytes: int = DEFAULT.bytes
    max_nodes: int = DEFAULT.nodes
    max_kernel_seconds: int = int(DEFAULT.kernel_seconds)

    @property
    def limits(self) -> Limits:
        return Limits(self.max_seconds, self.max_bytes, self.max_nodes, self.max_kernel_seconds)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        """Read FUSER_*. Raises UsageError on a value that does not fit; an unknown name is logged,
        once."""
        table = os.environ if environment is None else environment
        values: dict[str, object] = {}
        known = {f"FUSER_{item.name.upper()}": item for item in fields(cls)}
        for name, text in table.items():
            if not name.startswith("FUSER_"):
                continue
            if name not in known:
                _tell_unknown(name, nearest(name, sorted(known)))
                continue
            values[known[name].name] = _parse(name, str(known[name].type), text)
        return cls(**values)  # type: ignore[arg-type]


@functools.cache
def _tell_unknown(name: str, hint: str) -> None:
    logging.getLogger("fuser").warning("unknown variable %s is not read; %s", name, hint)


TOPICS = {name: f"fuser.{name}" for name in ("compile", "kernels", "recompiles", "launches")}
"""What FUSER_LOG may name, and the logger that tells it: each compile of a model; each kernel of
it; kernels of the block language that are compiled again; which of their launches are native."""


def start_logs(topics: Iterable[str] | None = None) -> None:
    """Tell topics on the standard error stream: those given, else those that FUSER_LOG names.
    Raises UsageError for one that there is not."""
    names = Config.from_environment().log.split(",") if topics is None else topics
    for name in filter(None, map(str.strip, names)):
        if name not in TOPICS:
            raise UsageError(f"FUSER_LOG={name} is unknown", hint=nearest(name, TOPICS))
        _start_log(name)


@functools.cache
def _start_log(name: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"fuser {name}: %(message)s"))
    logger = logging.getLogger(TOPICS[name])
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


@contextmanager
def within(limits: Limits | None = None) -> Iterator[None]:
    """Hold limits within the block, which is a compile: those given, else those around it, else the
    environment's.

    Raises LimitError, also where Python's own limit on recursion ends the work."""
    if limits is None and not are_set():
        limits = Config.from_environment().limits
    try:
        with limited(limits) if limits is not None else nullcontext(), seldom_collected():
            yield
    except RecursionError:
        raise LimitError("the model is nested too deeply") from None


def _parse(name: str, kind: str, text: str) -> object:
    if kind == "str":
        return text
    if "Path" in kind:
        return Path(text) if text else None
    if kind == "bool":
        if text.lower() in ("0", "false", "no", "off"):
            return False
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        raise UsageError(f"{name}={text} is not a switch", hint="use 0 or 1")
    if not text.isdecimal():
        raise UsageError(f"{name}={text} is not a whole number")
    return int(text)
