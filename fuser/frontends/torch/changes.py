"""Noticing that a module, or a tensor that a plan holds, is not as it was when it was compiled.

What is noticed at the next call: another tensor in a module (an assigned or a registered parameter
or buffer, `module.to`, `load_state_dict(assign=True)`), another storage, dtype or shape of a tensor
(`tensor.data = ...`), every change in place that PyTorch counts (optimizers, `load_state_dict`,
`copy_` under no_grad), `train()` and `eval()` of any submodule, other numbers, strings, functions
and tensors as attributes of modules, other submodules.

What is not: writes that PyTorch itself does not count (into `tensor.data`, by NumPy, into tensors
of inference mode), values within attributes that are lists, dicts or other objects, and hooks that
are added. `refresh()` of what was compiled is for these.

All of it is one native comparison of words of memory, whatever the number of tensors
(`fuser.runtime.watch`); a Python or a PyTorch that keeps them otherwise is asked in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from fuser.frontends.torch.tensors import is_tensor, version
from fuser.runtime import door
from fuser.runtime.native_guards import TORCH_HANDLE
from fuser.runtime.torch_layout import FIRST_AT, torch_layout
from fuser.runtime.watch import Watch, dicts_tell, make_watch, version_address

_VALUES = (bool, int, float, complex, str, bytes, type(None))
"""Attributes of modules that are compared by value."""
_NOTES = ("_is_torch_compile", "_compiled_call_impl")
"""Attributes in which torch.compile notes what it has seen."""


def watch_tensors(
    constant: Sequence[Any], followed: Sequence[Any],
    objects: Sequence[tuple[int, Any]] = (), length: int = 0,
) -> Watch:  # fmt: skip
    """A watch of tensors as they are now: of constant ones the values as well.

    objects: (index, tensor) of a list or tuple of so many arguments, which it is to be called with.
    """
    tensors, layout = [*constant, *followed], torch_layout()
    if door.problem() or layout.problem:
        return _watch_slowly(lambda: _states(constant, followed), objects, length)
    implementations = [tensor._cdata for tensor in tensors]
    counters = [
        _word(tensor._cdata + layout.counter_at) for tensor in constant if not tensor.is_inference()
    ]
    groups = [
        (8, [id(tensor) + TORCH_HANDLE for tensor in tensors]),
        (layout.keys_at + 8 - FIRST_AT, [at + FIRST_AT for at in implementations]),
        (8, [counter + layout.version_at for counter in counters]),
    ]
    return make_watch(groups, tensors, objects, length)


def watch_modules(module: Any) -> Watch:
    """A watch of what modules have: tensors, submodules, attributes."""
    tables = [
        table
        for each in module.modules()
        for table in (each.__dict__, each._parameters, each._buffers, each._modules)
        if table and isinstance(table, dict)  # TorchScript has others
    ]
    if not dicts_tell():
        return _watch_slowly(lambda: module_state(module)[0], (), 0)
    return make_watch([(8, [version_address(table) for table in tables])], (module, tables))


def module_state(module: Any) -> tuple[Hashable, list[Any]]:
    """What a program is traced from, for comparison, and the objects that it names by number."""
    state: list[Hashable] = []
    named: list[Any] = []

    def name(tensor: Any) -> Hashable:
        named.append(tensor)
        return id(tensor), tuple(tensor.shape), tensor.dtype, tensor.device

    for path, each in module.named_modules():
        state.append((path, type(each), id(each)))
        named.append(each)
        for table in (each._parameters, each._buffers):
            state.append(tuple((k, None if x is None else name(x)) for k, x in table.items()))
        for key, value in each.__dict__.items():
            if key in _NOTES:
                continue
            if isinstance(value, _VALUES):
                state.append((key, type(value), repr(value)))
            elif is_tensor(value):
                state.append((key, name(value)))
            elif callable(value):
                named.append(value)
                state.append((key, id(value)))
    return tuple(state), named


def _states(constant: Iterable[Any], followed: Iterable[Any]) -> Hashable:
    """The same of tensors, in Python."""
    held = [(x, version(x)) for x in constant] + [(x, 0) for x in followed]
    return tuple((x.data_ptr(), count, x.shape, x.stride(), x.dtype) for x, count in held)


def _watch_slowly(
    look: Callable[[], Hashable], objects: Sequence[tuple[int, Any]], length: int
) -> Watch:
    before = look()

    def same(arguments: Any) -> bool:
        if objects and (
            type(arguments) not in (list, tuple)
            or len(arguments) != length
            or any(arguments[index] is not item for index, item in objects)
        ):
            return False
        return look() == before

    return same


def _word(at: int) -> int:
    return ctypes.c_uint64.from_address(at).value
