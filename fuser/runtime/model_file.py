"""Weights of a plan file that stay in the model's file.

A plan file names the model by its path from the plan's folder, with its size and a SHA-256 of its
content, and the views of it that kernels read, each with how it is packed. A load reads the whole
model once to compare it, and the views; nothing of it stays mapped, so that the model may be
replaced once the plan is loaded. A view has a seal, as code has (store.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fuser.dtypes import BY_NAME, from_numpy
from fuser.errors import InvalidModelError, UsageError
from fuser.runtime.source import Source, content_digest, readers


class ModelWriter:
    """The model's half of a plan file that is written. sources: of constants, by `id`. Raises
    UsageError where the model cannot be read."""

    def __init__(self, model: Path, plan: Path, sources: Mapping[int, Source]) -> None:
        self._sources = dict(sources)
        self.views: list[dict[str, Any]] = []
        self.bytes = 0
        """Of constants that are views."""
        try:
            with open(model, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                self._digest = content_digest(file.fileno(), size)
        except OSError as error:
            raise UsageError(f"cannot read {model}: {error.strerror}") from error
        folder = os.path.dirname(os.path.realpath(plan))
        name = os.path.relpath(os.path.realpath(model), folder)
        self.record = {"name": Path(name).as_posix(), "size": size, "digest": self._digest}

    def view(self, array: np.ndarray) -> int | None:
        """The number of the view that a constant is; None where it is none."""
        source = self._sources.get(id(array))
        if source is None:
            return None
        record = {
            "source": source.to_record(),
            "dtype": from_numpy(array.dtype).name,
            "shape": list(array.shape),
        }
        record["seal"] = _seal(record, self._digest)
        if record not in self.views:
            self.views.append(record)
            self.bytes += array.nbytes
        return self.views.index(record)


class ModelReader:
    """The model's half of a plan file that was read. where: what errors call the plan. plan: its
    path, None for bytes. given: where the caller says that the model is."""

    def __init__(
        self, manifest: Mapping[str, Any], where: str, plan: Path | None, given: Path | None
    ) -> None:
        self._record, self._views = manifest["model"], manifest["views"]
        self._where, self._plan, self._given = where, plan, given

    def shapes(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Arrays like the views, all zeros that take no memory. Raises one of MALFORMED."""
        found = []
        for number in numbers:
            record = self._checked(number)
            shape, dtype = tuple(record["shape"]), BY_NAME[record["dtype"]].numpy
            found.append(np.broadcast_to(np.zeros((), dtype), shape))
        return found

    def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """The views, packed. Raises UsageError where there is no model, InvalidModelError where it
        is another one, or one of MALFORMED."""
        sources = [Source.from_record(self._checked(number)["source"]) for number in numbers]
        path = self._find()
        try:
            with open(path, "rb", buffering=0) as file:
                before = self._check(file.fileno(), path)
                # The largest first, so that the threads end together.
                order = sorted(range(len(sources)), key=lambda i: -_size(sources[i]))
                with ThreadPoolExecutor(readers()) as pool:
                    made = pool.map(lambda i: sources[i].read(file.fileno()), order)
                    found = dict(zip(order, made, strict=True))
                if _stamp(os.fstat(file.fileno())) != before:
                    raise self._changed(path, "it was written to while it was read")
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        arrays = [found[i] for i in range(len(sources))]
        for number, array in zip(numbers, arrays, strict=True):
            record = self._views[number]
            if [from_numpy(array.dtype).name, list(array.shape)] != [
                record["dtype"], record["shape"],
            ]:  # fmt: skip
                raise ValueError("a view of the model is of another shape")
        return arrays

    def _checked(self, number: int) -> Mapping[str, Any]:
        """A view as it was written. Raises one of MALFORMED."""
        if not 0 <= number < len(self._views):
            raise ValueError(f"there is no view {number} of the model")
        record: Mapping[str, Any] = self._views[number]
        told = {key: record[key] for key in ("source", "dtype", "shape")}
        if record["seal"] != _seal(told, self._record["digest"]):
            raise ValueError("a view of the model is not as it was sealed")
        return record

    def _find(self) -> Path:
        """Where the model is. Raises UsageError."""
        name = str(self._record["name"])
        if self._given is not None:
            places = [self._given]
        elif self._plan is not None:
            folder = Path(os.path.realpath(self._plan)).parent
            places = [folder / name, folder / Path(name).name]
        else:
            places = []
        for place in places:
            try:
                if stat.S_ISREG(os.stat(place).st_mode):
                    return place
            except (OSError, ValueError):
                continue
        looked = f", which is not at {places[0]}" if places else ""
        raise UsageError(
            f"the weights of the plan {self._where} are in the model {Path(name).name}{looked}",
            hint="put it beside the plan, or say where it is: weights=, --weights",
        )

    def _check(self, descriptor: int, path: Path) -> tuple[int, ...]:
        """Raise InvalidModelError for another model; what tells that it was written to since."""
        before = os.fstat(descriptor)
        size = self._record["size"]
        if before.st_size != size:
            raise self._changed(path, f"it has {before.st_size} bytes, and that had {size}")
        if content_digest(descriptor, before.st_size) != self._record["digest"]:
            raise self._changed(path, "its content has another SHA-256")
        return _stamp(before)

    def _changed(self, path: Path, why: str) -> InvalidModelError:
        return InvalidModelError(
            f"{path} is not the model that the plan was compiled from: {why}", where=self._where,
            hint="bring that file back, or compile this one again",
        )  # fmt: skip


def _seal(record: Mapping[str, Any], digest: str) -> str:
    text = json.dumps([record, digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _size(source: Source) -> int:
    return int(np.prod(source.shape, dtype=np.int64)) * source.dtype.bytes


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
