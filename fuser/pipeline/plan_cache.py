"""Whole plans in the cache: a model file that was compiled before is read, packed and linked.

An entry of the kernel cache (runtime/cache.py) holds what emission produced: kernels, launches, the
arena, the report. Its key material is everything that decides a plan: a digest of the model file's
content (never its time or name, so that no entry can be stale), the choices of the caller,
the target with the features of the processor and the threads of the plan, and all of fuser's own
source. Weights that kernels read straight from the file are in an entry as a span and a `Packing`,
and packed again in parallel; those that graph passes computed (folded, merged) are stored packed,
each an entry of its own under the SHA-256 of its content, so that plans of one model share them.

Files that keep their weights elsewhere (ONNX external data) are not taken: the content of the file
does not decide their plans.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import logging
import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fuser.base.config import Config, start_logs, within
from fuser.base.limits import Limits, check_bytes, current
from fuser.base.target import Target
from fuser.dtypes import BY_NAME, from_numpy
from fuser.errors import InvalidModelError
from fuser.graph import numerics
from fuser.pipeline.devices import Device, choose_target, parse_device, plan_threads
from fuser.pipeline.fusion import Fusing, choice
from fuser.pipeline.native_code import recall
from fuser.pipeline.precision import Precision
from fuser.report.report import Report
from fuser.runtime.cache import KernelCache
from fuser.runtime.container import MALFORMED, blob_of
from fuser.runtime.deferred import Deferred
from fuser.runtime.memory import align
from fuser.runtime.native import runtime_ir
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program
from fuser.runtime.source import HashFunction, Source, readers
from fuser.runtime.source import content_digest as digest_of
from fuser.runtime.store import program_from_record, program_record

MOST_BYTES = 256 << 20
"""Computed constants that a stored plan may hold; one with more is not stored."""

_INLINE = 1 << 16
"""Bytes of a constant from here on are an entry of their own."""

RECENT = 2_000_000_000
"""Nanoseconds: of a file written so shortly ago the time does not tell whether it was written to
again."""

_log = logging.getLogger("fuser")


def _quiet(step: str) -> None:
    """No progress."""


@dataclass(frozen=True)
class StoredPlan:
    """The entry of one plan in the cache, whether it is there or not."""

    path: Path
    material: str
    content: str
    """`content_digest` of the file."""
    stamp: tuple[int, ...]
    """The file's stamp from before its digest was taken."""
    recent: bool
    """Whether it had been written shortly before that (`RECENT`)."""
    cache: KernelCache
    target: Target

    def load(self, threads: int | None, started: float, ordinal: int = 0) -> Plan | None:
        """The plan, or None. started: when the work on it began, for the report. ordinal: which
        GPU. Raises
        InvalidModelError where the file changes meanwhile, OutOfMemoryError, DeviceError."""
        found = self.cache.get_bytes(self.material)
        if found is None:
            return None
        header, payload = found
        try:
            constants = self._constants(header["constants"], payload)
            if constants is None:
                return None

            def blob(span: Sequence[int]) -> memoryview:
                return blob_of(payload, span)

            program = program_from_record(header["program"], blob, constants)
            report = Report.from_record(header["report"])
            hints = {str(k): (int(low), int(high)) for k, (low, high) in header["hints"].items()}
        except (*MALFORMED, OSError) as error:
            self._check_unchanged()
            _log.warning("a stored plan of %s makes no sense (%r): compiling", self.path, error)
            return None
        self._check_unchanged()
        check_memory(program)
        if not program.target.is_cuda:
            recall(self.cache, runtime_ir("x86_64"))
        report.cache_hits = len({kernel.code for kernel in _kernels(program)})
        report.compile_s = time.perf_counter() - started
        logging.getLogger("fuser.compile").info(
            "%s: the plan is from the cache, %.2f s", self.path.name, report.compile_s
        )
        return Plan(
            program,
            threads=plan_threads(threads),
            device=ordinal,
            report=report,
            hints=hints,
        )

    def _constants(
        self, records: Sequence[Mapping[str, Any]], payload: memoryview
    ) -> list[np.ndarray] | None:
        """The constants of a plan, None where one is lost."""

        def get(record: Mapping[str, Any]) -> np.ndarray | None:
            if "source" in record:
                return Source.from_record(record["source"]).read(file.fileno())
            if "blob" in record:
                held: memoryview | None = blob_of(payload, record["blob"])
            else:
                entry = self.cache.get_bytes(_content_material(record["content"]))
                held = entry and entry[1]
            if held is None:
                return None
            flat = np.frombuffer(held, np.uint8).view(BY_NAME[record["dtype"]].numpy)
            return flat.reshape(record["shape"])

        # The largest first, so that the threads end together.
        order = sorted(range(len(records)), key=lambda i: -int(records[i]["bytes"]))
        made: dict[int, np.ndarray | None] = {}
        with open(self.path, "rb") as file, ThreadPoolExecutor(readers()) as pool:
            made.update(zip(order, pool.map(get, (records[i] for i in order)), strict=True))
        arrays = [made[i] for i in range(len(records))]
        found = [array for array in arrays if array is not None]
        return found if len(found) == len(arrays) else None

    def save(
        self, program: Program, sources: Mapping[int, Source], report: Deferred[Report],
        hints: Mapping[str, tuple[int, int]],
    ) -> None:  # fmt: skip
        """Store a plan, unless the file has changed since its digest was taken. sources: of
        constants, by `id`."""
        computed = sum(a.nbytes for a in program.constants if id(a) not in sources)
        if computed > min(MOST_BYTES, self.cache.limit_bytes // 4) or not self._is_unchanged():
            return
        try:
            reported = dataclasses.asdict(report.get())
        except Exception as error:  # of which a compile knows nothing that nobody asked a report of
            _log.warning("the plan of %s is not stored: %r in its report", self.path, error)
            return
        blobs: list[bytes] = []

        def blob(data: bytes) -> list[int]:
            start = sum(align(len(item), 64) for item in blobs)
            blobs.append(data)
            return [start, len(data)]

        def constant(array: np.ndarray) -> dict[str, Any]:
            source = sources.get(id(array))
            record: dict[str, Any] = {"bytes": array.nbytes}
            if source is not None:
                return record | {"source": source.to_record()}
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            record |= {"dtype": from_numpy(array.dtype).name, "shape": list(array.shape)}
            if array.nbytes < _INLINE:
                return record | {"blob": blob(bytes(flat))}
            content = hashlib.sha256(flat).hexdigest()
            self.cache.put_bytes(_content_material(content), {}, flat)
            return record | {"content": content}

        try:
            header = {
                "program": program_record(program, blob),
                "constants": [constant(array) for array in program.constants],
                "report": reported,
                "hints": {name: list(hint) for name, hint in hints.items()},
            }
        except TypeError:
            return
        payload = b"".join(item + bytes(-len(item) % 64) for item in blobs)
        self.cache.put_bytes(self.material, header, payload)

    def _check_unchanged(self) -> None:
        """Raise InvalidModelError if the file is another one than at the start."""
        if not self._is_unchanged():
            raise InvalidModelError(
                "the file changed while it was read", where=str(self.path), hint="compile again"
            )

    def _is_unchanged(self) -> bool:
        """Whether the file is the one that the digest was taken of. The time of its last change
        tells, which nobody can set, unless it was so new then that another may have left it."""
        try:
            *stamp, changed = _stamp(self.path)
        except OSError:
            return False
        *before, last = self.stamp
        surely = changed == last and not self.recent
        return stamp == before and (surely or self._same_content())

    def _same_content(self) -> bool:
        """Whether the file is as it was, whatever its time says."""
        try:
            return content_digest(self.path, _stamp(self.path)[0]) == self.content
        except OSError:
            return False


def compile_file(
    path: Path, make: Callable[..., Plan], *, device: Device = "auto",
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None, threads: int | None = None,
    fusion: Fusing = True, precision: Precision = "model",
    progress: Callable[[str], None] = _quiet, limits: Limits | None = None, tune: bool = False,
) -> Plan:  # fmt: skip
    """The plan of a model file: from the cache, or made and stored there. With `tune` it is made
    again, and takes the place of the one before. make: compiles the file with these choices; it
    calls `keep`, if it is given, with what `StoredPlan.save` takes."""
    started = time.perf_counter()
    start_logs()
    with within(limits):
        progress("looking for the plan in the cache")
        entry = _entry(path, device, dims or {}, values or {}, threads, fusion, precision)
        plan = None
        if entry is not None and not tune:
            plan = entry.load(threads, started, parse_device(device)[1])
        if plan is None:
            if entry is not None:
                from fuser.backend import workers  # not for loading a plan

                workers.start(entry.target)  # its kernels are likely new

            def keep(*found: Any) -> None:
                # Tuning changes what decides plans.
                here = _entry(path, device, dims or {}, values or {}, threads, fusion, precision)
                if here is not None:
                    here.save(*found)

            plan = make(
                path, device=device, dims=dims, values=values, threads=threads, fusion=fusion,
                precision=precision, progress=progress, started=started,
                keep=None if entry is None else keep if tune else entry.save, tune=tune,
            )  # fmt: skip
        return plan


def _entry(
    path: Path, device: Device, dims: Mapping[str, int], values: Mapping[str, np.ndarray],
    threads: int | None, fusion: Fusing, precision: Precision,
) -> StoredPlan | None:  # fmt: skip
    """The entry of a plan in the cache; None where there can be none. Raises DeviceError."""
    config = Config.from_environment()
    if not config.cache or config.dump or config.verify or not path.is_file():
        return None
    cache = KernelCache(config.cache_dir, quiet=True)  # compiling kernels says what is wrong
    if not cache.enabled:
        choose_target(device, threads)
        return None
    try:
        stamp = _stamp(path)
        recent = abs(time.time_ns() - stamp[-1]) < RECENT
        with ThreadPoolExecutor(1) as aside:
            digest = aside.submit(content_digest, path, stamp[0])
            # Modules are imported and read meanwhile.
            target, named = choose_target(device, threads), versions()
        content = digest.result()
        choices = {
            "dims": {name: int(size) for name, size in sorted(dims.items())},
            "values": {name: _value(array) for name, array in sorted(values.items())},
            "fusion": choice(fusion),
            "precision": precision,
            "numerics": str(numerics.current()),
            "nodes": current().nodes,
            "kernel_seconds": current().kernel_seconds,
        }
        head = {"plan": 1, "name": path.name, "model": content, "choices": choices}
        head |= {"versions": named, "target": dataclasses.asdict(target)}
        head |= {"schedules": remembered_schedules(cache)}
        material = json.dumps(head, sort_keys=True)
    except (OSError, TypeError, ValueError):
        return None  # compiling says what is wrong
    return StoredPlan(path, material, content, stamp, recent, cache, target)


SCHEDULES = "schedules are remembered"
"""The key material of the entry that says that tuning remembers schedules (pipeline/tuning.py)."""


def remembered_schedules(cache: KernelCache) -> str:
    """A name of what tuning remembers, another one whenever there is more; "" for nothing."""
    if not cache.holds(SCHEDULES):
        return ""
    found = cache.get_bytes(SCHEDULES)
    if found is None:  # damaged: what it stands for is still there
        note_schedules(cache)
        found = cache.get_bytes(SCHEDULES)
    return "" if found is None else str(found[0].get("name", ""))


def note_schedules(cache: KernelCache) -> None:
    """Say that tuning remembers more than before: plans that were stored without it are no more."""
    cache.put_bytes(SCHEDULES, {"name": secrets.token_hex(8)}, b"")


def check_memory(program: Program) -> None:
    """Raise OutOfMemoryError for a program beyond the limits."""
    if not program.target.is_cuda or current().bytes:
        ends = sum(spec.bytes for spec in (*program.inputs, *program.outputs))
        check_bytes(ends, "the inputs and outputs together")
        check_bytes(program.peak_memory_bytes, "the plan")


def content_digest(path: Path, size: int) -> str:
    """`runtime.source.content_digest` of a file at a path, by the fastest cryptographic hash there
    is, with its name. Raises OSError."""
    name, function = _hash_function()
    with open(path, "rb", buffering=0) as file:
        return f"{name}:{digest_of(file.fileno(), size, function)}"


@functools.cache
def _hash_function() -> tuple[str, HashFunction]:
    """BLAKE3 (6 GB/s a core) where the package is installed, else SHA-256 (2 GB/s)."""
    try:
        return "blake3", importlib.import_module("blake3").blake3
    except ImportError:
        return "sha256", hashlib.sha256


@functools.cache
def versions() -> dict[str, str]:
    """The versions of all that decides a plan; `source` is a hash of fuser itself."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.glob("**/*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    names = ("llvmlite", "numpy", "onnx", "ml_dtypes")
    found = {name: metadata.version(name) for name in names}
    return found | {"source": digest.hexdigest(), "python": platform.python_version()}


def _kernels(program: Program) -> list[Any]:
    return [launch.kernel for launch in program.launches]


def _value(array: Any) -> list[Any]:
    held = np.ascontiguousarray(array)
    return [held.dtype.str, list(held.shape), hashlib.sha256(held.tobytes()).hexdigest()]


def _content_material(content: str) -> str:
    return f"constant {content}"


def _stamp(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return (
        status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev, status.st_ctime_ns
    )  # fmt: skip
