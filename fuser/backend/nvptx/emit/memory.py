"""Loads and stores of global memory: vectors, one branch per distinct predicate, plain IR
throughout.

LLVM merges equal conditions and ptxas turns the branches into predicated accesses, so nothing
smarter than `br` is needed for bounds.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.emit.code import Code, Writes
from fuser.backend.nvptx.emit.values import literal, memory_type
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.alike import alike_registers
from fuser.backend.nvptx.ir.layouts import vectors
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand, Place
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.lowering.indexing import Indexer
from fuser.backend.nvptx.lowering.integers import INT32
from fuser.dtypes import DType
from fuser.graph.sizes import is_symbolic
from fuser.tilegen.index import Index


class Pointers:
    """Global addresses of the registers of one layout."""

    def __init__(self, code: Code, at: Place, indexer: Indexer) -> None:
        self.code = code
        self.access = access = at.access
        self.indexer = indexer
        self._bases: dict[Operand | None, str] = {}
        self._products: dict[tuple[str, int], str] = {}
        self._totals: dict[tuple[str | None, str], str] = {}
        self.is_long = bool(access.view.buffer.size * access.view.dtype.bytes > INT32)
        self._long: Indexer | None = None
        if self.is_long and at.long:
            self._long = code.indexer(indexer.layout, at.scope, long=True)

    def at(self, offset: Coordinates) -> str:
        """A pointer to the element at a register's coordinates."""
        emitter = self.code.emitter
        bytes_ = self.access.view.dtype.bytes
        buffer = self.code.pointer(self.access.view.buffer)
        dynamic, constant = self._linear(offset)
        if dynamic not in self._bases:
            base = buffer
            if dynamic is not None:
                kind = "i64" if self.is_long else "i32"
                type = memory_type(self.access.view.dtype)
                base = emitter.value(
                    f"getelementptr {type}, ptr addrspace(1) {buffer}, {kind} {dynamic}"
                )
            self._bases[dynamic] = base
        base = self._bases[dynamic]
        if is_symbolic(constant):
            # by terms: what depends on the register alone is the same for all threads
            kind = "i64" if self.is_long else "i32"
            type = memory_type(self.access.view.dtype)
            by = emitter.offset(constant, kind)
            return emitter.value(f"getelementptr {type}, ptr addrspace(1) {base}, {kind} {by}")
        if constant == 0:
            return base
        return emitter.value(f"getelementptr i8, ptr addrspace(1) {base}, i64 {constant * bytes_}")

    def _linear(self, offset: Coordinates) -> tuple[Operand | None, int]:
        if not self.is_long:
            return self.indexer.evaluate(self.access.linear, offset)
        if self._long is not None:
            return self._long.evaluate(self.access.linear, offset)
        # offsets of more than 31 bits: the terms are small, their products are not
        emitter, total, constant = self.code.emitter, None, self.access.linear.constant
        for atom, coefficient in self.access.linear.terms:
            part, rest = self.indexer.evaluate(Index(0, ((atom, 1),)), offset)
            constant += coefficient * rest
            if part is None:
                continue
            key = (part, coefficient)
            if key not in self._products:
                long = emitter.value(f"sext i32 {part} to i64")
                by = emitter.size(coefficient, "i64")
                self._products[key] = str(emitter.times(long, by, "i64"))
            product = self._products[key]
            pair = (total, product)
            if total is None:
                total = product
            else:
                if pair not in self._totals:
                    self._totals[pair] = str(emitter.plus(total, product, "i64"))
                total = self._totals[pair]
        return total, constant


def load(code: Code, op: ops.Load) -> None:
    """Read vectors, one branch for all that have one condition."""
    access, result, emitter = op.at.access, op.tile, code.emitter
    layout = result.layout
    single = only_once(code, layout) if op.once else None
    if op.where is not None:
        single = emitter.both(op.where, single)
    firsts = alike_registers(access, layout)
    width = _ragged(access, layout) if firsts == [*range(len(firsts))] else 0
    whole = _all_whole(code, op.at, layout, width, single)
    if whole is None:
        regs = _load_vectors(code, op, single)
    else:
        regs = _load_ragged(code, op, single, whole, width)
    result.assign(regs[first] for first in firsts)


