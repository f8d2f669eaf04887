"""Arguments of a launch, as LLVM IR: each function takes one and says whether it is as its record
(`Param`) says. Objects are only read by what their libraries promise: Python's C API, the fields
that are part of NumPy's binary interface, and PyTorch's stable C interface.
"""

from __future__ import annotations

from fuser.backend.function import Module
from fuser.backend.text import Reg, integer
from fuser.runtime.native_words import NULL, Door, Param, Writer, symbol

PY_EQ = 2
NUMPY_DATA, NUMPY_RANK, NUMPY_SHAPE, NUMPY_STRIDES = 16, 24, 32, 40
NUMPY_BASE, NUMPY_DTYPE, NUMPY_FLAGS = 48, 56, 64
NUMPY_WRITEABLE = 0x400
FLOAT16, BFLOAT16 = 16, 17
"""Kinds of scalars beside 32 and 64 bits."""
HALF_INFINITY = 0x7C00
TORCH_HANDLE = 16
"""Of a tensor object: the pointer to its implementation."""


def write_guards(module: Module, elsize_at: int, elsize_type: str) -> None:
    """elsize_at, elsize_type: where NumPy's descriptors keep the size of an element."""
    _write_class(module)
    _write_integer(module)
    _write_number(module)
    _write_constant(module)
    _write_numpy_span(module, elsize_at, elsize_type)
    _write_numpy(module)
    _write_torch(module)


def _write_class(module: Module) -> None:
    """Whether the low bits of a number are as the parameter says."""
    f = Writer(module, "class_fits", "i1", "ptr", "i64")
    param, value = f.args
    masked = f.binary("and", value, f.word(param, Param.ALIGN_MASK))
    have = f.convert("zext", f.icmp("eq", masked, 0), "i64")
    wanted = f.word(param, Param.ALIGNED)
    f.finish(f.either(f.icmp("eq", wanted, 2), f.icmp("eq", wanted, have)))


def _write_integer(module: Module) -> None:
    """int object, place for its value -> whether it is an exact int of 64 bits."""
    f = Writer(module, "integer", "i1", "ptr", "ptr")
    given, to = f.args
    over = f.room(1)
    f.need(f.icmp("eq", f.field(given, 8), symbol("PyLong_Type")))
    f.store(integer(0, "i32"), over, 8)
    value = f.call("i64", "PyLong_AsLongLongAndOverflow", given, over)
    f.store(value, to, 8)
    f.finish(f.icmp("eq", f.load("i32", over, 8), 0))


def _write_number(module: Module) -> None:
    """Scalars: object, parameter, place of the value, numbers."""
    f = Writer(module, "take_integer", "i1", "ptr", "ptr", "ptr", "ptr")
    given, param, to, numbers = f.args
    f.need(f.call("i1", "integer", given, to))
    value = f.load("i64", to, 8)
    f.need(f.icmp("sge", value, f.word(param, Param.LOW)))
    f.need(f.icmp("sle", value, f.word(param, Param.HIGH)))
    f.need(f.call("i1", "class_fits", param, value))
    _keep(f, param, numbers, f.binary("and", value, f.word(param, Param.MASK)))
    f.finish(integer(1, "i1"))

    f = Writer(module, "take_float", "i1", "ptr", "ptr", "ptr")
    given, param, numbers = f.args
    f.need(f.icmp("eq", f.field(given, 8), f.word(param, Param.TYPE, "ptr")))
    real = f.call("double", "PyFloat_AsDouble", given)
    short = f.convert(
        "zext", f.convert("bitcast", f.convert("fptrunc", real, "float"), "i32"), "i64"
    )
    kind = f.word(param, Param.MASK)

    def narrow() -> list[Reg]:
        f.need(f.fcmp("ord", real, real))  # the slow path knows the bits of a NaN
        half = f.icmp("eq", kind, FLOAT16)
        return f.when(half, lambda: [_half_bits(f, real)], lambda: [_upper_half(f, short)])

    def wide() -> list[Reg]:
        single = f.icmp("eq", kind, 32)
        return [f.select(single, short, f.convert("bitcast", real, "i64"))]

    (bits,) = f.when(f.icmp("slt", kind, 32), narrow, wide)
    _keep(f, param, numbers, bits)
    f.finish(integer(1, "i1"))

    f = Writer(module, "take_bool", "i1", "ptr", "ptr", "ptr")
    given, param, numbers = f.args
    holds = f.icmp("eq", given, symbol("_Py_TrueStruct"))
    f.need(f.either(holds, f.icmp("eq", given, symbol("_Py_FalseStruct"))))
    _keep(f, param, numbers, f.convert("zext", holds, "i64"))
    f.finish(integer(1, "i1"))


