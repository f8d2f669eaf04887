"""What native code may read of PyTorch's tensors without the interpreter.

PyTorch promises a C interface (its AOTInductor shim) that takes the address of a `Tensor`: a
pointer to its implementation, which tensor objects hold. Where they hold it, and where an
implementation holds its key set, PyTorch does not promise. Both are looked for once, and compared
with what PyTorch says of tensors of many kinds; where anything differs, `torch_layout` says so and
nothing native reads tensors.

A key set tells the device, strided, sparse or quantised memory, and views that negate, conjugate or
batch: tensors of one type with equal key sets are stored alike.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuser.runtime.native_guards import TORCH_HANDLE

LAST_KEYS_AT = 192
"""An implementation has more bytes than that, in every version since 2.0."""
FIRST_AT = 16
"""Behind the table of methods and the count of references."""
COUNTS_AT = (8, 16)
"""Of a counter: where its number may be, behind the same."""

_FUNCTIONS = {
    "data": ("aoti_torch_get_data_ptr", ctypes.c_int64),
    "dtype": ("aoti_torch_get_dtype", ctypes.c_int32),
    "device": ("aoti_torch_get_device_index", ctypes.c_int32),
    "size": ("aoti_torch_get_storage_size", ctypes.c_int64),
    "offset": ("aoti_torch_get_storage_offset", ctypes.c_int64),
}


@dataclass(frozen=True)
class TorchLayout:
    """keys_at: byte of the key set in an implementation. functions: addresses of the C interface,
    by the names above. counter_at: byte of the pointer to what counts changes in place, and
    version_at that of the count there. problem: why there is none of it."""

    keys_at: int = 0
    functions: Mapping[str, int] | None = None
    counter_at: int = 0
    version_at: int = 0
    problem: str = ""

    def ask(self, tensor: Any, what: str) -> int:
        """What the C interface says of a tensor."""
        assert self.functions is not None
        kind: Any = _FUNCTIONS[what][1]
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
        handle, found = ctypes.c_void_p(tensor._cdata), kind()
        if prototype(self.functions[what])(ctypes.addressof(handle), ctypes.addressof(found)):
            raise ValueError(f"PyTorch does not tell the {what} of a tensor")
        return int(found.value)


def key_set(tensor: Any) -> int:
    """As a number."""
    return int(sys.modules["torch"]._C._dispatch_keys(tensor).raw_repr())


@functools.cache
def torch_layout() -> TorchLayout:
    """Of the PyTorch that the program has imported."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):
        return TorchLayout(problem="PyTorch is not imported")
    try:
        return _look(torch)
    except (AttributeError, OSError, ValueError) as error:
        return TorchLayout(problem=f"this PyTorch keeps tensors in another way: {error}")


def _look(torch: Any) -> TorchLayout:
    folder = Path(torch.__file__).parent / "lib"
    library = ctypes.CDLL(str(folder / "libtorch_cpu.so"))
    functions = {
        name: ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
        for name, (symbol, _) in _FUNCTIONS.items()
    }
    tensors = _examples(torch)
    if object.__basicsize__ != TORCH_HANDLE:
        raise ValueError("objects of Python begin otherwise")
    for tensor in tensors:
        if _word(id(tensor) + TORCH_HANDLE) != tensor._cdata:
            raise ValueError("the implementation is elsewhere")
    places = [
        at
        for at in range(16, LAST_KEYS_AT + 8, 8)
        if all(_word(tensor._cdata + at) == key_set(tensor) for tensor in tensors)
    ]
    if len(places) != 1:
        raise ValueError(f"the key set may be at {places}")
    layout = TorchLayout(places[0], functions, *_look_for_versions(torch, places[0]))
    codes: dict[Any, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        told = tensor.data_ptr(), storage.nbytes(), tensor.storage_offset()
        if tuple(layout.ask(tensor, what) for what in ("data", "size", "offset")) != told:
            raise ValueError("its C interface tells other addresses")
        code = layout.ask(tensor, "dtype")
        if codes.setdefault(tensor.dtype, code) != code:
            raise ValueError("its C interface tells other dtypes")
    if len(set(codes.values())) != len(codes):
        raise ValueError("its C interface tells one number of two dtypes")
    return layout


def _look_for_versions(torch: Any, keys_at: int) -> tuple[int, int]:
    """(counter_at, version_at). A view and a detached tensor share the counter of a tensor, its
    `data` shares all but that."""
    whole, other = torch.zeros(4, 6), torch.zeros(4, 6)
    shares, apart = (whole.view(24), whole.detach()), (whole.data, other)
    places = []
    for at in range(FIRST_AT, keys_at, 8):
        word = _word(whole._cdata + at)
        same = all(_word(x._cdata + at) == word for x in shares)
        if word and same and all(_word(x._cdata + at) not in (0, word) for x in apart):
            places.append(at)
    if len(places) != 1:
        raise ValueError(f"the counter of changes may be at {places}")
    counter = _word(whole._cdata + places[0])
    fits = set(COUNTS_AT)
    for change in (0, 3, 1):
        for _ in range(change):
            whole.view(24).add_(1)
        counts = {at: ctypes.c_uint32.from_address(counter + at).value for at in COUNTS_AT}
        fits &= {at for at, count in counts.items() if count == whole._version}
    if len(fits) != 1 or whole._version < 4:
        raise ValueError("changes are counted elsewhere")
    return places[0], fits.pop()


def _examples(torch: Any) -> list[Any]:
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    names = ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    return [
        whole, whole[1:, 2:].t(), torch.nn.Parameter(whole[2:]), torch.zeros(0), torch.zeros(()),
        torch._neg_view(whole[1:]), torch.zeros(3, dtype=torch.complex64).conj(),
        *(torch.zeros(5, dtype=getattr(torch, name))[2:] for name in names),
    ]  # fmt: skip


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value
