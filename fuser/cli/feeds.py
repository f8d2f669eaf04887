"""Feeds from files, and recorded outputs to compare with.

`-i` takes NAME=F.npy, F.npz, or a folder of input_0.pb, input_1.pb, ... as ONNX test data has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fuser.errors import FeedError, UsageError

if TYPE_CHECKING:
    from fuser.graph.ir import TensorType

Arrays = dict[str, np.ndarray]


def read_feeds(arguments: Iterable[str], names: Sequence[str]) -> Arrays:
    """All `-i` arguments as one dict. `names` are the model's inputs, for folders of .pb files."""
    feeds: Arrays = {}
    for argument in arguments:
        name, equals, file = argument.partition("=")
        if equals and file.endswith(".npy"):
            feeds[name] = _load(Path(file))
        elif argument.endswith(".npz"):
            feeds |= read_npz(Path(argument))
        elif Path(argument).is_dir():
            feeds |= read_test_data(Path(argument), "input", names)
        else:
            raise UsageError(
                f"cannot read the feed {argument!r}",
                hint="use NAME=FILE.npy, FILE.npz or a folder with input_0.pb",
            )
    return feeds


def read_npz(path: Path) -> Arrays:
    loaded = _load(path)
    return {name: loaded[name] for name in loaded}


def _load(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {path}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a NumPy file: {error}") from error


def find_test_data(model: Path) -> Path | None:
    """The folder test_data_set_0 beside the model, if it holds inputs."""
    folder = model.parent / "test_data_set_0"
    return folder if (folder / "input_0.pb").is_file() else None


def read_test_data(folder: Path, kind: str, names: Sequence[str]) -> Arrays:
    """input_*.pb or output_*.pb as arrays, by tensor name or else by position."""
    import onnx
    from onnx import numpy_helper

    arrays: Arrays = {}
    for path in sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(re.sub(r"\D", "", p.stem))):
        tensor = onnx.TensorProto()
        try:
            tensor.ParseFromString(path.read_bytes())
            array = numpy_helper.to_array(tensor)
        except Exception as error:  # protobuf raises its own types
            raise UsageError(f"{path} is not an ONNX tensor: {error}") from error
        position = int(re.sub(r"\D", "", path.stem))
        if tensor.name in names:
            arrays[tensor.name] = array
        elif position < len(names):
            arrays[names[position]] = array
    return arrays


def dims_of_feeds(
    signature: Mapping[str, TensorType], feeds: Mapping[str, np.ndarray]
) -> dict[str, int]:
    """Symbolic dims read off the shapes of the feeds. Raises FeedError where two feeds disagree."""
    from fuser.graph.dims import symbols_of

    dims: dict[str, int] = {}
    for name, array in feeds.items():
        type = signature.get(name)
        if type is None or len(type.shape) != array.ndim:
            continue  # the plan reports it, with what it expected
        for dim, size in zip(type.shape, array.shape, strict=True):
            symbol = str(dim)
            if symbols_of(dim) != {symbol}:
                continue  # a number, or an expression of symbols
            if dims.setdefault(symbol, size) != size:
                raise FeedError(
                    f"feed {name!r} has {symbol} = {size}, another feed has {dims[symbol]}"
                )
    return dims
