"""Loads and stores at points: vectors, broadcasts, gathers, padding and masks."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from fuser.backend import text
from fuser.backend.cpu.analysis import affine
from fuser.backend.cpu.lowering import maps
from fuser.backend.cpu.lowering.emitter import Condition, Emitter
from fuser.backend.text import Reg, integer
from fuser.dtypes import DType
from fuser.graph.sizes import is_symbolic
from fuser.tilegen.index import Index

ZERO_LINE_BYTES = 64 << 10
"""The longest line of zeros that padded loads are redirected to."""
PAD_LINE_ELEMENTS = 1024
PAD_SHARED = 64
"""Elements around an address for which one choice between memory and the line is made."""


def _stored(dtype: DType) -> str:
    """LLVM's type of an element in memory: a bool is one byte."""
    return "i8" if dtype.kind == "bool" else dtype.llvm


def _plain(type: str) -> str:
    """The type to load or store a value as: LLVM has no code for odd numbers of bfloat, and calls
    functions of a library to choose between others."""
    return text.like(type, "i16") if text.element(type) == "bfloat" else type


def _in_lanes(given: Reg | None) -> bool:
    """Whether a mask differs between lanes."""
    return given is not None and text.lanes(given.type) > 1


class Access(Emitter):
    """Reads and writes memory at points."""

    def alignment(self, base: Reg, address: Index, dtype: DType) -> int:
        """Bytes that `address` elements from `base` are aligned to."""
        start = self.alignments.get(base, 64)
        multiple = address.multiple * dtype.bytes
        return gcd(multiple, start) if multiple else start

    def read(
        self,
        base: Reg,
        dtype: DType,
        address: Index,
        width: int,
        conditions: Sequence[Condition] = (),
        pad: float | int = 0,
        given: Reg | None = None,
    ) -> Reg:
        """The elements at `address` (in elements from base), `pad` where a condition fails or
        `given`, an i1 or a vector of them, is false.

        A scalar where neither the address nor a condition has a lane, else <width x dtype>.
        """
        if given is not None and given.literal is not None:
            if not given.literal:
                return maps.literal(pad, dtype)
            given = None
        form = affine.lane_form(address)
        masked = any(affine.has_lane(expression) for expression, _ in conditions)
        masked = masked or _in_lanes(given)
        stored = _stored(dtype)
        if form.step in (0, 1) and not masked:
            count = width if form.step == 1 else 1
            pointer = self._pointer(base, dtype, form.rest, conditions, pad, count, given)
            sure = not conditions and given is None
            align = self.alignment(base, form.rest, dtype) if sure else dtype.bytes
            type = text.vector(stored, count)
            raw = self.f.load(_plain(type), pointer, align)
            raw = self.f.convert("bitcast", raw, type)
        elif form.step == 1:
            raw = self._masked_load(base, dtype, form.rest, width, conditions, pad, given)
        else:
            raw = self._gather(base, dtype, address, width, conditions, pad, given)
        return self.from_memory(raw, dtype)

    def from_memory(self, raw: Reg, dtype: DType) -> Reg:
        """bool is stored as a byte and computed as i1."""
        return self.f.icmp("ne", raw, 0) if dtype.kind == "bool" else raw

    def to_memory(self, value: Reg, dtype: DType) -> Reg:
        if dtype.kind != "bool":
            return value
        return self.f.convert("zext", value, text.like(value.type, "i8"))

    def _pointer(
        self,
        base: Reg,
        dtype: DType,
        address: Index,
        conditions: Sequence[Condition],
        pad: float | int,
        count: int,
        given: Reg | None = None,
    ) -> Reg:
        """base + address; a line of pads where a condition fails or `given` is false.

        What varies in deeper loops than the conditions is added after the choice, so that the
        choice is made outside those loops.
        """
        f = self.f
        stored = _stored(dtype)
        condition = self.holds(conditions, given)
        if condition is None:
            constant = address.constant
            pointer = f.gep(base, self.index(address - constant), stored)
            return f.gep(pointer, constant, stored)
        level = max((self.depth_of(expression) for expression, _ in conditions), default=0)
        level = level if given is None else self.depth
        inner = Index(
            0, tuple(t for t in address.terms if self._shallowest(Index(0, (t,))) > level)
        )
        # Neighbouring vectors share one choice, of a line that is long enough for all of them.
        apart = 0 if is_symbolic(address.constant) else address.constant % PAD_SHARED
        low, high = inner.range
        length = high + PAD_SHARED - 1 + count
        zero = pad == 0 and not str(pad).startswith("-")
        limit = ZERO_LINE_BYTES // dtype.bytes if zero else PAD_LINE_ELEMENTS
        if is_symbolic(low, high) or low < 0 or length > limit:
            inner, length = Index(0), PAD_SHARED - 1 + count
        inner += apart
        key = ("padded", base, address - inner, tuple(conditions), given, pad, length)
        chosen = self.recall(key)
        if chosen is None:
            real = f.gep(base, self.index(address - inner), stored)
            chosen = f.select(condition, real, self._pad_line(dtype, pad, length, zero))
            self.remember(key, chosen)
        return f.gep(chosen, self.index(inner), stored)

    def _shallowest(self, index: Index) -> int:
        return min((self.depths.get(value, 0) for value in index.values()), default=0)

    def _pad_line(self, dtype: DType, pad: float | int, count: int, zero: bool) -> Reg:
        if zero:
            self.zero_bytes = max(self.zero_bytes, count * dtype.bytes)
            return Reg("ptr", "@zeros")
        value = maps.literal(pad, dtype)
        if dtype.kind == "bool":
            value = integer(int(bool(pad)), "i8")
        count = -(-count // 64) * 64
        name = f"@pad.{dtype.name}.{count}." + "".join(c if c.isalnum() else "_" for c in str(pad))
        items = ", ".join([value.typed] * count)
        array = f"[{count} x {value.type}]"
        self.module.add_global(
            f"{name} = private unnamed_addr constant {array} [{items}], align 64"
        )
        return Reg("ptr", name)

    def _masked_load(
        self,
        base: Reg,
        dtype: DType,
        address: Index,
        width: int,
        conditions: Sequence[Condition],
        pad: float | int,
        given: Reg | None,
    ) -> Reg:
        f = self.f
        stored = _stored(dtype)
        type = text.vector(stored, width)
        pointer = f.gep(base, self.index(address), stored)
        fill = self._fill(pad, dtype, width)
        if stored in ("half", "bfloat"):
            type = text.vector("i16", width)
            fill = f.convert("bitcast", fill, type)
        suffix = f"{text.mangle(type)}.p0"
        raw = f.call(
            type, f"llvm.masked.load.{suffix}",
            Reg(f"ptr align {dtype.bytes}", pointer.ref), self.mask(conditions, width, given), fill,
        )  # fmt: skip
        return f.convert("bitcast", raw, text.vector(stored, width))

    def _fill(self, pad: float | int, dtype: DType, width: int) -> Reg:
        if dtype.kind == "bool":
            return integer(int(bool(pad)), text.vector("i8", width))
        return maps.literal(pad, dtype, width)

    def _pointers(self, base: Reg, dtype: DType, address: Index, width: int) -> Reg:
        offsets = self.index_vector(address, width)
        stored = _stored(dtype)
        return self.f.op(
            f"<{width} x ptr>", f"getelementptr {stored}, {base.typed}, {offsets.typed}", "p"
        )

    def _gather(
        self,
        base: Reg,
        dtype: DType,
        address: Index,
        width: int,
        conditions: Sequence[Condition],
        pad: float | int,
        given: Reg | None,
    ) -> Reg:
        f = self.f
        stored = _stored(dtype)
        type = text.vector(stored, width)
        form = affine.lane_form(address)
        if not conditions and given is None and form.step is not None:
            # A constant stride: plain loads are as fast as a gather, on every target.
            first = f.gep(base, self.index(form.rest), stored)
            plain = _plain(type)
            total = text.poison(plain)
            for i in range(width):
                pointer = f.gep(first, i * form.step, stored)
                item = f.load(text.element(plain), pointer, dtype.bytes)
                total = f.insert(total, item, i)
            return f.convert("bitcast", total, type)
        pointers = self._pointers(base, dtype, address, width)
        if conditions or given is not None or (self.is_x86 and dtype.bits >= 32 and width > 2):
            fill = self._fill(pad, dtype, width)
            if stored in ("half", "bfloat"):
                type = text.vector("i16", width)
                fill = f.convert("bitcast", fill, type)
            raw = f.call(
                type, f"llvm.masked.gather.{text.mangle(type)}.v{width}p0",
                Reg(f"<{width} x ptr> align {dtype.bytes}", pointers.ref),
                self.mask(conditions, width, given), fill,
            )  # fmt: skip
            return f.convert("bitcast", raw, text.vector(stored, width))
        plain = _plain(type)
        total = text.poison(plain)
        for i in range(width):
            item = f.load(text.element(plain), f.extract(pointers, i), dtype.bytes)
            total = f.insert(total, item, i)
        return f.convert("bitcast", total, type)

    def write(
        self,
        base: Reg,
        dtype: DType,
        address: Index,
        value: Reg,
        width: int,
        conditions: Sequence[Condition] = (),
        given: Reg | None = None,
    ) -> None:
        """Store a scalar or <width x dtype> at `address`; nothing where a condition fails or
        `given`, an i1 or a vector of them, is false."""
        f = self.f
        value = self.to_memory(value, dtype)
        uniform = [c for c in conditions if not affine.has_lane(c[0])]
        lanes = [c for c in conditions if affine.has_lane(c[0])]
        form = affine.lane_form(address)

        some = given if _in_lanes(given) else None

        def plain() -> list[Reg]:
            with self.scope():
                self._write(base, dtype, address, form, value, width, lanes, some)
            return []

        condition = self.holds(uniform, None if some is not None else given)
        if condition is None:
            plain()
        else:
            f.when(condition, plain, hint="inside")

    def _write(
        self,
        base: Reg,
        dtype: DType,
        address: Index,
        form: affine.LaneForm,
        value: Reg,
        width: int,
        lanes: Sequence[Condition],
        given: Reg | None,
    ) -> None:
        f = self.f
        stored = text.element(value.type)
        whole = not lanes and given is None
        if width > 1 and (form.step != 0 or not whole) and text.lanes(value.type) == 1:
            value = f.splat(value, width)
        if form.step == 1 and whole:
            pointer = self._pointer(base, dtype, form.rest, (), 0, width)
            value = f.convert("bitcast", value, _plain(value.type))
            f.store(value, pointer, self.alignment(base, form.rest, dtype))
        elif form.step == 0 and whole:
            # Every lane goes to one place: the last one stays.
            value = f.convert("bitcast", value, _plain(value.type))
            item = f.extract(value, width - 1) if text.lanes(value.type) > 1 else value
            f.store(item, self._pointer(base, dtype, form.rest, (), 0, 1), dtype.bytes)
        elif form.step == 1:
            if stored in ("half", "bfloat"):
                value = f.convert("bitcast", value, text.like(value.type, "i16"))
            pointer = f.gep(base, self.index(form.rest), stored)
            # LLVM 22 makes a masked store of integers that were cut to 8 or 16 bits a scalar store
            # of all 32 bits where it knows that the mask has one lane (x86 with AVX-512).
            mask = self.mask(lanes, width, given, variable=dtype.bits < 32)
            f.call_void(
                f"llvm.masked.store.{text.mangle(value.type)}.p0",
                value, Reg(f"ptr align {dtype.bytes}", pointer.ref), mask,
            )  # fmt: skip
        else:
            self._scatter(base, dtype, address, form, value, width, lanes, given)

    def _scatter(
        self,
        base: Reg,
        dtype: DType,
        address: Index,
        form: affine.LaneForm,
        value: Reg,
        width: int,
        lanes: Sequence[Condition],
        given: Reg | None,
    ) -> None:
        f = self.f
        stored = text.element(value.type)
        if not lanes and given is None and form.step is not None:
            value = f.convert("bitcast", value, _plain(value.type))
            first = f.gep(base, self.index(form.rest), stored)
            for i in range(width):
                pointer = f.gep(first, i * form.step, stored)
                f.store(f.extract(value, i), pointer, dtype.bytes)
            return
        if stored in ("half", "bfloat"):
            value = f.convert("bitcast", value, text.like(value.type, "i16"))
        pointers = self._pointers(base, dtype, address, width)
        f.call_void(
            f"llvm.masked.scatter.{text.mangle(value.type)}.v{width}p0",
            value, Reg(f"<{width} x ptr> align {dtype.bytes}", pointers.ref),
            self.mask(lanes, width, given),
        )  # fmt: skip
