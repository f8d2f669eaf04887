"""Rewrite nodes into the one spelling that later stages expect.

    %r = reshape(%x) {shape = (8, 64)}
    %s = reshape(%r) {shape = (8, 1, 64)}        %s = reshape(%x) {shape = (8, 1, 64)}
    %h = mul(%half, %s)                    =>    %h = mul(%s, %half)
    %p = pow(%h, 2)                              %p = mul(%h, %h)

Movement that changes nothing goes away, movement of movement becomes one, constants stand on the
right, powers become products. The rules are in rules_movement.py and rules_arithmetic.py; those
that the numerics of the graph allow are applied until nothing changes.
"""

from __future__ import annotations

from functools import cache

from fuser.graph.builder import Builder
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.numerics import Numerics
from fuser.graph.passes import rules_arithmetic, rules_movement
from fuser.graph.passes.dce import remove_dead_nodes
from fuser.graph.passes.rewrite import rewrite
from fuser.graph.passes.rule import Rule, by_op

RULES: tuple[Rule, ...] = (*rules_movement.RULES, *rules_arithmetic.RULES)
_ROUNDS = 10  # each round sees the results of the one before; real models settle in three


@cache
def _allowed(numerics: Numerics) -> dict[str, tuple[Rule, ...]]:
    return by_op(*(rule for rule in RULES if numerics.allows(rule.kind)))


def canonicalise(graph: Graph) -> Graph:
    """The graph with the rules applied everywhere (changed in place)."""
    rules = _allowed(graph.numerics)
    for _ in range(_ROUNDS):
        changed = False

        def rule(b: Builder, node: Node, operands: tuple[Value, ...]) -> Value | None:
            nonlocal changed
            for found in rules[node.op]:
                made = found.apply(b, node, operands)
                if made is not None:
                    if found.kind != "exact":
                        b.graph.note(found.name, found.kind, b.origin)
                    changed = True
                    return made
            return None

        graph = remove_dead_nodes(rewrite(graph, rule, rules))
        if not changed:
            break
    return graph
