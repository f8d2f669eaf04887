"""A small writer of LLVM IR: modules, functions and their blocks.

    module = Module()
    f = module.function("add", "void", [("ptr", "x"), ("i64", "n")])
    first = f.load("float", f.args[0], align=4)
    ...
    f.ret()
    text = str(module)

A function has a current block that instructions are appended to; phis are gathered at the head of
their block. Integer arithmetic on literals folds, so that address code with constant parts stays
short. Nothing here knows a target.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fuser.backend.text import Reg, element, integer, like, mangle, vector
from fuser.dtypes import DType

NO_UNROLL = "!llvm.loop !0"
SELDOM = "!prof !3"
"""Of a branch whose first target is hardly ever taken."""
SELDOM_TEXT = '!{!"branch_weights", i32 1, i32 100000}'


def read_sizes(function: Function, pointer: Reg) -> None:
    """Define the symbolic dims that a finished function uses: it reads them from an array of i64
    at the start, in the order of `text.SYMBOLIC`."""
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


def read_scalars(function: Function, pointer: Reg, dtypes: Sequence[DType], first: int) -> None:
    """Define the registers %scalar.0 ... of a finished function: it reads them from slots of 8
    bytes, from slot `first` on; their bits are the low bytes."""
    lines = []
    for number, dtype in enumerate(dtypes):
        name, at = f"%scalar.{number}", f"%scalar.{number}.at"
        lines.append(f"{at} = getelementptr i64, {pointer.typed}, i64 {first + number}")
        if dtype.kind == "bool":
            lines.append(f"{name}.byte = load i8, ptr {at}, align 8")
            lines.append(f"{name} = icmp ne i8 {name}.byte, 0")
        else:
            lines.append(f"{name} = load {dtype.llvm}, ptr {at}, align 8")
    function.blocks[0].lines[:0] = lines


@dataclass(eq=False)
class Phi:
    """A phi whose incoming values may be added later. A bfloat meets as the word that holds it:
    from block to block LLVM would keep it as a float, and call a function to narrow it again."""

    reg: Reg
    incoming: list[tuple[Reg, Block]] = field(default_factory=list)

    def add(self, value: Reg, block: Block) -> None:
        assert value.type == self.reg.type, f"phi of {self.reg.type} gets {value.typed}"
        if self.is_word:
            word = Reg("i16", f"{self.reg}.from{len(self.incoming)}")
            before_end = len(block.lines) - block.closed
            block.lines.insert(before_end, f"{word} = bitcast {value.typed} to i16")
            value = word
        self.incoming.append((value, block))

    @property
    def is_word(self) -> bool:
        return self.reg.type == "bfloat"

    def __str__(self) -> str:
        sources = ", ".join(f"[ {value}, %{block.label} ]" for value, block in self.incoming)
        if self.is_word:
            return f"{self.reg}.word = phi i16 {sources}"
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
        self.seldom = 0
        """Branches to code that hardly ever runs."""
        self.module: Module | None = None
        """Where shared emitters may put code that hardly ever runs; it stays in line without."""
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
        if phi.is_word:
            self.at.lines.insert(0, f"{phi.reg} = bitcast i16 {phi.reg}.word to bfloat")
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
        metadata: str = "",
    ) -> list[Reg]:
        """Two-way branch; returns phis of what `then` and `other` give (lists of equal types)."""
        yes, no, done = self.block(hint), self.block(f"{hint}.else"), self.block(f"{hint}.end")
        before = self.at
        self.cbr(condition, yes, no if other else done, metadata)
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
        if element(a.type) == "bfloat":  # LLVM has no code for some of those
            words = [self.convert("bitcast", x, like(x.type, "i16")) for x in (a, b) if x]
            turned = self.shuffle(words[0], words[1] if b else None, order)
            return self.convert("bitcast", turned, like(turned.type, "bfloat"))
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
    """Functions, globals and metadata. Metadata !0 is a loop that LLVM must not unroll, !2 nothing,
    !3 the weights of SELDOM."""

    def __init__(self, triple: str = "", data_layout: str = "") -> None:
        self.triple, self.data_layout = triple, data_layout
        self.globals: list[str] = []
        self.functions: list[Function] = []
        self.attribute_groups: list[str] = []
        self.metadata = [
            "distinct !{!0, !1}", '!{!"llvm.loop.unroll.disable"}', "!{}", SELDOM_TEXT
        ]  # fmt: skip
        self._declared: dict[str, None] = {}

    def function(
        self, name: str, result: str, params: Sequence[tuple[str, str]], **options: str
    ) -> Function:
        """A new function; options are those of Function."""
        function = Function(name, result, params, **options)
        function.module = self
        self.functions.append(function)
        return function

    def helper(
        self, name: str, result: str, params: Sequence[tuple[str, str]],
        write: Callable[[Function], None],
    ) -> None:  # fmt: skip
        """A function of this module that is called where it hardly ever is; written once."""
        if any(function.name == name for function in self.functions):
            return
        options = {"convention": "fastcc", "linkage": "internal"}
        write(self.function(name, result, params, attributes="noinline nounwind", **options))

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
        """A metadata node: `!4` for its text, such as `!{!"llvm.loop.mustprogress"}`."""
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
