"""Tensors of PyTorch: which device they are on, and how they get to a plan and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from fuser.errors import UnsupportedError


def is_tensor(x: Any) -> bool:
    return hasattr(x, "data_ptr")


def moved_results(module: Any) -> dict[int, Any]:
    """The results of a graph that are on another kind of device than its arguments, by place."""
    nodes = list(module.graph.nodes)
    given: list[Any] = [node.meta.get("val") for node in nodes if node.op == "placeholder"]
    kinds = {x.device.type for x in given if is_tensor(x) and x.ndim}
    returned = nodes[-1].args[0]
    listed = returned if isinstance(returned, list | tuple) else [returned]
    found = {}
    for place, node in enumerate(listed):
        value: Any = getattr(node, "meta", {}).get("val")
        if len(kinds) == 1 and is_tensor(value) and value.device.type not in kinds:
            found[place] = value.device
    return found


def gpu_of(arguments: Sequence[Any]) -> Any:
    """The GPU that tensors are on, as a torch.device; None if they are in host memory. Raises
    UnsupportedError for tensors on several devices, or on one that is neither."""
    devices = {x.device for x in arguments if is_tensor(x) and (x.ndim or x.device.type != "cpu")}
    if not devices or {device.type for device in devices} == {"cpu"}:
        return None
    if len(devices) > 1 or next(iter(devices)).type != "cuda":
        names = ", ".join(sorted(map(str, devices)))
        raise UnsupportedError(f"tensors on {names}: fuser computes on the CPU or on one GPU")
    return devices.pop()


def ready(x: Any, align: int, where: Any) -> bool:
    """Whether a kernel can read a tensor as it is: row-major, at a multiple of `align` bytes.
    where: the GPU that it must be on; None: in host memory."""
    return bool(
        x.is_contiguous()
        and not x.data_ptr() % align
        and not x.is_neg()
        and (where is None or x.is_cuda)
    )


def version(tensor: Any) -> int:
    """How often a tensor was changed in place; tensors of inference mode do not count."""
    return 0 if tensor.is_inference() else int(tensor._version)


def storage_of(tensor: Any) -> int:
    """The memory that a tensor lies in: equal for views of one another."""
    return int(tensor.untyped_storage()._cdata)


def to_tensor(array: np.ndarray) -> Any:
    """A tensor in the memory of an array."""
    import torch

    array = array if array.flags.writeable else array.copy()
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
