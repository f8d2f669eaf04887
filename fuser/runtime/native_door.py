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
from fuser.runtime.native_guards import write_guards
from fuser.runtime.native_starts import write_starts
from fuser.runtime.native_words import (
    GRID_VALUES,
    LAUNCH_AT,
    MOST,
    NULL,
    PARAM_WORDS,
    Door,
    Kind,
    Param,
    Writer,
    symbol,
)

IMPORTS = (
    "PyTuple_Size", "PyTuple_GetItem", "PyLong_AsLongLongAndOverflow", "PyFloat_AsDouble",
    "PyObject_RichCompareBool", "PyType_IsSubtype", "PyObject_CallNoArgs", "PyObject_CallOneArg",
    "PyLong_FromLong", "PyLong_AsVoidPtr", "PyEval_SaveThread", "PyEval_RestoreThread",
    "PyErr_Occurred", "PyErr_Clear", "Py_IncRef", "Py_DecRef",
)  # fmt: skip
"""Functions of Python."""
DATA_IMPORTS = (
    "PyFloat_Type", "PyTuple_Type", "PyLong_Type", "PyUnicode_Type", "_Py_TrueStruct",
    "_Py_FalseStruct",
)  # fmt: skip
"""Objects of Python."""
EXPORTS = ("fuser_door",)

_DECLARATIONS = """
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare double @PyFloat_AsDouble(ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
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
declare void @fuser_spread(ptr, ptr, ptr, i64, i64, i64, ptr, i64)
"""


def door_ir(elsize_at: int, elsize_type: str, data: Mapping[str, int]) -> str:
    """The text. elsize_at, elsize_type: where NumPy's descriptors keep the size of an element.
    data: the addresses of DATA_IMPORTS."""
    module = Module()
    write_guards(module, elsize_at, elsize_type)
    _write_formulas(module)
    _write_arguments(module)
    _write_overlaps(module)
    write_starts(module)
    _write_door(module)
    text = str(module)
    for name, address in data.items():  # may be farther away than a reference to data reaches
        text = text.replace(f"@{name}", f"inttoptr (i64 {address} to ptr)")
    return _DECLARATIONS + text


def _write_formulas(module: Module) -> None:
    """code, values, results -> whether every check holds and no number is too large."""
    f = Writer(module, "formulas", "i1", "ptr", "ptr", "ptr")
    code, values, results = f.args
    stack, here, above = f.room(MOST), f.room(1), f.room(1)
    f.store(code, here, 8)
    f.store(stack, above, 8)
    head, body, out = f.block("next"), f.block("op"), f.block("out")
    f.br(head)
    f.enter(head)
    at, top = f.load("ptr", here, 8), f.load("ptr", above, 8)
    op, operand = f.load("i64", at, 8), f.word(at, 1)
    f.store(f.gep(at, 16), here, 8)
    b, a = f.gep(top, -8), f.gep(top, -16)
    f.cbr(f.icmp("eq", op, 0), out, body)
    f.enter(body)

    def push(make: Callable[[], Reg]) -> Callable[[], None]:
        def case() -> None:
            f.store(make(), top, 8)
            f.store(f.gep(top, 8), above, 8)

        return case

    def two(make: Callable[[Reg, Reg], Reg]) -> Callable[[], None]:
        def case() -> None:
            value = make(f.load("i64", a, 8), f.load("i64", b, 8))
            f.store(value, a, 8)
            f.store(b, above, 8)

        return case

    def exact(name: str) -> Callable[[Reg, Reg], Reg]:
        def make(x: Reg, y: Reg) -> Reg:
            both = "{ i64, i1 }"
            pair = f.op(both, f"call {both} @llvm.{name}.with.overflow.i64({x.typed}, {y.typed})")
            over = f.op("i1", f"extractvalue {both} {pair}, 1")
            f.need(f.icmp("eq", over, 0))
            return f.op("i64", f"extractvalue {both} {pair}, 0")

        return make

    def divided(x: Reg, y: Reg) -> tuple[Reg, Reg]:
        """Quotient and rest, rounded down; only by what is above 0."""
        f.need(f.icmp("sgt", y, 0))
        rest = f.binary("srem", x, y)
        below = f.icmp("slt", rest, 0)
        quotient = f.binary("sdiv", x, y)
        return (
            f.select(below, f.add(quotient, -1), quotient), f.select(below, f.add(rest, y), rest)
        )  # fmt: skip

    def out_of() -> None:
        f.store(f.load("i64", b, 8), f.gep(results, operand, "i64"), 8)
        f.store(b, above, 8)

    def check() -> None:
        value = f.load("i64", b, 8)
        f.store(b, above, 8)
        kinds = [f.icmp(name, value, 0) for name in ("sge", "eq", "ne")]
        other = f.select(f.icmp("eq", operand, 1), kinds[1], kinds[2])
        f.need(f.select(f.icmp("eq", operand, 0), kinds[0], other))

    f.switch(
        op,
        [
            lambda: None,
            push(lambda: operand),
            push(lambda: f.load("i64", f.gep(values, operand, "i64"), 8)),
            two(exact("sadd")),
            two(exact("smul")),
            two(lambda x, y: divided(x, y)[0]),
            two(lambda x, y: divided(x, y)[1]),
            two(lambda x, y: f.intrinsic("smin", x, y)),
            two(lambda x, y: f.intrinsic("smax", x, y)),
            out_of,
            check,
        ],
    )
    f.br(head)
    f.enter(out)
    f.finish(integer(1, "i1"))


