"""What is refused of a lowered program: tiles and registers that nobody has written before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fuser.backend import llvm
from fuser.backend.cpu import compile_kernel
from fuser.backend.cpu.analysis.placement import analyse
from fuser.backend.cpu.compile import machine
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.lowering.rules import RULES
from fuser.backend.cpu.memory.storage import One
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


def row_sums() -> Kernel:
    b = Builder("sums")
    b.program_id(0, 1)
    x, y = b.buffer("x", f32, 32 * 32), b.buffer("y", f32, 32 * 32, role="output")
    at, shape = (axis(0, 32), axis(1, 32)), (32, 32)
    tile = b.load(b.view(x, shape), at, shape)
    total = b.broadcast(b.reduce("sum", b.map("exp", tile), 1), shape, (0,))
    b.store(b.view(y, shape), at, b.map("add", tile, total))
    return b.build()


def forget(low: Lowering, op: ops.Reduce) -> None:
    """A rule that gives its result a place and writes nothing there."""
    low.require(op.x)
    low.places[op.result] = low.allocate(op.result)


def in_a_branch(low: Lowering, op: ops.Reduce) -> None:
    """A rule that writes its result on one side of a branch only."""
    place = low.allocate(op.result)

    def inside() -> list[Reg]:
        low.write(place.pointer, f32, low.memory_address(place, (axis(0, 1) * 0,)), ONE, 1)
        return []

    low.f.when(low.f.icmp("eq", low.f.args[-1], 0), inside)
    low.places[op.result] = place


@pytest.mark.parametrize("rule", [forget, in_a_branch])
def test_a_rule_that_leaves_out_its_tile(
    rule: Callable[[Lowering, ops.Reduce], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES.values, ops.Reduce, rule)
    with pytest.raises(VerifyError, match="nothing has written"):
        compile_kernel(row_sums(), native.HOST)


def test_a_nest_that_is_begun_inside_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reduction writes on its way has no place before its nest is done."""
    begun = Lowering.gather_through

    def gather(low: Lowering, value: Value) -> None:
        begun(low, value)
        if len(low.places) == 0:
            low.through.add(value)
            low.require(low.known.kernel.body.ops[-2].operands()[-1])

    monkeypatch.setattr(Lowering, "gather_through", gather)
    with pytest.raises(VerifyError, match="inside another's nest"):
        compile_kernel(row_sums(), native.HOST)


def test_a_register_of_another_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers are LLVM's to check, which it does for every kernel."""
    b = Builder("total")
    b.program_id(0, 1)
    x, y = b.buffer("x", f32, 32), b.buffer("y", f32, 32, role="output")
    tile = b.load(b.view(x, (32,)), (axis(0, 32),), (32,))
    total = b.broadcast(b.reduce("sum", tile, 0), (32,), ())
    b.store(b.view(y, (32,)), (axis(0, 32),), b.map("add", tile, total))

    def rule(low: Lowering, op: ops.Reduce) -> None:
        made: list[Reg] = []

        def inside() -> list[Reg]:
            made.append(low.f.load("float", low.buffers[low.known.kernel.buffers[0]], 4))
            return []

        low.f.when(low.f.icmp("eq", low.f.args[-1], 0), inside)
        low.places[op.result] = One(made[0])

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
