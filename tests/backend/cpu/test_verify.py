"""What is refused of a lowered program: tiles and registers that nobody has written before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser.backend import llvm
from fuser.backend.cpu import compile_kernel
from fuser.backend.cpu.analysis.placement import analyse
from fuser.backend.cpu.compile import machine
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.lowering.rules import RULES
from fuser.backend.cpu.memory.storage import Filling, One, Place
from fuser.backend.cpu.verify import verify_tiles
from fuser.backend.function import Function, Module
from fuser.backend.text import Reg, integer, real
from fuser.dtypes import f32
from fuser.errors import CompileError, VerifyError
from fuser.tilegen import ops
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value
from tests.backend.cpu import native
from tests.numerics import assert_close

T0, T1, CONDITION = Reg("ptr", "%t0"), Reg("ptr", "%t1"), Reg("i1", "%c")
ONE = real(1.0)
Write = Callable[[Function], None]


def written(write: Write) -> Function:
    f = Function("program", "void", [("ptr", "b0"), ("i1", "c"), ("i64", "n")])
    write(f)
    f.ret()
    f.params += [("ptr noalias align 64", "t0"), ("ptr noalias align 64", "t1")]
    return f


def put(f: Function, tile: Reg = T0) -> list[Reg]:
    f.store(ONE, f.gep(tile, 4), 4)
    return []


def get(f: Function, tile: Reg = T0) -> list[Reg]:
    f.load("float", f.gep(f.gep(tile, Reg("i64", "%n"), "float"), 4), 4)
    return []


def nest(f: Function, body: Callable[[], object], hint: str = "rows") -> None:
    def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
        body()
        return []

    f.loop(integer(0), Reg("i64", "%n"), 1, [], iteration, hint=hint)


def on_one_side(f: Function) -> None:
    f.when(CONDITION, lambda: put(f))
    get(f)


def on_the_other_side(f: Function) -> None:
    f.when(CONDITION, lambda: put(f), lambda: get(f))


def another_tile(f: Function) -> None:
    put(f, T1)
    get(f)


def before_it_is_written(f: Function) -> None:
    get(f)
    put(f)


def only_by_a_loop_of_the_program(f: Function) -> None:
    nest(f, lambda: put(f), "for")
    get(f)


def later_in_an_iteration(f: Function) -> None:
    nest(f, lambda: (get(f), put(f)))


def after_a_while(f: Function) -> None:
    head, body, done = f.block("while"), f.block("while.body"), f.block("while.end")
    f.br(head)
    f.enter(head)
    f.cbr(CONDITION, body, done)
    f.enter(body)
    put(f)
    f.br(head)
    f.enter(done)
    get(f)


def chosen(f: Function) -> None:
    put(f)
    get(f, f.select(CONDITION, T0, T1))


def by_a_phi(f: Function) -> None:
    put(f)
    (either,) = f.when(CONDITION, lambda: [T0], lambda: [f.gep(T1, 8)])
    get(f, either)


def lanes_of(f: Function, tile: Reg) -> Reg:
    offsets = Reg("<4 x i32>", "<i32 0, i32 1, i32 2, i32 3>")
    return f.op("<4 x ptr>", f"getelementptr float, {tile.typed}, {offsets.typed}")


def gathered(f: Function) -> None:
    put(f)
    first = f.extract(lanes_of(f, T1), 2)
    f.load("float", first, 4)


def by_masks(f: Function) -> None:
    put(f)
    every, nothing = Reg("<4 x i1>", "splat (i1 true)"), Reg("<4 x float>", "zeroinitializer")
    f.call("<4 x float>", "llvm.masked.load.v4f32.p0", Reg("ptr align 4", "%t1"), every, nothing)


def by_something_unknown(f: Function) -> None:
    put(f)
    f.call_void("llvm.lifetime.end.p0", T0)


WRONG = [
    on_one_side, on_the_other_side, another_tile, before_it_is_written, chosen, by_a_phi, gathered,
    only_by_a_loop_of_the_program, later_in_an_iteration, after_a_while, by_masks,
    by_something_unknown,
]  # fmt: skip


@pytest.mark.parametrize("write", WRONG, ids=lambda write: write.__name__)
def test_tiles_that_nobody_has_written(write: Write) -> None:
    with pytest.raises(VerifyError, match="a tile"):
        verify_tiles(written(write), 2)


def on_both_sides(f: Function) -> None:
    f.when(CONDITION, lambda: put(f), lambda: put(f))
    get(f)


def by_a_nest(f: Function) -> None:
    nest(f, lambda: nest(f, lambda: put(f), "lanes"))
    nest(f, lambda: get(f))


def in_the_iteration(f: Function) -> None:
    def body() -> None:
        put(f)
        nest(f, lambda: get(f))

    nest(f, body, "for")


def before_the_loop(f: Function) -> None:
    put(f)
    nest(f, lambda: (get(f), put(f)), "for")
    get(f)


def by_lanes(f: Function) -> None:
    every = Reg("<4 x i1>", "splat (i1 true)")
    f.call_void("llvm.masked.scatter.v4f32.v4p0", Reg("<4 x float>", "zeroinitializer"),
                lanes_of(f, T0), every)  # fmt: skip
    f.call_void("llvm.prefetch.p0", T1)
    get(f)


RIGHT = [on_both_sides, by_a_nest, in_the_iteration, before_the_loop, by_lanes]


@pytest.mark.parametrize("write", RIGHT, ids=lambda write: write.__name__)
def test_tiles_that_were_written(write: Write) -> None:
    verify_tiles(written(write), 2)


def row_sums(shared: bool = False) -> Kernel:
    """Exponentials of rows, added up. shared: these are added to each, else what they are of."""
    b = Builder("sums")
    b.program_id(0, 1)
    x, y = b.buffer("x", f32, 32 * 32), b.buffer("y", f32, 32 * 32, role="output")
    at, shape = (axis(0, 32), axis(1, 32)), (32, 32)
    tile = b.load(b.view(x, shape), at, shape)
    exponentials = b.map("exp", tile)
    total = b.broadcast(b.reduce("sum", exponentials, 1), shape, (0,))
    b.store(b.view(y, shape), at, b.map("add", exponentials if shared else tile, total))
    return b.build()


Placed = dict[Value, Place]


def forget(low: Lowering, op: ops.Reduce) -> Placed:
    """A rule that gives its result a place and writes nothing there."""
    low.require(op.x)
    return {op.result: low.allocate(op.result)}


def in_a_branch(low: Lowering, op: ops.Reduce) -> Placed:
    """A rule that writes its result on one side of a branch only."""
    place = low.allocate(op.result)

    def inside() -> list[Reg]:
        low.write_at(place, f32, (axis(0, 1) * 0,), ONE, 1)
        return []

    low.f.when(low.f.icmp("eq", low.f.args[-1], 0), inside)
    return {op.result: place}


@pytest.mark.parametrize("rule", [forget, in_a_branch])
def test_a_rule_that_leaves_out_its_tile(
    rule: Callable[[Lowering, ops.Reduce], Placed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES.values, ops.Reduce, rule)
    with pytest.raises(VerifyError, match="nothing has written"):
        compile_kernel(row_sums(), native.HOST)


def test_what_a_nest_writes_on_its_way_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else finds a place for it before the nest is done: who asks for it then computes it in
    a tile of its own, and no row is wrong."""
    begun = Lowering.gather_through
    kept: list[Value] = []

    def gather(low: Lowering, value: Value) -> dict[Value, Filling]:
        found = begun(low, value)
        for own in found:
            assert low.computed(own, found) and not low.placed(own, found)
            assert not low.computed(own)
            low.require(own)
            kept.append(own)
        return found

    monkeypatch.setattr(Lowering, "gather_through", gather)
    arrays = {"x": np.linspace(-3, 3, 32 * 32, dtype=np.float32), "y": np.zeros(32 * 32, "float32")}
    exponentials = np.exp(arrays["x"].reshape(32, 32))
    native.run(row_sums(shared=True), arrays)
    assert kept
    expected = exponentials + exponentials.sum(1, keepdims=True)
    assert_close(arrays["y"].reshape(32, 32), expected, f32, 32)