def _write_arguments(module: Module) -> None:
    """door, tuple, values, numbers, ranges -> whether every argument is as its record says; ranges:
    (address, start, end of the storage) of each."""
    f = Writer(module, "arguments", "i1", *["ptr"] * 5)
    door, given, values, numbers, ranges = f.args
    params = f.word(door, Door.PARAMS, "ptr")

    def one(i: Reg, _: list[Reg]) -> list[Reg]:
        item = f.call("ptr", "PyTuple_GetItem", given, i)
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


def _write_door(module: Module) -> None:
    f = Writer(module, "attempt", "i64", "ptr", "ptr", "i64")
    self, given, count = f.args
    values, numbers = f.room(GRID_VALUES + MOST), f.room(2 * MOST, 64)
    buffers, ranges = f.room(MOST + 2), f.room(3 * MOST)
    f.need(f.icmp("eq", count, 2))
    door = f.field(self, 16)
    tuples = [f.word(given, i, "ptr") for i in range(2)]
    for item in tuples:
        f.need(f.icmp("eq", f.field(item, 8), symbol("PyTuple_Type")))
    args, grid = tuples
    f.need(f.icmp("eq", f.call("i64", "PyTuple_Size", args), f.word(door, Door.COUNT)))
    rank = f.call("i64", "PyTuple_Size", grid)
    f.need(f.icmp("sle", rank, GRID_VALUES))
    for i in range(GRID_VALUES):
        f.store(integer(1), f.gep(values, 8 * i), 8)

    def extent(i: Reg, _: list[Reg]) -> list[Reg]:
        to = f.gep(values, i, "i64")
        f.need(f.call("i1", "integer", f.call("ptr", "PyTuple_GetItem", grid, i), to))
        f.need(f.icmp("sge", f.load("i64", to, 8), 0))
        return []

    f.loop(integer(0), rank, 1, [], extent)
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

    door_function = Writer(module, "fuser_door", "ptr", "ptr", "ptr", "i64")
    f = door_function
    f.linkage = ""
    answer = f.call("i64", "attempt", *f.args)
    raised = f.icmp("slt", answer, 0)

    def truth() -> list[Reg]:
        held = f.icmp("eq", answer, 1)
        found = f.select(held, symbol("_Py_TrueStruct"), symbol("_Py_FalseStruct"))
        f.call_void("Py_IncRef", found)
        return [found]

    (result,) = f.when(raised, lambda: [NULL], truth)
    f.finish(result)