def _half_bits(f: Writer, real: Reg) -> Reg:
    """A double as a 16-bit float, rounded once, to nearest even. LLVM calls a library for that."""
    bits = f.convert("bitcast", real, "i64")
    size = f.convert("bitcast", f.binary("and", bits, integer((1 << 63) - 1)), "double")
    exponent = f.binary("lshr", f.convert("bitcast", size, "i64"), integer(52))
    exponent = f.intrinsic("smax", exponent, integer(1023 - 14))
    exponent = f.intrinsic("smin", exponent, integer(1023 + 16))
    # A sum with 2^42 times the power of 2 below keeps ten bits behind it.
    large = f.convert("bitcast", f.binary("shl", f.add(exponent, 42), integer(52)), "double")
    rounded = f.binary("fsub", f.binary("fadd", size, large), large)
    normal = f.binary("lshr", f.convert("bitcast", rounded, "i64"), integer(42))
    normal = f.sub(normal, (1023 - 15) << 10)
    normal = f.intrinsic("smin", normal, integer(HALF_INFINITY))
    unit = f.convert("bitcast", integer((1023 + 24) << 52), "double")
    least = f.convert("bitcast", integer((1023 - 14) << 52), "double")
    tiny = f.fcmp("olt", rounded, least)
    zero = f.convert("bitcast", integer(0), "double")
    small = f.select(tiny, f.binary("fmul", rounded, unit), zero)
    found = f.select(tiny, f.convert("fptosi", small, "i64"), normal)
    sign = f.binary("and", f.binary("lshr", bits, integer(48)), integer(1 << 15))
    return f.binary("or", found, sign)


def _upper_half(f: Writer, bits: Reg) -> Reg:
    """The bits of a 32-bit float as those of a bfloat16, rounded to nearest even."""
    odd = f.binary("and", f.binary("lshr", bits, integer(16)), integer(1))
    return f.binary("lshr", f.add(f.add(bits, 0x7FFF), odd), integer(16))


def _keep(f: Writer, param: Reg, numbers: Reg, value: Reg) -> None:
    number = f.word(param, Param.NUMBER)

    def store() -> list[Reg]:
        f.store(value, f.gep(numbers, number, "i64"), 8)
        return []

    f.when(f.icmp("sge", number, 0), store)


def _write_constant(module: Module) -> None:
    """The object itself, or an equal int or str, or a float of the same bits."""
    f = Writer(module, "take_constant", "i1", "ptr", "ptr")
    given, param = f.args
    wanted, kind = f.word(param, Param.OBJECT, "ptr"), f.field(given, 8)

    def compare() -> list[Reg]:
        f.need(f.icmp("eq", kind, f.word(param, Param.TYPE, "ptr")))
        real = f.icmp("eq", kind, symbol("PyFloat_Type"))

        def of_floats() -> list[Reg]:
            bits = [
                f.convert("bitcast", f.call("double", "PyFloat_AsDouble", item), "i64")
                for item in (given, wanted)
            ]
            f.need(f.icmp("eq", *bits))
            return []

        def of_others() -> list[Reg]:
            plain = (f.icmp("eq", kind, symbol(name)) for name in ("PyLong_Type", "PyUnicode_Type"))
            f.need(f.either(*plain))
            equal = f.call("i32", "PyObject_RichCompareBool", given, wanted, integer(PY_EQ, "i32"))
            f.need(f.icmp("eq", equal, 1))
            return []

        f.when(real, of_floats, of_others)
        return []

    f.when(f.icmp("ne", given, wanted), compare)
    f.finish(integer(1, "i1"))


def _write_numpy_span(module: Module, elsize_at: int, elsize_type: str) -> None:
    """array, (first byte, end) -> whether it could be told: the bytes of an array's elements."""
    f = Writer(module, "numpy_span", "i1", "ptr", "ptr")
    array, to = f.args
    data = f.field(array, NUMPY_DATA, "i64")
    rank = f.convert("sext", f.field(array, NUMPY_RANK, "i32"), "i64")
    shape, strides = f.field(array, NUMPY_SHAPE), f.field(array, NUMPY_STRIDES)
    size = f.convert("sext", f.field(f.field(array, NUMPY_DTYPE), elsize_at, elsize_type), "i64")

    def axis(i: Reg, carried: list[Reg]) -> list[Reg]:
        low, high, empty = carried
        extent = f.load("i64", f.gep(shape, i, "i64"), 8)
        reach = f.mul(f.sub(extent, 1), f.load("i64", f.gep(strides, i, "i64"), 8))
        zero = integer(0)
        return [
            f.add(low, f.intrinsic("smin", reach, zero)),
            f.add(high, f.intrinsic("smax", reach, zero)),
            f.either(empty, f.icmp("eq", extent, 0)),
        ]

    low, high, empty = f.loop(integer(0), rank, 1, [data, data, integer(0, "i1")], axis)
    f.store(f.select(empty, data, low), to, 8)
    f.store(f.select(empty, data, f.add(high, size)), f.gep(to, 8), 8)
    f.finish(integer(1, "i1"))