def test_a_register_of_another_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers are LLVM's to check, which it does for every kernel."""
    b = Builder("total")
    b.program_id(0, 1)
    x, y = b.buffer("x", f32, 32), b.buffer("y", f32, 32, role="output")
    tile = b.load(b.view(x, (32,)), (axis(0, 32),), (32,))
    total = b.broadcast(b.reduce("sum", tile, 0), (32,), ())
    b.store(b.view(y, (32,)), (axis(0, 32),), b.map("add", tile, total))

    def rule(low: Lowering, op: ops.Reduce) -> Placed:
        made: list[Reg] = []

        def inside() -> list[Reg]:
            made.append(low.f.load("float", low.buffers[low.known.kernel.buffers[0]], 4))
            return []

        low.f.when(low.f.icmp("eq", low.f.args[-1], 0), inside)
        return {op.result: One(made[0])}

    monkeypatch.setitem(RULES.values, ops.Reduce, rule)
    with pytest.raises(CompileError, match="does not dominate all uses"):
        compile_kernel(b.build(), native.HOST)


def test_an_index_that_nobody_has_computed() -> None:
    """A coordinate that stands for a loop that is yet to come."""
    module = Module(llvm.host_triple(), llvm.data_layout(machine(native.HOST)))
    low = Lowering(RULES, module, module.function("f", "void", []), native.HOST,
                   analyse(row_sums(), native.HOST), {})  # fmt: skip
    place = low.placeholder(8)
    assert not low.names(place + 3) and low.names(axis(0, 4) + 3)
    with pytest.raises(VerifyError, match="not computed before"):
        low.index(place * 4)
    with pytest.raises(VerifyError, match="not computed before"):
        low.index_vector(place * 4 + axis(0, 4), 4)
