"""Work of the compiler that must not grow with the square of a kernel, or worse."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as binding
import pytest

from fuser.backend import llvm
from fuser.backend.cpu.analysis import costs, kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.dtypes import f32
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, lookup, minimum
from fuser.tilegen.value import INDEX, TileType, Value
from tests.backend.cpu.native import HOST

DEPTH = 200


def doubled() -> tuple[Facts, Value]:
    """Facts of a load that is added to itself, and so on: 2 ** DEPTH paths to the load."""
    b = Builder("doubled")
    x, y = b.buffer("x", f32, 8), b.buffer("y", f32, 8, "output")
    value = b.load(b.view(x, (8,)), (axis(0, 8),), (8,))
    for _ in range(DEPTH):
        value = b.map("add", value, value)
    b.store(b.view(y, (8,)), (axis(0, 8),), value)
    kernel = b.build()
    producers = {result: op for op in kernel.walk() for result in op.results}
    return Facts(kernel, HOST, producers=producers), value


def test_costs_of_shared_values() -> None:
    facts, value = doubled()
    assert costs.tree_cost(facts, value) == 2.0 ** (DEPTH + 1) - 1
    assert costs.lane_cost(facts, value, costs.probe((8,), 0, 8), 8) == 2.0**DEPTH
    assert not kernel_facts.reads_registers(facts, value)


def test_lookups_in_order() -> None:
    first, second = (Value(TileType(INDEX, (8,)), name, 0, 99) for name in "ab")
    a, b = lookup(first, (0,)), lookup(second, (1,))
    expression = minimum((a + axis(0, 8)) // 3, b % 7) + Index(4)
    assert {atom.value for atom in kernel_facts.lookups(expression)} == {first, second}
    assert [atom.value for atom in kernel_facts.lookups(b % 7 + b)] == [second, second]
    assert kernel_facts.lookups(axis(0, 8) * 3 + 1) == []


@pytest.mark.skipif(llvm.version() < (22,), reason="this LLVM cannot leave out single passes")
def test_many_accesses_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 scattered stores of a loop, which loop load elimination would compare in pairs."""
    lines = []
    for number in range(512):
        lines += [
            f"%s{number} = add i64 %start, {number * 3136}",
            f"%p{number} = getelementptr float, ptr %a, i64 %s{number}",
            f"%q{number} = getelementptr float, ptr %b, i64 %s{number}",
            f"%x{number} = load float, ptr %q{number}",
            f"store float %x{number}, ptr %p{number}",
        ]
    body = "\n  ".join(lines)
    text = f"""
define void @f(ptr noalias %a, ptr noalias %b, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %start = mul i64 %i, 4
  {body}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    passes: list[Any] = []
    create = binding.create_pass_builder

    def timed(*args: Any) -> Any:
        """LLVM tells the passes that ran, whatever they took."""
        made = create(*args)
        made.start_pass_timing()
        passes.append(made)
        return made

    monkeypatch.setattr(binding, "create_pass_builder", timed)
    llvm.compile_module(text, llvm.Machine())
    ran = passes[0].finish_pass_timing()
    assert "InstCombinePass" in ran and "LoopLoadElimination" not in ran