def _load_vectors(code: Code, op: ops.Load, single: Operand | None) -> list[str]:
    """The registers of a load whose vectors are inside or outside as a whole."""
    access, layout, emitter = op.at.access, op.tile.layout, code.emitter
    indexer = code.indexer(layout, op.at.scope)
    pointers = Pointers(code, op.at, indexer)
    guard = Guard(code, op.at, layout, indexer)
    width = _width(access, layout)
    regs = [""] * len(layout.regs)
    guarded: dict[Operand, list[tuple[str, list[int]]]] = {}
    fill = literal(op.pad or 0, access.view.dtype)
    firsts = alike_registers(access, layout)
    for offset, members in vectors(layout, access.axis if access.order else 0, width):
        if firsts[members[0]] != members[0]:
            continue
        condition = emitter.both(single, guard.at(offset))
        if condition == 0:
            for member in members:
                regs[member] = fill
            continue
        pointer = pointers.at(offset)
        if condition is None:
            for member, name in zip(members, _load(code, op, pointer, width), strict=True):
                regs[member] = name
        else:
            guarded.setdefault(condition, []).append((pointer, members))
    for condition, group in guarded.items():
        loaded = _load_where(code, op, condition, [at for at, _ in group], width)
        for (_, members), names in zip(group, loaded, strict=True):
            for member, name in zip(members, names, strict=True):
                regs[member] = name
    return regs


def _ragged(access: Access, layout: Layout) -> int:
    """Elements of vectors that bounds may end within, where a layout has them; else 0."""
    width = min(access.ragged, layout.vector(access.axis)) if access.order else 0
    return width if width > _width(access, layout) else 0


def _all_whole(
    code: Code, at: Place, layout: Layout, width: int, single: Operand | None
) -> Operand | None:
    """The condition that all elements of a thread may be touched; None where that says nothing.
    width: elements of vectors that bounds may end within."""
    if not width:
        return None
    guard = Guard(code, at, layout, code.indexer(layout, at.scope))
    whole = single
    for _, members in vectors(layout, at.access.axis, width):
        for member in (members[0], members[-1]):
            whole = code.emitter.both(whole, guard.at(layout.regs[member]))
    return whole if isinstance(whole, str) else None


def _load_ragged(
    code: Code, op: ops.Load, single: Operand | None, whole: Operand, width: int
) -> list[str]:
    """The registers of a load: long vectors where all of a thread's are whole, else short ones."""
    access, layout, emitter = op.at.access, op.tile.layout, code.emitter
    dtype = access.view.dtype
    pointers = Pointers(code, op.at, code.indexer(layout, op.at.scope))
    runs = [
        (pointers.at(offset), members) for offset, members in vectors(layout, access.axis, width)
    ]
    in_words = width * dtype.bytes >= 4 > dtype.bytes
    long, short, done = (emitter.block(name) for name in ("whole", "ragged", "loaded"))
    emitter.branch(whole, long, short)
    emitter.enter(long)
    read = _load_words if in_words else _load
    ours = [read(code, op, pointer, width) for pointer, _ in runs]
    emitter.jump(done)
    emitter.enter(short)
    regs = _load_vectors(code, op, single)
    theirs = [[regs[member] for member in members] for _, members in runs]
    if in_words:
        theirs = [_words_of(code, names, dtype) for names in theirs]
    end = emitter.at
    emitter.jump(done)
    emitter.enter(done)
    type = "i32" if in_words else dtype.llvm
    ends = [
        [
            emitter.value(f"phi {type} [ {name}, %{long.label} ], [ {other}, %{end.label} ]")
            for name, other in zip(names, others, strict=True)
        ]
        for names, others in zip(ours, theirs, strict=True)
    ]
    for (_, members), names in zip(runs, ends, strict=True):
        if in_words:
            names = [item for word in names for item in _of_word(code, word, dtype)]
        for member, name in zip(members, names, strict=True):
            regs[member] = name
    return regs


def _words_of(code: Code, names: list[str], dtype: DType) -> list[str]:
    """Short elements as 32-bit words."""
    count = 4 // dtype.bytes
    type = f"<{count} x {memory_type(dtype)}>"
    groups = (names[at : at + count] for at in range(0, len(names), count))
    return [
        code.emitter.value(f"bitcast {type} {pack(code, group, dtype)} to i32") for group in groups
    ]


class Guard:
    """Where the elements of an access at the registers of a layout may be touched: in bounds, and
    in the mask."""

    def __init__(self, code: Code, at: Place, layout: Layout, indexer: Indexer) -> None:
        self.code, self.access, self.layout, self.mask = code, at.access, layout, at.mask
        self.indexer = indexer
        if at.long_bounds:
            self.indexer = code.indexer(layout, at.scope, long=True)

    def at(self, offset: Coordinates) -> Operand | None:
        """The condition at a register (the first of a vector): None where it surely holds, 0 where
        it surely does not."""
        found = self.indexer.conditions(self.access.bounds, self.access.shape, offset)
        if self.mask is None or found == 0:
            return found
        flag = self.mask.regs[self.layout.register_of[offset]]
        if flag in ("true", "false"):
            return found if flag == "true" else 0
        return self.code.emitter.both(found, flag)


