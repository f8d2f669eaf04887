"""Checking what a caller feeds: every mistake named, with what was expected and what came."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuser.errors import FeedError, nearest
from fuser.runtime.memory import ALIGNED, C_CONTIGUOUS
from fuser.runtime.program import TensorSpec


def check_feeds(specs: Sequence[TensorSpec], feeds: Mapping[str, Any]) -> list[np.ndarray]:
    """The feeds as C-contiguous arrays in native byte order, in the order of specs.

    Arrays must have the input's dtype and shape; strides, alignment and byte order are put right,
    and nothing is copied that is right. Arrays of other libraries are read by their own protocols
    (`host_array`). Python scalars and lists take the input's dtype where their values fit it.
    Raises FeedError for a missing, unknown or unfitting feed.
    """
    arrays = _as_they_are(specs, feeds)
    if arrays is not None:
        return arrays
    check_names(specs, feeds)
    return [_convert(spec, feeds[spec.name]) for spec in specs]


def _as_they_are(specs: Sequence[TensorSpec], feeds: Mapping[str, Any]) -> list[np.ndarray] | None:
    """The feeds where they are right as they come, which takes a third of the time."""
    if type(feeds) is not dict or len(feeds) != len(specs):
        return None
    arrays = []
    for spec in specs:
        array = feeds.get(spec.name)
        if (
            type(array) is not np.ndarray
            or array.dtype != spec.dtype.numpy
            or array.shape != spec.shape
            or array.flags.num & _READY != _READY
        ):
            return None
        arrays.append(array)
    return arrays


_READY = C_CONTIGUOUS | ALIGNED


def check_names(specs: Sequence[TensorSpec], feeds: Mapping[str, Any]) -> None:
    """Raise FeedError unless there is a feed for every input and no other."""
    if not isinstance(feeds, Mapping):
        raise FeedError(
            f"feeds are a {type(feeds).__name__}", hint="pass a dict of input name -> array"
        )
    names = [spec.name for spec in specs]
    unknown = [name for name in feeds if name not in names]
    missing = [spec for spec in specs if spec.name not in feeds]
    if unknown:
        hint = nearest(str(unknown[0]), names, "the inputs are")
        raise FeedError(f"unknown input {unknown[0]!r}", hint=hint)
    if missing:
        wanted = ", ".join(f"{spec.name}: {spec}" for spec in missing)
        raise FeedError(f"missing feeds: {wanted}", hint="feed every input of the model")


def _convert(spec: TensorSpec, feed: Any) -> np.ndarray:
    dtype = spec.dtype.numpy
    array = feed if isinstance(feed, np.ndarray) else _as_array(spec, feed)
    if dtype.kind == "V" and array.dtype == np.dtype((np.void, dtype.itemsize)):
        array = array.view(dtype)  # what np.load makes of a type that NumPy does not know
    if array.dtype != dtype:
        if array.dtype.newbyteorder("=") != dtype:
            name = str(array.dtype)
            raise FeedError(
                f"input {spec.name!r} is {spec}, the feed has dtype {name}",
                hint=f"convert it: array.astype({dtype.name!r})",
            )
        array = array.astype(dtype)
    if array.shape != spec.shape:
        raise FeedError(
            f"input {spec.name!r} is {spec}, the feed has shape {list(array.shape)}",
            hint=_shape_hint(spec, array),
        )
    if not array.flags.aligned:
        return array.copy()
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _shape_hint(spec: TensorSpec, array: np.ndarray) -> str:
    if array.ndim != len(spec.shape):
        return f"it needs {len(spec.shape)} axes, not {array.ndim}"
    if order := turned(array.shape, spec.shape):
        return order
    if array.size == spec.size:
        return f"the sizes agree: array.reshape({list(spec.shape)})?"
    axes = [i for i, (a, b) in enumerate(zip(array.shape, spec.shape, strict=True)) if a != b]
    return f"axis {axes[0]} differs; pass {list(spec.shape)}, or compile for other dims"


def turned(shape: Sequence[int], wanted: Sequence[int | None]) -> str:
    """A hint for an array whose axes stand in another order than wanted; None is an open size. ""
    where no order would do: a reshape would mix the axes up."""
    left = list(range(len(shape)))
    if len(shape) != len(wanted):
        return ""
    found: dict[int, int] = {}
    for place, size in sorted(enumerate(wanted), key=lambda item: item[1] is None):
        axis = next((axis for axis in left if size in (None, shape[axis])), None)
        if axis is None:
            return ""
        left.remove(axis)
        found[place] = axis
    order = [found[place] for place in range(len(wanted))]
    if order == sorted(order):
        return ""
    return f"the axes are in another order: array.transpose({', '.join(map(str, order))})?"


def _as_array(spec: TensorSpec, feed: Any) -> np.ndarray:
    """What is not an ndarray: array-likes by their own protocol, Python numbers and lists."""
    try:
        array = host_array(feed)
    except FeedError as error:
        raise FeedError(
            f"input {spec.name!r} is {spec}, the feed is {error.what}", hint=error.hint
        ) from error
    except Exception as error:  # foreign protocols raise what they like
        raise FeedError(
            f"input {spec.name!r} is {spec}, the feed ({type(feed).__name__}) is no array: {error}",
            hint="pass a NumPy array",
        ) from error
    typed = hasattr(feed, "dtype") or hasattr(feed, "__dlpack__")
    if typed or array.dtype == spec.dtype.numpy:
        return array
    if array.dtype == object or array.dtype.kind not in "biuf":
        kind = type(feed).__name__
        raise FeedError(
            f"input {spec.name!r} is {spec}, the feed ({kind}) is no array of numbers",
            hint="pass a NumPy array",
        )
    return _fit(spec, array)


def host_array(feed: Any) -> np.ndarray:
    """An array-like as a NumPy array, without a copy where its protocol allows that.

    PyTorch tensors have protocols of their own kind: NumPy cannot read bfloat16 or 8-bit floats by
    DLPack, so those cross as integers of the same size. Raises FeedError for a tensor that is not
    in host memory, and what a foreign protocol raises.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(feed, torch.Tensor):
        return _torch_array(torch, feed)
    on_gpu = hasattr(feed, "__cuda_array_interface__") and not hasattr(feed, "__dlpack__")
    if on_gpu and not hasattr(feed, "__array__"):
        raise FeedError(
            f"a {type(feed).__name__} in GPU memory",
            hint="copy it to the host, or use run_device()",
        )
    if hasattr(feed, "__dlpack__") and not hasattr(feed, "__array__"):
        from fuser.runtime.dlpack import host_view  # a load should not wait for it

        return host_view(feed)
    return np.asarray(feed)


