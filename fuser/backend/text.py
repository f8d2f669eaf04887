"""A small typed writer of LLVM IR text.

    module = Module()
    f = module.function("add", "void", [("ptr", "x"), ("i64", "n")])
    first = f.load("float", f.args[0], align=4)
    ...
    f.ret()
    text = str(module)

A value is a `Reg`: its LLVM type and how it is spelled. Types are plain strings ("float",
"<16 x float>", "i64", "ptr", "ptr addrspace(3)"). A function has a current block that instructions
are appended to; phis are gathered at the head of their block. Integer arithmetic on literals folds,
so that address code with constant parts stays short. Nothing here knows a target.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from fuser.errors import LoweringError
from fuser.graph.dims import DimExpr

NO_UNROLL = "!llvm.loop !0"
_FLOAT_TYPES = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


@dataclass(frozen=True)
class Reg:
    """An SSA value, argument or literal: `type` and spelling `ref`."""

    type: str
    ref: str

    def __str__(self) -> str:
        return self.ref

    @property
    def typed(self) -> str:
        return f"{self.type} {self.ref}"

    @property
    def literal(self) -> int | None:
        """The number, if this is an integer literal."""
        if not self.type.startswith("i"):
            return None
        if self.ref in ("true", "false"):
            return int(self.ref == "true")
        return int(self.ref) if self.ref.lstrip("-").isdigit() else None


# types --------------------------------------------------------------------------------------------


def vector(scalar: str, lanes: int) -> str:
    """`<lanes x scalar>`; the scalar itself for one lane."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def element(type: str) -> str:
    """The scalar type of a vector type; any other type itself."""
    return type.partition(" x ")[2][:-1] if type.startswith("<") else type


def lanes(type: str) -> int:
    """How many elements a vector type has; 1 for any other type."""
    return int(type[1:].partition(" x ")[0]) if type.startswith("<") else 1


def like(type: str, scalar: str) -> str:
    """`type` with its element type changed to `scalar`."""
    return vector(scalar, lanes(type))


def is_float(type: str) -> bool:
    return element(type) in _FLOAT_TYPES


def bits(type: str) -> int:
    """Width of a scalar, or of a vector's element."""
    scalar = element(type)
    return _FLOAT_TYPES[scalar] if scalar in _FLOAT_TYPES else int(scalar[1:])


def mangle(type: str) -> str:
    """How intrinsic names spell a type: <16 x float> is v16f32."""
    scalar = element(type)
    short = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}.get(scalar, scalar)
    if short.startswith("ptr"):
        space = "".join(c for c in short if c.isdigit()) or "0"
        short = f"p{space}"
    return short if lanes(type) == 1 else f"v{lanes(type)}{short}"


# literals -----------------------------------------------------------------------------------------


SYMBOLIC: ContextVar[dict[DimExpr, int] | None] = ContextVar("symbolic", default=None)
"""The numbers of the symbolic dims that the kernel being written reads (see `read_sizes`)."""


@contextmanager
def symbolic_dims() -> Iterator[dict[DimExpr, int]]:
    """While a kernel is written: the symbolic dims that it reads, in order."""
    table: dict[DimExpr, int] = {}
    token = SYMBOLIC.set(table)
    try:
        yield table
    finally:
        SYMBOLIC.reset(token)


def _symbolic(dim: DimExpr, type: str) -> Reg:
    """The register of a symbolic dim, which `read_sizes` defines."""
    table = SYMBOLIC.get()
    if table is None:
        raise LoweringError(f"the dim {dim} is symbolic, and this back end takes numbers only")
    number = table.setdefault(dim, len(table))
    return Reg(type, f"%size.{number}" + ("" if type == "i64" else f".{mangle(type)}"))


def read_sizes(function: Function, pointer: Reg) -> None:
    """Define the symbolic dims that a finished function uses: it reads them from an array of i64
    at the start, in the order of SYMBOLIC."""
    lines = [line for block in function.blocks for line in (*map(str, block.phis), *block.lines)]
    used = dict.fromkeys(re.findall(r"%size\.(\d+)(?:\.(?:v(\d+))?(i\d+))?", "\n".join(lines)))
    made: list[str] = []
    done: set[str] = set()

    def define(name: str, text: str) -> None:
        if name not in done:
            done.add(name)
            made.append(f"{name} = {text}")

    for number, lanes, scalar in used:
        name = f"%size.{number}"
        define(f"{name}.at", f"getelementptr i64, {pointer.typed}, i64 {number}")
        define(name, f"load i64, ptr {name}.at, align 8")
        if not scalar:
            continue
        one = name
        if scalar != "i64":
            one = f"{name}.{scalar}"
            define(one, f"trunc i64 {name} to {scalar}")
        if lanes:
            type = f"<{lanes} x {scalar}>"
            define(f"{name}.first{lanes}{scalar}",
                   f"insertelement {type} poison, {scalar} {one}, i32 0")  # fmt: skip
            define(
                f"{name}.v{lanes}{scalar}",
                f"shufflevector {type} {name}.first{lanes}{scalar}, {type} poison, "
                f"<{lanes} x i32> zeroinitializer",
            )
    function.blocks[0].lines[:0] = made