def _write_numpy(module: Module) -> None:
    """array, parameter, (address, start, end of the storage)."""
    f = Writer(module, "take_numpy", "i1", "ptr", "ptr", "ptr")
    given, param, to = f.args
    own = f.room(2)
    kind = f.word(param, Param.TYPE, "ptr")
    f.need(f.icmp("eq", f.field(given, 8), kind))
    f.need(f.icmp("eq", f.field(given, NUMPY_DTYPE, "i64"), f.word(param, Param.DTYPE)))
    flags = f.field(given, NUMPY_FLAGS, "i32")
    writeable = f.icmp("ne", f.binary("and", flags, integer(NUMPY_WRITEABLE, "i32")), 0)
    f.need(f.either(writeable, f.icmp("eq", f.word(param, Param.WRITES), 0)))
    f.store(f.field(given, NUMPY_DATA, "i64"), to, 8)
    before, head, out = f.at, f.block("base"), f.block("last")
    f.br(head)
    f.enter(head)
    array = f.phi("ptr", (given, before), hint="array")
    base = f.field(array.reg, NUMPY_BASE)
    some, more = f.block("some"), f.block("more")
    f.cbr(f.icmp("eq", base, NULL), out, some)
    f.enter(some)
    type = f.field(base, 8)
    derived = f.icmp("ne", f.call("i32", "PyType_IsSubtype", type, kind), 0)
    f.cbr(derived, more, out)
    f.enter(more)
    array.add(base, f.at)
    # Fields of a subclass lie where they lie in an array: it is one.
    f.br(head)
    f.enter(out)
    storage = f.gep(to, 8)
    f.need(f.call("i1", "numpy_span", array.reg, storage))
    f.need(f.call("i1", "numpy_span", given, own))
    low, high = f.load("i64", own, 8), f.word(own, 1)
    start, end = f.load("i64", storage, 8), f.word(storage, 1)
    inside = f.both(f.icmp("sle", start, low), f.icmp("sle", high, end))
    f.store(f.select(inside, start, low), storage, 8)
    f.store(f.select(inside, end, high), f.gep(storage, 8), 8)
    f.finish(integer(1, "i1"))


def _write_torch(module: Module) -> None:
    """door, tensor, parameter, (address, start, end of the storage)."""
    f = Writer(module, "take_torch", "i1", "ptr", "ptr", "ptr", "ptr")
    door, given, param, to = f.args
    handle, got = f.room(1), f.room(1)
    f.need(f.icmp("eq", f.field(given, 8), f.word(param, Param.TYPE, "ptr")))
    tensor = f.field(given, TORCH_HANDLE)
    f.need(f.icmp("ne", tensor, NULL))
    f.store(tensor, handle, 8)
    keys = f.load("i64", f.gep(tensor, f.word(door, Door.KEYS_AT)), 8)
    f.need(f.icmp("eq", keys, f.word(param, Param.KEYS)))

    def ask(what: Door, type: str) -> Reg:
        failed = f.through("i32", f.word(door, what, "ptr"), handle, got)
        f.need(f.icmp("eq", failed, 0))
        return f.convert("sext", f.load(type, got, 8), "i64")

    f.need(f.icmp("eq", ask(Door.DTYPE, "i32"), f.word(param, Param.DTYPE)))
    f.need(f.icmp("eq", ask(Door.DEVICE, "i32"), f.word(param, Param.DEVICE)))
    size, skipped, address = ask(Door.SIZE, "i64"), ask(Door.OFFSET, "i64"), ask(Door.DATA, "i64")
    # An empty tensor has no address, and its storage may have one.
    f.need(f.either(f.icmp("ne", address, 0), f.icmp("eq", size, 0)))
    start = f.sub(address, f.mul(skipped, f.word(param, Param.ITEM_BYTES)))
    f.store(address, to, 8)
    f.store(start, f.gep(to, 8), 8)
    f.store(f.add(start, size), f.gep(to, 16), 8)
    f.finish(integer(1, "i1"))