def _torch_array(torch: Any, feed: Any) -> np.ndarray:
    tensor = feed.detach()
    if tensor.device.type != "cpu":
        raise FeedError(
            f"a tensor on {tensor.device}", hint="pass tensor.cpu(), or use run_device()"
        )
    tensor = tensor.resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name != "bfloat16" and not name.startswith("float8"):
        return np.asarray(tensor.numpy())
    import ml_dtypes

    raw = tensor.view(torch.int16 if name == "bfloat16" else torch.uint8).numpy()
    return np.asarray(raw).view(getattr(ml_dtypes, name))


def _fit(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """Python numbers in the input's dtype, if nothing but precision is lost."""
    dtype = spec.dtype
    if not array.size:
        return array.astype(dtype.numpy)
    fits = (
        dtype.is_float
        or (dtype.is_integer and array.dtype.kind in "iu" and _in_range(array, spec))
        or (dtype.kind == "bool" and array.dtype.kind == "b")
    )
    if not fits:
        raise FeedError(
            f"input {spec.name!r} is {spec}, the feed's values ({array.dtype}) do not fit",
            hint=f"pass an array of dtype {dtype.numpy.name}",
        )
    return array.astype(dtype.numpy)


def _in_range(array: np.ndarray, spec: TensorSpec) -> bool:
    return bool(spec.dtype.lowest <= int(array.min()) and int(array.max()) <= spec.dtype.highest)