def integer(value: int, type: str = "i64") -> Reg:
    """An integer literal; a vector type gives a splat. Wrapped to the signed range of the type.
    A symbolic dim is a register."""
    if isinstance(value, DimExpr):
        return _symbolic(value, type)
    width = bits(type)
    value &= (1 << width) - 1
    if width > 1 and value >> (width - 1):
        value -= 1 << width
    scalar = ("true" if value else "false") if width == 1 else str(value)
    return _splat_literal(type, scalar)


def real(value: float, type: str = "float") -> Reg:
    """A floating point literal, exact in `type`; a vector type gives a splat."""
    scalar = element(type)
    if scalar == "float":
        # A float literal is written as the double of equal value.
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    if scalar in ("half", "bfloat"):
        return _splat_literal(type, _half_literal(value, scalar))
    pattern = struct.unpack("<Q", struct.pack("<d", value))[0]
    return _splat_literal(type, f"0x{pattern:016X}")


def real_bits(value: float, scalar: str) -> int:
    """The bit pattern of a float or double."""
    if scalar == "float":
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def _half_literal(value: float, scalar: str) -> str:
    import ml_dtypes
    import numpy as np

    kind, prefix = (np.float16, "H") if scalar == "half" else (ml_dtypes.bfloat16, "R")
    return f"0x{prefix}{int(np.array(value).astype(kind).view(np.uint16)):04X}"


def _splat_literal(type: str, scalar: str) -> Reg:
    if lanes(type) == 1:
        return Reg(type, scalar)
    return Reg(type, f"splat ({element(type)} {scalar})")


def constants(type: str, values: Iterable[int]) -> Reg:
    """A vector literal of integers, one an element."""
    scalar = element(type)
    return Reg(type, "<" + ", ".join(integer(v, scalar).typed for v in values) + ">")


def zero(type: str) -> Reg:
    """All bits zero: null, 0.0, 0, or the zero of an aggregate."""
    if type.startswith("ptr"):
        return Reg(type, "null")
    if type.startswith(("<", "{", "[")):
        return Reg(type, "zeroinitializer")
    return real(0.0, type) if is_float(type) else integer(0, type)


def poison(type: str) -> Reg:
    return Reg(type, "poison")


# functions ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Phi:
    """A phi whose incoming values may be added later."""

    reg: Reg
    incoming: list[tuple[Reg, Block]] = field(default_factory=list)

    def add(self, value: Reg, block: Block) -> None:
        assert value.type == self.reg.type, f"phi of {self.reg.type} gets {value.typed}"
        self.incoming.append((value, block))

    def __str__(self) -> str:
        sources = ", ".join(f"[ {value}, %{block.label} ]" for value, block in self.incoming)
        return f"{self.reg} = phi {self.reg.type} {sources}"


@dataclass(eq=False)
class Block:
    """A basic block; it is printed in the order in which it was first entered."""

    label: str
    phis: list[Phi] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    closed: bool = False