def _width(access: Access, layout: Layout) -> int:
    return min(access.width, layout.vector(access.axis)) if access.order else 1


def _load_where(
    code: Code, op: ops.Load, condition: Operand, pointers: list[str], width: int
) -> list[list[str]]:
    """The elements of some vectors, read where a condition holds, `pad` elsewhere."""
    emitter, dtype, pad = code.emitter, op.at.access.view.dtype, op.pad
    in_words = width * dtype.bytes >= 4 > dtype.bytes
    before = emitter.at
    then, done = emitter.block("load"), emitter.block("loaded")
    emitter.branch(condition, then, done)
    emitter.enter(then)
    load = _load_words if in_words else _load
    read = [load(code, op, pointer, width) for pointer in pointers]
    emitter.jump(done)
    emitter.enter(done)
    type = "i32" if in_words else dtype.llvm
    fill = _word_of(pad or 0, dtype) if in_words else literal(pad or 0, dtype)
    ends = [
        [
            emitter.value(f"phi {type} [ {name}, %{then.label} ], [ {fill}, %{before.label} ]")
            for name in names
        ]
        for names in read
    ]
    if not in_words:
        return ends
    return [[item for word in words for item in _of_word(code, word, dtype)] for words in ends]


def _load_words(code: Code, op: ops.Load, pointer: str, width: int) -> list[str]:
    """A vector of short elements as 32-bit words."""
    bytes_ = width * op.at.access.view.dtype.bytes
    count = bytes_ // 4
    type = f"<{count} x i32>"
    name = _read(code, op, type, pointer, bytes_)
    return [code.emitter.value(f"extractelement {type} {name}, i32 {i}") for i in range(count)]


def _word_of(value: float | int, dtype: DType) -> str:
    """A word of which every element has one value, as a constant of LLVM."""
    type, count = memory_type(dtype), 4 // dtype.bytes
    item = str(int(bool(value))) if dtype.kind == "bool" else literal(value, dtype)
    return f"bitcast (<{count} x {type}> <{', '.join([f'{type} {item}'] * count)}> to i32)"


def _of_word(code: Code, word: str, dtype: DType) -> list[str]:
    """The elements of a word that two branches meet in. LLVM must not see which: it would do
    before the meeting what is done to the elements, as it knows the result for those that are not
    loaded. Threads would have the widened elements in registers from there on."""
    e, count = code.emitter, 4 // dtype.bytes
    hidden = e.value(f'call i32 asm "", "=r,0"(i32 {word})')
    vector = e.value(f"bitcast i32 {hidden} to <{count} x {memory_type(dtype)}>")
    return unpack(code, vector, dtype, count)


def _read(code: Code, op: ops.Load, type: str, pointer: str, align: int) -> str:
    """What a buffer holds at a pointer."""
    tail = ", !invariant.load !2" if op.constant else ""
    verb = "load volatile" if op.volatile else "load"
    return code.emitter.value(f"{verb} {type}, ptr addrspace(1) {pointer}, align {align}{tail}")


def _load(code: Code, op: ops.Load, pointer: str, width: int) -> list[str]:
    dtype = op.at.access.view.dtype
    type = memory_type(dtype)
    align = width * dtype.bytes
    if width == 1:
        return [from_memory(code, _read(code, op, type, pointer, align), dtype)]
    if align == 4 and width == 2 and op.words:
        # one register until it is used: beside 128 sums, two for each pair would be too many
        return halves(code, _read(code, op, "i32", pointer, 4), type)
    name = _read(code, op, f"<{width} x {type}>", pointer, align)
    return unpack(code, name, dtype, width)


def halves(code: Writes, word: str, type: str) -> list[str]:
    """The two 16-bit elements of a word, in a form that LLVM does not merge with the load."""
    e = code.emitter
    pair = e.value(f'call {{i16, i16}} asm "mov.b32 {{$0, $1}}, $2;", "=h,=h,r"(i32 {word})')
    parts = [e.value(f"extractvalue {{i16, i16}} {pair}, {i}") for i in (0, 1)]
    return [e.value(f"bitcast i16 {part} to {type}") for part in parts]


def unpack(code: Writes, name: str, dtype: DType, width: int) -> list[str]:
    """The elements of a vector of memory elements."""
    vector = f"<{width} x {memory_type(dtype)}>"
    found = [code.emitter.value(f"extractelement {vector} {name}, i32 {i}") for i in range(width)]
    if dtype.name == "bf16":
        places = ((item, (name, width, place)) for place, item in enumerate(found))
        code.emitter.sources.packed.update(places)
    return [from_memory(code, item, dtype) for item in found]


