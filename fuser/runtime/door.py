"""Making builtin functions of Python from native code, and whether this Python allows it.

The code reads objects as CPython lays them out on 64-bit machines with a global interpreter lock;
the fields of NumPy's arrays are compared with what NumPy says of some arrays first.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from types import CellType
from typing import Any

import numpy as np

from fuser.runtime import native_calls, native_door, native_front, native_guards
from fuser.runtime.jit import Linked, link_native, runtime_library
from fuser.runtime.native_words import DOOR_WORDS

METH_KEYWORDS, METH_O, METH_FASTCALL = 0x2, 0x8, 0x80
FLAGS = {
    "fuser_door": METH_FASTCALL, "fuser_bind": METH_O,
    "fuser_launch": METH_FASTCALL | METH_KEYWORDS,
    "fuser_same": METH_O, "fuser_replay": METH_O,
}  # fmt: skip


class Record(np.ndarray[Any, np.dtype[np.int64]]):
    """The words of a door. keep: what they point at. The array's memory is its own."""

    keep: list[Any]


def new_record(words: int = DOOR_WORDS) -> Record:
    record = np.zeros(words, np.int64).view(Record)
    record.keep = []
    return record


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    )


@functools.cache
def problem() -> str:
    """Why there can be no native door; "" where there can."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this is no CPython with a global interpreter lock"
    if ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        return "this is no little-endian 64-bit machine"
    cell = CellType(sys)
    if object.__basicsize__ != 16 or _word(id(cell) + native_front.CELL_OBJECT) != id(sys):
        return "objects of this Python begin otherwise"
    return "" if _numpy_fits() and _element_size() else "NumPy's arrays are laid out otherwise"


def _numpy_fits() -> bool:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    frozen = np.zeros(3, np.int16)
    frozen.flags.writeable = False
    guards = native_guards
    for array in (whole, whole[::-1, 2:], frozen, whole.reshape(2, 2, 6)[1], np.zeros(())):
        at = id(array)
        shape, strides = (_word(at + i) for i in (guards.NUMPY_SHAPE, guards.NUMPY_STRIDES))
        flags = ctypes.c_int32.from_address(at + guards.NUMPY_FLAGS).value
        told = (
            _word(at + guards.NUMPY_DATA) == array.__array_interface__["data"][0]
            and ctypes.c_int32.from_address(at + guards.NUMPY_RANK).value == array.ndim
            and tuple(_word(shape + 8 * i, True) for i in range(array.ndim)) == array.shape
            and tuple(_word(strides + 8 * i, True) for i in range(array.ndim)) == array.strides
            and _word(at + guards.NUMPY_BASE) == (0 if array.base is None else id(array.base))
            and _word(at + guards.NUMPY_DTYPE) == id(array.dtype)
            and bool(flags & guards.NUMPY_WRITEABLE) == array.flags.writeable
        )
        if not told:
            return False
    return True


def _element_size() -> tuple[int, str] | None:
    """Where a descriptor keeps the size of an element: NumPy 2 and NumPy 1."""
    dtypes = [np.dtype(name) for name in ("f4", "f8", "i2", "u1", "c16", "S13")]
    for at, name, kind in ((40, "i64", ctypes.c_int64), (32, "i32", ctypes.c_int32)):
        if all(kind.from_address(id(dtype) + at).value == dtype.itemsize for dtype in dtypes):
            return at, name
    return None


def _word(address: int, signed: bool = False) -> int:
    kind = ctypes.c_int64 if signed else ctypes.c_uint64
    return kind.from_address(address).value


def clock() -> int:
    """The address of the function `clock_gettime`, by which native launches are measured."""
    return _address(ctypes.CDLL(None).clock_gettime)


@functools.cache
def _library() -> Linked:
    found = _element_size()
    assert found is not None
    data, symbols = _of_python(native_door.DATA_IMPORTS, native_door.IMPORTS)
    symbols["clock_gettime"] = clock()
    symbols["fuser_spread"] = runtime_library()["fuser_spread"]
    text = native_door.door_ir(*found, data)
    return link_native(text, symbols, native_door.EXPORTS)


@functools.cache
def _calls_library() -> Linked:
    data, symbols = _of_python(native_calls.DATA_IMPORTS, native_calls.IMPORTS)
    symbols["memcmp"] = _address(ctypes.CDLL(None).memcmp)
    return link_native(native_calls.calls_ir(data), symbols, native_calls.EXPORTS)


def _of_python(
    data: Iterable[str], functions: Iterable[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Where Python has these variables, and these functions."""
    python = ctypes.pythonapi
    return (
        {name: ctypes.addressof(ctypes.c_char.in_dll(python, name)) for name in data},
        {name: _address(getattr(python, name)) for name in functions},
    )


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def _method(name: str) -> _MethodDef:
    library = _calls_library() if name in native_calls.EXPORTS else _library()
    return _MethodDef(name.encode(), library[name], FLAGS[name], None)


def method(name: str) -> int:
    """The address of a definition of a builtin function; it is kept for ever."""
    return ctypes.addressof(_method(name))


def make_door(record: Record, name: str = "fuser_door") -> Any:
    """A builtin function whose self is the record."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return make(method(name), record, None)


def fill(words: Sequence[int]) -> np.ndarray:
    """Words as memory."""
    return np.array([word if word < 1 << 63 else word - (1 << 64) for word in words], np.int64)