class Function:
    """A function being written. `args` are its parameters; `at` is the current block."""

    def __init__(
        self,
        name: str,
        result: str,
        params: Sequence[tuple[str, str]],
        *,
        convention: str = "",
        attributes: str = "",
        linkage: str = "",
    ) -> None:
        """params: (type with parameter attributes after it, name)."""
        self.name, self.result = name, result
        self.params = list(params)
        self.convention, self.attributes, self.linkage = convention, attributes, linkage
        self.args = [Reg(_bare(type), f"%{name}") for type, name in params]
        self.traits: frozenset[str] = frozenset()
        """Abilities of the target that shared emitters (math.py) may use."""
        self._names: dict[str, int] = {}
        self.blocks: list[Block] = []
        self.at = self.enter(self.block("start"))

    # blocks -------------------------------------------------------------------------------------

    def fresh(self, hint: str = "v") -> str:
        """A name unused so far."""
        count = self._names.get(hint, 0)
        self._names[hint] = count + 1
        return f"{hint}.{count}"

    def block(self, hint: str = "b") -> Block:
        """A new block, not yet placed."""
        return Block(self.fresh(hint))

    def enter(self, block: Block) -> Block:
        """Place the block at the end of the function and write into it from now on."""
        self.blocks.append(block)
        self.at = block
        return block

    def emit(self, line: str) -> None:
        """Append one instruction without a result."""
        assert not self.at.closed, f"{self.name}: {line!r} after the end of block {self.at.label}"
        self.at.lines.append(line)

    def op(self, type: str, text: str, hint: str = "v") -> Reg:
        """Append `%fresh = text`, whose result has `type`."""
        reg = Reg(type, f"%{self.fresh(hint)}")
        self.emit(f"{reg} = {text}")
        return reg

    def phi(self, type: str, *incoming: tuple[Reg, Block], hint: str = "phi") -> Phi:
        """A phi at the head of the current block; add the missing incoming values later."""
        phi = Phi(Reg(type, f"%{self.fresh(hint)}"))
        for value, block in incoming:
            phi.add(value, block)
        self.at.phis.append(phi)
        return phi

    # control flow -------------------------------------------------------------------------------

    def br(self, target: Block, metadata: str = "") -> None:
        self.emit(f"br label %{target.label}" + (f", {metadata}" if metadata else ""))
        self.at.closed = True

    def cbr(self, condition: Reg, then: Block, other: Block, metadata: str = "") -> None:
        tail = f", {metadata}" if metadata else ""
        self.emit(f"br i1 {condition}, label %{then.label}, label %{other.label}{tail}")
        self.at.closed = True

    def ret(self, value: Reg | None = None) -> None:
        self.emit("ret void" if value is None else f"ret {value.typed}")
        self.at.closed = True

    def loop(
        self,
        start: Reg | int,
        stop: Reg | int,
        step: int,
        carried: Sequence[Reg],
        body: Callable[[Reg, list[Reg]], Sequence[Reg]],
        *,
        hint: str = "loop",
        metadata: str = NO_UNROLL,
        nonempty: bool = False,
    ) -> list[Reg]:
        """for i in range(start, stop, step): carried = body(i, carried). Returns the last carried.

        `nonempty` promises at least one trip. Literal bounds need no check before the first trip.
        """
        first = start if isinstance(start, Reg) else integer(start)
        last = stop if isinstance(stop, Reg) else integer(stop)
        if first.literal is not None and last.literal is not None:
            if first.literal >= last.literal:
                return list(carried)
            nonempty = True
        before = self.at
        head, done = self.block(hint), self.block(f"{hint}.end")
        if nonempty:
            self.br(head)
        else:
            self.cbr(self.icmp("slt", first, last), head, done)
        self.enter(head)
        variable = self.phi(first.type, (first, before), hint="i")
        phis = [self.phi(value.type, (value, before)) for value in carried]
        results = list(body(variable.reg, [phi.reg for phi in phis]))
        assert len(results) == len(phis), f"{hint}: {len(results)} of {len(phis)} carried values"
        following = self.op(first.type, f"add nsw {variable.reg.typed}, {step}", "i")
        latch = self.at
        variable.add(following, latch)
        for phi, result in zip(phis, results, strict=True):
            phi.add(result, latch)
        self.cbr(self.icmp("slt", following, last), head, done, metadata)
        self.enter(done)
        if nonempty:
            return results
        merged = []
        for initial, result in zip(carried, results, strict=True):
            merged.append(self.phi(result.type, (initial, before), (result, latch)).reg)
        return merged

    def when(
        self,
        condition: Reg,
        then: Callable[[], Sequence[Reg]],
        other: Callable[[], Sequence[Reg]] | None = None,
        *,
        hint: str = "if",
    ) -> list[Reg]:
        """Two-way branch; returns phis of what `then` and `other` give (lists of equal types)."""
        yes, no, done = self.block(hint), self.block(f"{hint}.else"), self.block(f"{hint}.end")
        before = self.at
        self.cbr(condition, yes, no if other else done)
        self.enter(yes)
        left = list(then())
        left_end = self.at
        self.br(done)
        right, right_end = [], before
        if other:
            self.enter(no)
            right = list(other())
            right_end = self.at
            self.br(done)
        self.enter(done)
        return [
            self.phi(a.type, (a, left_end), (b, right_end)).reg
            for a, b in zip(left, right, strict=True)
        ]

    # integers -----------------------------------------------------------------------------------

    def add(self, a: Reg, b: Reg | int) -> Reg:
        return self._integer("add", a, b, "nsw ")

    def sub(self, a: Reg, b: Reg | int) -> Reg:
        return self._integer("sub", a, b, "nsw ")

    def mul(self, a: Reg, b: Reg | int) -> Reg:
        return self._integer("mul", a, b, "nsw ")

    def _integer(self, name: str, a: Reg, b: Reg | int, flags: str = "") -> Reg:
        """add, sub or mul of integers, folded where a literal allows it."""
        rhs = b if isinstance(b, Reg) else integer(b, a.type)
        x, y = a.literal, rhs.literal
        if x is not None and y is not None:
            result = x + y if name == "add" else x - y if name == "sub" else x * y
            return integer(result, a.type)
        if name in ("add", "sub") and y == 0:
            return a
        if name == "add" and x == 0:
            return rhs
        if name == "mul":
            if x == 0 or y == 0:
                return integer(0, a.type)
            if y == 1:
                return a
            if x == 1:
                return rhs
        return self.op(a.type, f"{name} {flags}{a.typed}, {rhs}")

    def binary(self, name: str, a: Reg, b: Reg, flags: str = "") -> Reg:
        """A two-operand instruction whose result has the operand type (fadd, and, udiv, ...)."""
        return self.op(a.type, f"{name} {flags + ' ' if flags else ''}{a.typed}, {b}")

    def icmp(self, predicate: str, a: Reg, b: Reg | int) -> Reg:
        rhs = b if isinstance(b, Reg) else integer(b, a.type)
        return self.op(like(a.type, "i1"), f"icmp {predicate} {a.typed}, {rhs}")

    def fcmp(self, predicate: str, a: Reg, b: Reg) -> Reg:
        return self.op(like(a.type, "i1"), f"fcmp {predicate} {a.typed}, {b}")

    def select(self, condition: Reg, a: Reg, b: Reg) -> Reg:
        return self.op(a.type, f"select {condition.typed}, {a.typed}, {b.typed}")

    def convert(self, name: str, x: Reg, type: str) -> Reg:
        """sext, zext, trunc, fpext, fptrunc, sitofp, bitcast...; x itself if it has the type."""
        return x if x.type == type else self.op(type, f"{name} {x.typed} to {type}")

    # floats and calls ---------------------------------------------------------------------------

    def fneg(self, x: Reg) -> Reg:
        return self.op(x.type, f"fneg {x.typed}")

    def call(self, type: str, name: str, *args: Reg, suffix: str = "") -> Reg:
        """A call with a result. Intrinsics need no declaration. suffix: call-site attributes."""
        return self.op(type, self._call(type, name, args, suffix))

    def call_void(self, name: str, *args: Reg, suffix: str = "") -> None:
        self.emit(self._call("void", name, args, suffix))

    def _call(self, type: str, name: str, args: Sequence[Reg], suffix: str) -> str:
        listed = ", ".join(arg.typed for arg in args)
        return f"call {type} @{name}({listed})" + (f" {suffix}" if suffix else "")

    def intrinsic(self, name: str, *args: Reg, type: str = "") -> Reg:
        """llvm.<name>.<first operand's type>; the result has that type, or `type`."""
        return self.call(type or args[0].type, f"llvm.{name}.{mangle(args[0].type)}", *args)

    def fma(self, a: Reg, b: Reg, c: Reg) -> Reg:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)

    # vectors ------------------------------------------------------------------------------------

    def splat(self, x: Reg, count: int) -> Reg:
        """A vector with every element x; x itself for one lane."""
        if count == 1:
            return x
        type = vector(x.type, count)
        if x.ref[0] != "%":
            return Reg(type, f"splat ({x.typed})")
        first = self.op(type, f"insertelement {type} poison, {x.typed}, i32 0")
        return self.op(
            type, f"shufflevector {first.typed}, {type} poison, <{count} x i32> zeroinitializer"
        )

    def extract(self, x: Reg, position: int | Reg) -> Reg:
        at = position if isinstance(position, Reg) else integer(position, "i32")
        return self.op(element(x.type), f"extractelement {x.typed}, {at.typed}")

    def insert(self, x: Reg, value: Reg, position: int | Reg) -> Reg:
        at = position if isinstance(position, Reg) else integer(position, "i32")
        return self.op(x.type, f"insertelement {x.typed}, {value.typed}, {at.typed}")

    def shuffle(self, a: Reg, b: Reg | None, order: Sequence[int]) -> Reg:
        """shufflevector; -1 in the order is poison. b None: only elements of a are picked."""
        other = b.typed if b else f"{a.type} poison"
        picks = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in order)
        type = f"<{len(order)} x {element(a.type)}>"
        return self.op(type, f"shufflevector {a.typed}, {other}, <{len(order)} x i32> <{picks}>")

    # memory -------------------------------------------------------------------------------------

    def load(self, type: str, pointer: Reg, align: int, suffix: str = "") -> Reg:
        tail = f", {suffix}" if suffix else ""
        return self.op(type, f"load {type}, {pointer.typed}, align {align}{tail}")

    def store(self, value: Reg, pointer: Reg, align: int, suffix: str = "") -> None:
        tail = f", {suffix}" if suffix else ""
        self.emit(f"store {value.typed}, {pointer.typed}, align {align}{tail}")

    def gep(self, pointer: Reg, offset: Reg | int, type: str = "i8") -> Reg:
        """pointer + offset elements of `type`; the pointer itself for offset 0."""
        at = offset if isinstance(offset, Reg) else integer(offset)
        if at.literal == 0:
            return pointer
        return self.op(pointer.type, f"getelementptr {type}, {pointer.typed}, {at.typed}", "p")

    # text ---------------------------------------------------------------------------------------

    def __str__(self) -> str:
        params = ", ".join(f"{type} %{name}" for type, name in self.params)
        words = [self.linkage, self.convention, self.result]
        head = f"define {' '.join(w for w in words if w)} @{self.name}({params}) {self.attributes}"
        lines = [head.rstrip() + " {"]
        for block in self.blocks:
            lines.append(f"{block.label}:")
            lines.extend(f"  {phi}" for phi in block.phis)
            lines.extend(f"  {line}" for line in block.lines)
        lines.append("}")
        return "\n".join(lines)