def pack(code: Writes, regs: list[str], dtype: DType) -> str:
    """A vector of memory elements (the element itself where there is one)."""
    emitter, type = code.emitter, memory_type(dtype)
    items = [to_memory(code, reg, dtype) for reg in regs]
    if len(items) == 1:
        return items[0]
    vector = f"<{len(items)} x {type}>"
    name = "poison"
    for position, item in enumerate(items):
        name = emitter.value(f"insertelement {vector} {name}, {type} {item}, i32 {position}")
    return name


def from_memory(code: Writes, name: str, dtype: DType) -> str:
    return code.emitter.value(f"icmp ne i8 {name}, 0") if dtype.kind == "bool" else name


def to_memory(code: Writes, name: str, dtype: DType) -> str:
    return code.emitter.value(f"zext i1 {name} to i8") if dtype.kind == "bool" else name


def store(code: Code, op: ops.Store) -> None:
    """Write vectors, one branch for all that have one condition."""
    emitter, layout = code.emitter, op.value.layout
    single = only_once(code, layout) if op.once else None
    width = _ragged(op.at.access, layout)
    whole = _all_whole(code, op.at, layout, width, single)
    if whole is None:
        _store_vectors(code, op, single)
        return
    long, short, done = (emitter.block(name) for name in ("whole", "ragged", "stored"))
    emitter.branch(whole, long, short)
    emitter.enter(long)
    _store_vectors(code, op, single, width)
    emitter.jump(done)
    emitter.enter(short)
    _store_vectors(code, op, single)
    emitter.jump(done)
    emitter.enter(done)


def _store_vectors(code: Code, op: ops.Store, single: Operand | None, whole: int = 0) -> None:
    """Write vectors that are inside or outside as a whole. whole: elements of those that are surely
    inside."""
    emitter, tile, access = code.emitter, op.value, op.at.access
    layout, dtype = tile.layout, tile.dtype
    indexer = code.indexer(layout, op.at.scope)
    pointers = Pointers(code, op.at, indexer)
    guard = Guard(code, op.at, layout, indexer)
    width = whole or _width(access, layout)
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    guarded: dict[Operand | None, list[tuple[str, list[int]]]] = {}
    for offset, members in vectors(layout, access.axis if access.order else 0, width):
        condition = None if whole else emitter.both(single, guard.at(offset))
        if condition == 0:
            continue
        guarded.setdefault(condition, []).append((pointers.at(offset), members))
    for condition, group in guarded.items():
        packed = [(p, pack(code, [tile.regs[m] for m in members], dtype)) for p, members in group]

        def write(packed: list[tuple[str, str]] = packed) -> None:
            for pointer, value in packed:
                emitter.do(
                    f"store {type} {value}, ptr addrspace(1) {pointer}, align {width * dtype.bytes}"
                )

        if condition is None:
            write()
        else:
            with emitter.where(condition):
                write()


def atomic_add(code: Code, op: ops.AtomicAdd) -> None:
    """Add elements one by one."""
    emitter, tile, access = code.emitter, op.value, op.at.access
    layout, dtype = tile.layout, tile.dtype
    indexer = code.indexer(layout, op.at.scope)
    pointers = Pointers(code, op.at, indexer)
    verb = "fadd" if dtype.is_float else "add"
    single = only_once(code, layout)
    if op.first_block:
        single = emitter.both(single, emitter.hoisted(f"icmp eq i32 {emitter.rank}, 0"))
    for offset, number in layout.register_of.items():
        condition = indexer.conditions(access.bounds, access.shape, offset)
        condition = emitter.both(single, condition)
        if condition == 0:
            continue
        pointer = pointers.at(offset)
        text = (
            f"atomicrmw {verb} ptr addrspace(1) {pointer}, {dtype.llvm} {tile.regs[number]} "
            f'syncscope("device") monotonic'
        )
        if condition is None:
            emitter.value(text)
        else:
            with emitter.where(condition):
                emitter.value(text)


def fence(code: Code, op: ops.Fence) -> None:
    """One instruction."""
    code.emitter.do('call void asm sideeffect "fence.acq_rel.gpu;", "~{memory}"()')


def only_once(code: Writes, layout: Layout) -> Operand | None:
    """A condition that holds in one of the threads that repeat an element (one of each block where
    every block has the tile for itself); None if none do."""
    repeats = [0 if any(basis) else 1 << bit for bit, basis in enumerate(layout.bits)]
    if not any(repeats):
        return None
    return code.emitter.hoisted(f"icmp eq i32 {code.emitter.thread_offset(repeats)}, 0")


RULES: dict[type[Op], Callable[..., None]] = {
    ops.Load: load,
    ops.Store: store,
    ops.AtomicAdd: atomic_add,
    ops.Fence: fence,
}
