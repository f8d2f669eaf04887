"""Rewrite nodes into the one spelling that later stages expect.

    %r = reshape(%x) {shape = (8, 64)}
    %s = reshape(%r) {shape = (8, 1, 64)}        %s = reshape(%x) {shape = (8, 1, 64)}
    %h = mul(%half, %s)                    =>    %h = mul(%s, %half)
    %p = pow(%h, 2)                              %p = mul(%h, %h)

Movement that changes nothing goes away, movement of movement becomes one, constants stand on the
right, powers and divisions by constants become products. The rules are in rules_movement.py and
rules_arithmetic.py; they are applied until nothing changes.
"""

from __future__ import annotations

from fuser.graph.builder import Builder
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.passes import rules_arithmetic, rules_movement
from fuser.graph.passes.dce import remove_dead_nodes
from fuser.graph.passes.rewrite import rewrite

_RULES = {
    op: rules_movement.RULES.get(op, ()) + rules_arithmetic.RULES.get(op, ())
    for op in (*rules_movement.RULES, *rules_arithmetic.RULES)
}
_ROUNDS = 10  # each round sees the results of the one before; real models settle in three


def canonicalise(graph: Graph) -> Graph:
    """The graph with the rules applied everywhere (changed in place)."""
    for _ in range(_ROUNDS):
        changed = False

        def rule(b: Builder, node: Node, operands: tuple[Value, ...]) -> Value | None:
            nonlocal changed
            for apply in _RULES[node.op]:
                made = apply(b, node, operands)
                if made is not None:
                    changed = True
                    return made
            return None

        graph = remove_dead_nodes(rewrite(graph, rule, _RULES))
        if not changed:
            break
    return graph
