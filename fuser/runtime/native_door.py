"""The native half of a steady launch, as LLVM IR: from Python arguments to a running kernel.

`fuser_door` is a builtin function of Python (METH_FASTCALL) whose self is an array of the words of
`Door`. It is called with the tuple of arguments and that of the grid. It answers True when it has
launched the kernel, and False, having done nothing, when something is not as the record says.
`fuser.runtime.fast_launch` writes the records and says why what they hold is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuser.backend.function import Module
from fuser.backend.text import Reg, integer
from fuser.runtime import native_front
from fuser.runtime.native_formulas import write_formulas
from fuser.runtime.native_guards import NUMPY_DATA, write_guards
from fuser.runtime.native_starts import write_starts
from fuser.runtime.native_words import (
    GRID_VALUES,
    LAUNCH_AT,
    MOST,
    NULL,
    PARAM_WORDS,
    RESULTS,
    Door,
    Kind,
    Param,
    Writer,
    symbol,
)

IMPORTS = (
    "PyTuple_Size", "PyTuple_GetItem", "PyLong_AsLongLongAndOverflow", "PyFloat_AsDouble",
    "PyObject_RichCompareBool", "PyType_IsSubtype", "PyObject_CallOneArg",
    "PyLong_FromLong", "PyLong_AsVoidPtr", "PyEval_SaveThread", "PyEval_RestoreThread",
    "PyErr_Occurred", "PyErr_Clear", "Py_IncRef", "Py_DecRef", *native_front.IMPORTS,
)  # fmt: skip
"""Functions of Python."""
DATA_IMPORTS = (
    "PyFloat_Type", "PyTuple_Type", "PyLong_Type", "PyUnicode_Type", "_Py_TrueStruct",
    "_Py_FalseStruct", *native_front.DATA_IMPORTS,
)  # fmt: skip
"""Objects of Python."""
EXPORTS = ("fuser_door", *native_front.EXPORTS)

_DECLARATIONS = """
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare double @PyFloat_AsDouble(ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i32 @clock_gettime(i32, ptr)
declare zeroext i1 @fuser_spread(ptr, ptr, ptr, i64, i64, i64, ptr, i64)
"""


def door_ir(elsize_at: int, elsize_type: str, data: Mapping[str, int]) -> str:
    """The text. elsize_at, elsize_type: where NumPy's descriptors keep the size of an element.
    data: the addresses of DATA_IMPORTS."""
    module = Module()
    write_guards(module, elsize_at, elsize_type)
    write_formulas(module)
    _write_arguments(module)
    _write_overlaps(module)
    write_starts(module)
    _write_extents(module)
    _write_attempt(module)
    _write_door(module)
    native_front.write_front(module)
    text = str(module)
    for name, address in data.items():  # may be farther away than a reference to data reaches
        text = text.replace(f"@{name}", f"inttoptr (i64 {address} to ptr)")
    return _DECLARATIONS + native_front.DECLARATIONS + text


def _write_arguments(module: Module) -> None:
    """door, arguments, values, numbers, ranges -> whether every argument is as its record says;
    ranges: (address, start, end of the storage) of each."""
    f = Writer(module, "arguments", "i1", *["ptr"] * 5)
    door, given, values, numbers, ranges = f.args
    params = f.word(door, Door.PARAMS, "ptr")

    def one(i: Reg, _: list[Reg]) -> list[Reg]:
        item = f.load("ptr", f.gep(given, i, "ptr"), 8)
        param = f.gep(params, f.mul(i, 8 * PARAM_WORDS))
        span = f.gep(ranges, f.mul(i, 24))
        value = f.gep(values, i, "i64")
        f.store(integer(0), value, 8)
        f.store(integer(0), f.gep(span, 8), 8)
        f.store(integer(0), f.gep(span, 16), 8)

        def taken(name: str, *args: Reg) -> Callable[[], None]:
            return lambda: f.need(f.call("i1", name, *args))

        def array(name: str, *args: Reg) -> Callable[[], None]:
            def case() -> None:
                f.need(f.call("i1", name, *args))
                address = f.load("i64", span, 8)
                f.need(f.call("i1", "class_fits", param, address))
                ahead = f.sub(f.word(span, 2), address)
                f.need(f.icmp("sle", ahead, f.word(param, Param.MOST_BYTES)))
                # for formulas of what the launch touches
                f.store(ahead, value, 8)
                f.store(f.sub(address, f.word(span, 1)), f.gep(value, 8 * MOST), 8)

            return case

        cases = {
            Kind.CONSTANT: taken("take_constant", item, param),
            Kind.INTEGER: taken("take_integer", item, param, value, numbers),
            Kind.FLOAT: taken("take_float", item, param, numbers),
            Kind.BOOL: taken("take_bool", item, param, numbers),
            Kind.NUMPY: array("take_numpy", item, param, span),
            Kind.TORCH: array("take_torch", door, item, param, span),
        }
        f.switch(f.word(param, Param.KIND), [cases[kind] for kind in Kind])
        return []

    f.loop(integer(0), f.word(door, Door.COUNT), 1, [], one)
    f.finish(integer(1, "i1"))


def _write_overlaps(module: Module) -> None:
    """door, ranges -> whether just those storages overlap that did when the kernel was chosen."""
    f = Writer(module, "overlaps", "i1", "ptr", "ptr")
    door, ranges = f.args
    params = f.word(door, Door.PARAMS, "ptr")

    def one(i: Reg, _: list[Reg]) -> list[Reg]:
        span = f.gep(ranges, f.mul(i, 24))
        start, end = f.word(span, 1), f.word(span, 2)

        def other(j: Reg, carried: list[Reg]) -> list[Reg]:
            before = f.gep(ranges, f.mul(j, 24))
            first, last = f.word(before, 1), f.word(before, 2)
            meet = f.both(
                f.icmp("ult", first, end), f.icmp("ult", start, last),
                f.icmp("ult", start, end), f.icmp("ult", first, last),
            )  # fmt: skip
            bit = f.binary("shl", f.convert("zext", meet, "i64"), j)
            return [f.binary("or", carried[0], bit)]

        (shares,) = f.loop(integer(0), i, 1, [integer(0)], other)
        param = f.gep(params, f.mul(i, 8 * PARAM_WORDS))
        f.need(f.icmp("eq", shares, f.word(param, Param.SHARES)))
        return []

    f.loop(integer(0), f.word(door, Door.COUNT), 1, [], one)
    f.finish(integer(1, "i1"))


def _write_extents(module: Module) -> None:
    """grid, place -> whether it is a number or a tuple of 1 to 3, none of them negative; axes that
    are left out have 1."""
    f = Writer(module, "extents", "i1", "ptr", "ptr")
    grid, place = f.args
    for i in range(1, GRID_VALUES):
        f.store(integer(1), f.gep(place, 8 * i), 8)

    def extent(item: Reg, to: Reg) -> None:
        f.need(f.call("i1", "integer", item, to))
        f.need(f.icmp("sge", f.load("i64", to, 8), 0))

    def of_number() -> list[Reg]:
        extent(grid, place)
        return []

    def of_tuple() -> list[Reg]:
        f.need(f.icmp("eq", f.field(grid, 8), symbol("PyTuple_Type")))
        rank = f.call("i64", "PyTuple_Size", grid)
        f.need(f.both(f.icmp("sge", rank, 1), f.icmp("sle", rank, GRID_VALUES)))

        def one(i: Reg, _: list[Reg]) -> list[Reg]:
            extent(f.call("ptr", "PyTuple_GetItem", grid, i), f.gep(place, i, "i64"))
            return []

        f.loop(integer(0), rank, 1, [], one)
        return []

    f.when(f.icmp("eq", f.field(grid, 8), symbol("PyLong_Type")), of_number, of_tuple)
    f.finish(integer(1, "i1"))


def _write_attempt(module: Module) -> None:
    """door, arguments, their count, grid -> 1: launched, 0: refused, -1: Python's error is set."""
    f = Writer(module, "attempt", "i64", "ptr", "ptr", "i64", "ptr")
    door, args, count, grid = f.args
    values, numbers = f.room(GRID_VALUES + 2 * MOST), f.room(RESULTS, 64)
    buffers, ranges = f.room(MOST + 2), f.room(3 * MOST)
    f.need(f.icmp("eq", count, f.word(door, Door.COUNT)))
    for i in range(GRID_VALUES):
        f.store(f.word(grid, i), f.gep(values, 8 * i), 8)
    rest = f.gep(values, 8 * GRID_VALUES)
    f.need(f.call("i1", "arguments", door, args, rest, numbers, ranges))
    f.need(f.call("i1", "overlaps", door, ranges))
    f.need(f.call("i1", "formulas", f.word(door, Door.CODE, "ptr"), values, numbers))

    listed = f.word(door, Door.BUFFER_ARGUMENTS, "ptr")

    def place(i: Reg, _: list[Reg]) -> list[Reg]:
        argument = f.load("i64", f.gep(listed, i, "i64"), 8)
        pointer = f.load("i64", f.gep(ranges, f.mul(argument, 24)), 8)
        f.store(pointer, f.gep(buffers, i, "i64"), 8)
        return []

    f.loop(integer(0), f.word(door, Door.BUFFERS), 1, [], place)

    def on_cpu() -> list[Reg]:
        # behind the buffers the address of the numbers
        f.store(numbers, f.gep(buffers, f.word(door, Door.BUFFERS), "ptr"), 8)
        programs = f.word(values, 0)
        for i in range(1, GRID_VALUES):
            programs = f.binary("mul", programs, f.word(values, i))
        some = f.icmp("sgt", programs, 0)
        return f.when(
            some, lambda: [f.call("i64", "launch_cpu", door, buffers, programs)],
            lambda: [integer(1)],
        )  # fmt: skip

    def on_gpu() -> list[Reg]:
        grid = f.gep(numbers, 8 * LAUNCH_AT)
        return [f.call("i64", "launch_cuda", door, buffers, numbers, grid)]

    (answer,) = f.when(f.icmp("eq", f.word(door, Door.CUDA), 0), on_cpu, on_gpu)
    f.finish(answer)


def _write_door(module: Module) -> None:
    f = Writer(module, "ask_door", "i64", "ptr", "ptr", "i64")
    self, given, count = f.args
    items, place = f.room(MOST), f.room(GRID_VALUES)
    f.need(f.icmp("eq", count, 2))
    args, grid = (f.word(given, i, "ptr") for i in range(2))
    for item in (args, grid):
        f.need(f.icmp("eq", f.field(item, 8), symbol("PyTuple_Type")))
    size = f.call("i64", "PyTuple_Size", args)
    f.need(f.icmp("sle", size, MOST))

    def one(i: Reg, _: list[Reg]) -> list[Reg]:
        f.store(f.call("ptr", "PyTuple_GetItem", args, i), f.gep(items, i, "ptr"), 8)
        return []

    f.loop(integer(0), size, 1, [], one)
    f.need(f.call("i1", "extents", grid, place))
    f.finish(f.call("i64", "attempt", f.field(self, NUMPY_DATA), items, size, place))

    f = Writer(module, "fuser_door", "ptr", "ptr", "ptr", "i64")
    f.linkage = ""
    answer = f.call("i64", "ask_door", *f.args)
    raised = f.icmp("slt", answer, 0)

    def truth() -> list[Reg]:
        held = f.icmp("eq", answer, 1)
        found = f.select(held, symbol("_Py_TrueStruct"), symbol("_Py_FalseStruct"))
        f.call_void("Py_IncRef", found)
        return [found]

    (result,) = f.when(raised, lambda: [NULL], truth)
    f.finish(result)