def _bare(type: str) -> str:
    """The type alone of "ptr noalias align 64" or "ptr addrspace(1) readonly"."""
    if type.startswith(("<", "[", "{")):
        return type
    words = type.split()
    if words[0] == "ptr" and len(words) > 1 and words[1].startswith("addrspace"):
        return " ".join(words[:2])
    return words[0]


class Module:
    """Functions, globals and metadata. Metadata !0 is a loop that LLVM must not unroll."""

    def __init__(self, triple: str = "", data_layout: str = "") -> None:
        self.triple, self.data_layout = triple, data_layout
        self.globals: list[str] = []
        self.functions: list[Function] = []
        self.attribute_groups: list[str] = []
        self.metadata = ["distinct !{!0, !1}", '!{!"llvm.loop.unroll.disable"}']
        self._declared: dict[str, None] = {}

    def function(
        self, name: str, result: str, params: Sequence[tuple[str, str]], **options: str
    ) -> Function:
        """A new function; options are those of Function."""
        function = Function(name, result, params, **options)
        self.functions.append(function)
        return function

    def declare(self, line: str) -> None:
        """`declare ...`, once."""
        self._declared[line] = None

    def add_global(self, line: str) -> None:
        """A global definition, such as `@table = private constant [4 x i32] [...]`."""
        if line not in self.globals:
            self.globals.append(line)

    def attributes(self, text: str) -> str:
        """An attribute group: `#0` for its text, shared by equal texts."""
        if text not in self.attribute_groups:
            self.attribute_groups.append(text)
        return f"#{self.attribute_groups.index(text)}"

    def node(self, text: str) -> str:
        """A metadata node: `!2` for its text, such as `!{!"llvm.loop.mustprogress"}`."""
        self.metadata.append(text)
        return f"!{len(self.metadata) - 1}"

    def __str__(self) -> str:
        lines = []
        if self.data_layout:
            lines.append(f'target datalayout = "{self.data_layout}"')
        if self.triple:
            lines.append(f'target triple = "{self.triple}"')
        lines += self.globals + list(self._declared)
        lines += [str(function) for function in self.functions]
        lines += [f"attributes #{i} = {{ {t} }}" for i, t in enumerate(self.attribute_groups)]
        lines += [f"!{i} = {text}" for i, text in enumerate(self.metadata)]
        return "\n".join(lines) + "\n"
