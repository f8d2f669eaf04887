"""How dots read their operands, as records: where they are, kept in another order, or packed."""

from __future__ import annotations

import pytest

from fuser.backend.cpu.analysis import affine
from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.backend.cpu.analysis.placement import analyse
from fuser.backend.cpu.dots.records import DotPlan
from fuser.base.target import TARGETS
from fuser.dtypes import DType, bf16, f32, i8, i32
from fuser.tilegen import ops
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis
from fuser.tilegen.value import Value


def dots(
    target: str, dtype: DType, rows: int, depth: int, turned: bool = False, count: int = 1
) -> tuple[Facts, list[DotPlan], Value]:
    """Plans of dots of one left operand by weights [depth, 48], and that operand. turned: weights
    lie along k."""
    total = f32 if dtype.is_float else i32
    b = Builder("dots")
    b.program_id(0, 1)
    x = b.buffer("x", dtype, rows * depth)
    left = b.load(b.view(x, (rows, depth)), (axis(0, rows), axis(1, depth)), (rows, depth))
    for number in range(count):
        w = b.buffer(f"w{number}", dtype, depth * 48)
        shape, at = (depth, 48), (axis(0, depth), axis(1, 48))
        view = b.view(w, shape[::-1] if turned else shape)
        right = b.load(view, at[::-1] if turned else at, shape)
        y = b.buffer(f"y{number}", total, rows * 48, role="output")
        product = b.dot(left, right, b.full(0, (rows, 48), total))
        b.store(b.view(y, (rows, 48)), (axis(0, rows), axis(1, 48)), product)
    facts = analyse(b.build(), TARGETS[target])
    return facts, [facts.dots[op] for op in facts.dots if isinstance(op, ops.Dot)], left


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon"])
def test_vectors_and_broadcasts(target: str) -> None:
    """Vectors run along the axis in which memory is read in order; no copy is made."""
    facts, (plan,), left = dots(target, f32, 24, 64)
    assert plan.unit is None and (plan.a.axis, plan.b.axis) == (-1, 1)
    assert plan.a.value is left and plan.vector_axis == 1 and not plan.along_k
    k, other = Index(1), Index(2)
    assert plan.a.point(k, other) == (other, k) and plan.b.point(k, other) == (k, other)
    assert not facts.packed and facts.kind(plan.b.value) == "inline"


def test_vectors_along_k() -> None:
    _, (plan,), _ = dots("avx512", f32, 2, 64, turned=True)
    assert plan.along_k and (plan.a.axis, plan.b.axis) == (1, 0) and plan.vector_axis == 1


@pytest.mark.parametrize("rows, depth", [(32, 64), (32, 80), (20, 64)])
def test_rows_are_read_where_they_are_or_packed(rows: int, depth: int) -> None:
    """A unit reads rows of whole steps of k in place; the step is that of the memory it reads."""
    facts, (plan,), left = dots("amx", bf16, rows, depth)
    in_place = depth % 32 == 0
    assert plan.unit is not None and plan.unit.name == "amx"
    assert (plan.a.source is None) == in_place and (plan.a.value is left) == in_place
    assert plan.a.step == -(-depth // 32) * 32
    assert plan.b.right and plan.b.source is not None and plan.b.step == -(-depth // 32) * 32 * 16
    for copy, packed in facts.packed.items():
        assert packed.value is copy and packed.source is not None
        assert facts.kind(copy) == "memory" and facts.room(copy)[0] % 16 == 0


def test_bytes_taken_as_unsigned_are_always_packed() -> None:
    _, (plan,), left = dots("avx512_vnni", i8, 16, 64)
    assert plan.a.source is left and plan.a.step == 64


def test_dots_share_the_copy_of_one_operand() -> None:
    facts, plans, left = dots("amx", bf16, 32, 80, count=3)
    assert len({plan.a.value for plan in plans}) == 1 and len({p.b.value for p in plans}) == 3
    assert plans[0].a.source is left and len(facts.packed) == 4
    assert len(facts.users[plans[0].a.value]) == 3


def test_steps_of_counters() -> None:
    """The steps of an index that is a sum of counters, and whatever it is that does not count."""
    i, j, one = affine.any_counter(8), affine.any_counter(4), affine.any_counter(1)
    rest = affine.any_counter(7)
    assert affine.steps_of(i * 32 + j + rest * 5 + 3, (i, j, one)) == [32, 1, 0]
    assert affine.steps_of(i * 32 + j, (i, j, one), (None, 1, 7)) == [32, 1, 0]
    assert affine.steps_of(i * 32 + j * 2, (i, j), (None, 1)) is None
    assert affine.steps_of(i % 3 + j, (i, j)) is None
