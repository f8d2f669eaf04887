"""Feeds from files, and recorded outputs to compare with.

`-i` takes NAME=F.npy, F.npz, or a folder of input_0.pb, input_1.pb, ... as ONNX test data has it;
`--expect` takes F.npz or a folder of output_0.pb, output_1.pb, ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser.errors import FeedError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from fuser.frontends.onnx.hosted import Host
    from fuser.graph.ir import TensorType

Arrays = dict[str, np.ndarray]


def open_feeds(
    model: Path, files: Sequence[str], dims: dict[str, int], host: Host
) -> tuple[Arrays, dict[str, int]]:
    """What `-i` names for an ONNX file, and its symbolic dims: as given, else read off the feeds.
    Raises UsageError, FeedError, and what reading the model raises."""
    from fuser.frontends.onnx import model as onnx_models

    if not files:
        return {}, dims
    try:
        with onnx_models.host_named():
            opened = onnx_models.open_model(model)
            given = read_feeds(files, list(opened.inputs))
            dims = dims_of_feeds(opened.inputs, given) | dims
            opened.check(given, dims)
    except UnsupportedError:
        if host == "error":
            raise
        given = read_feeds(files, onnx_models.input_names(model))
    return given, dims


def read_feeds(arguments: Iterable[str], names: Sequence[str]) -> Arrays:
    """All `-i` arguments as one dict. `names` are the model's inputs, for folders of .pb files and
    for the examples in messages."""
    feeds: Arrays = {}
    for argument in arguments:
        name, equals, file = argument.partition("=")
        whole = Path(argument)
        if argument.endswith(".npz") and (not equals or whole.is_file()):
            feeds |= read_npz(whole)
        elif whole.is_dir():
            found = read_test_data(whole, "input", names)
            if not found:
                raise UsageError(f"-i {argument}: there is no input_0.pb in this folder")
            feeds |= found
        elif name and file.endswith(".npy"):
            feeds[name] = np.asarray(_load(Path(file)))
        else:
            what, hint = _wrong_feed(argument, names[0] if names else "x")
            raise UsageError(f"-i {argument}: {what}", hint=hint)
    return feeds


def _wrong_feed(argument: str, input: str) -> tuple[str, str]:
    """What is wrong about a `-i` that names no feed, and how it was probably meant. input: the name
    of an input, for an example."""
    name, equals, file = argument.partition("=")
    path = Path(file if equals else argument)
    forms = f"for example -i {input}=FILE.npy, -i FEEDS.npz, or -i FOLDER with input_0.pb"
    if path.suffix == ".npy":
        what = "an .npy file does not say of which input it is"
        shown = path if path.exists() else "FILE.npy"
        return (
            "there is no name before the =" if equals else what,
            f"for example -i {input}={shown}",
        )
    if not equals and not path.exists():
        return "there is no such file or folder", forms
    if not equals:
        return "a file of feeds is an .npz file", forms
    if not file:
        return "there is no file after the =", forms
    if path.suffix == ".npz" or path.is_dir():
        return "what it holds has names of its own", f"give it without one: -i {path}"
    if not path.exists():
        return f"there is no file {file!r}, and a file of one feed is an .npy file", forms
    return "a file of one feed is an .npy file", f"numpy.save makes one; then -i {name}=FILE.npy"


def read_outputs(path: Path, names: Sequence[str]) -> Arrays:
    """What `--expect` names. `names` are the outputs, for folders of .pb files."""
    if not path.is_dir():
        return read_npz(path)
    found = read_test_data(path, "output", names)
    if not found:
        raise UsageError(f"{path} has no output_0.pb")
    return found


def read_npz(path: Path) -> Arrays:
    loaded = _load(path)
    if isinstance(loaded, np.ndarray):
        raise UsageError(f"{path} holds one array without a name", hint="use an .npz file")
    try:
        return {name: loaded[name] for name in loaded.files}
    except ValueError as error:
        raise UsageError(f"{path} is not a NumPy file: {error}") from error


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {path}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a NumPy file: {error}") from error


def find_test_data(model: Path) -> Path | None:
    """The folder test_data_set_0 beside the model, if it holds data."""
    folder = model.parent / "test_data_set_0"
    return folder if any(folder.glob("*put_*.pb")) else None


def read_test_data(folder: Path, kind: str, names: Sequence[str]) -> Arrays:
    """input_*.pb or output_*.pb as arrays, by tensor name or else by position. Raises UsageError
    for a file that belongs to none of the names."""
    import onnx
    from onnx import numpy_helper

    files = {
        int(found[1]): path
        for path in folder.glob(f"{kind}_*.pb")
        if (found := re.fullmatch(rf"{kind}_(\d+)", path.stem))
    }
    arrays: Arrays = {}
    for position, path in sorted(files.items()):
        tensor = onnx.TensorProto()
        try:
            tensor.ParseFromString(path.read_bytes())
            array = numpy_helper.to_array(tensor)
        except Exception as error:  # protobuf raises its own types
            raise UsageError(f"{path} is not an ONNX tensor: {error}") from error
        by_place = names[position] if position < len(names) else None
        name = tensor.name if tensor.name in names else by_place
        if name is None or name in arrays:
            raise UsageError(
                f"{path} ({tensor.name or 'without a name'}) is no {kind} of the model",
                hint=f"the {kind}s are {', '.join(names)}",
            )
        arrays[name] = array
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
