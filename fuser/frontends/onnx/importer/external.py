"""Weights that a model keeps in files beside it: which files those may be, and reading them.

A model names them relative to its own folder. That folder and what is in it are allowed, however
the name is written, but no link that leads elsewhere. Two kinds of elsewhere are:

* the blobs of a Hugging Face cache, where the model is a snapshot of one: files of
  REPO/snapshots/REVISION are links to REPO/blobs, and those may be links to CACHE/blobs;
* the folders of `Limits.data_folders`, which the caller allows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto

from fuser.base.limits import current
from fuser.errors import InvalidModelError, SecurityError


def load_external(tensors: Sequence[TensorProto], path: Path) -> None:
    """Read the data of tensors of the model at `path` into them. Raises InvalidModelError, or
    SecurityError for a file that is not allowed."""
    for tensor, file in zip(tensors, find_external(tensors, path), strict=True):
        try:
            tensor.raw_data = _read(tensor, file)
        except (OSError, ValueError, OverflowError) as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            message = f"the external data of {tensor.name} cannot be read: {line}"
            raise InvalidModelError(message, where=str(path)) from None
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def find_external(tensors: Sequence[TensorProto], path: Path) -> list[Path]:
    """The file that has the data of each tensor, links resolved. Raises as `load_external`."""
    folder = Path(os.path.abspath(path.parent))
    allowed = [Path(root).resolve() for root in (folder, *_blobs(folder), *current().data_folders)]
    return [_find(tensor, folder, allowed, str(path)) for tensor in tensors]


def _find(tensor: TensorProto, folder: Path, allowed: Sequence[Path], where: str) -> Path:
    location = next((e.value for e in tensor.external_data if e.key == "location"), "")
    if not location:
        raise InvalidModelError(f"the external data of {tensor.name} has no location", where=where)
    if "\0" in location or len(location) > 4096:
        raise InvalidModelError(
            f"the location of the external data of {tensor.name} is no path", where=where
        )
    leaves = os.path.normpath(location).split(os.sep)[0] == os.pardir
    target = (folder / location).resolve()
    # A link inside the folder may point anywhere, so what it resolves to counts.
    if leaves or Path(location).is_absolute() or not any(map(target.is_relative_to, allowed)):
        raise SecurityError(
            f"the external data of {tensor.name} is outside of the model's folder: {location}",
            where=where,
            hint="allow a folder that links lead to with Limits(data_folders=...) or --data-folder",
        )
    if not _is_file(target):
        raise InvalidModelError(
            f"the external data file {location} of {tensor.name} is missing", where=where
        )
    return target


def _blobs(folder: Path) -> list[Path]:
    """Where the files of a snapshot in a Hugging Face cache are; [] for any other folder."""
    for revision in (folder, *folder.parents):
        if revision.parent.name == "snapshots":
            repository = revision.parent.parent
            found = [repository / "blobs"]
            if "--" in repository.name:
                found.append(repository.parent / "blobs")
            return [blobs for blobs in found if blobs.is_dir() and not blobs.is_symlink()]
    return []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that the system does not take
        return False


def _read(tensor: TensorProto, file: Path) -> bytes:
    info = onnx.external_data_helper.ExternalDataInfo(tensor)
    offset, size = int(info.offset or 0), file.stat().st_size
    length = size - offset if info.length is None else int(info.length)
    if min(offset, length) < 0 or offset + length > size:
        raise ValueError(f"{length} bytes at {offset} of a file of {size}")
    with open(file, "rb") as opened:
        opened.seek(offset)
        return opened.read(length)
