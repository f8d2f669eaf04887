"""The check finds rules whose class is wrong: ten that look right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fuser.graph.builder import Builder
from fuser.graph.ir import Node, Value
from fuser.graph.numerics import RuleClass
from fuser.graph.passes.rewrite import producer, uniform
from fuser.graph.passes.rule import Example, Operands, Rule, Sample
from tests.rules.check import Wrong, check_rule

Make = Callable[[Sample], Value]


def _rule(name: str, kind: RuleClass, op: str, apply: object, *makes: Make) -> Rule:
    examples = tuple(Example(make) for make in makes)
    return Rule(name, kind, (op,), apply, name, examples)  # type: ignore[arg-type]


def _number(value: Value) -> float | None:
    found = uniform(value)
    return None if found is None else float(found)


def _with(op: str) -> Make:
    return lambda s: s.b.emit(op, s.tensor(), s.number())


def drop_zero(b: Builder, node: Node, operands: Operands) -> Value | None:
    return operands[0] if _number(operands[1]) == 0 else None


def zero_product(b: Builder, node: Node, operands: Operands) -> Value | None:
    return operands[1] if _number(operands[1]) == 0 else None


def self_difference(b: Builder, node: Node, operands: Operands) -> Value | None:
    x, y = operands
    return b.full(0.0, x.type) if x is y else None


def self_quotient(b: Builder, node: Node, operands: Operands) -> Value | None:
    x, y = operands
    return b.full(1.0, x.type) if x is y else None


def reciprocal_product(b: Builder, node: Node, operands: Operands) -> Value | None:
    return b.emit("mul", operands[0], b.emit("reciprocal", operands[1]))


def root_of_square(b: Builder, node: Node, operands: Operands) -> Value | None:
    inner = producer(operands[0], "mul")
    same = inner is not None and inner.inputs[0] is inner.inputs[1]
    return b.emit("abs", inner.inputs[0]) if inner and same else None


def regroup(b: Builder, node: Node, operands: Operands) -> Value | None:
    inner = producer(operands[0], "add")
    if inner is None:
        return None
    return b.emit("add", inner.inputs[0], b.emit("add", inner.inputs[1], operands[1]))


def not_less(b: Builder, node: Node, operands: Operands) -> Value | None:
    inner = producer(operands[0], "lt")
    return b.emit("ge", *inner.inputs) if inner else None


def power_as_root(b: Builder, node: Node, operands: Operands) -> Value | None:
    return b.emit("sqrt", operands[0]) if _number(operands[1]) == 0.5 else None


def distribute(b: Builder, node: Node, operands: Operands) -> Value | None:
    inner = producer(operands[0], "add")
    if inner is None:
        return None
    left, right = (b.emit("mul", value, operands[1]) for value in inner.inputs)
    return b.emit("add", left, right)


def _same(op: str) -> Make:
    def make(s: Sample) -> Value:
        x = s.tensor()
        return s.b.emit(op, x, x)

    return make


def _squared(s: Sample) -> Value:
    x = s.tensor()
    return s.b.emit("sqrt", s.b.emit("mul", x, x))


WRONG = (
    _rule("x + 0 -> x", "exact", "add", drop_zero, _with("add")),
    _rule("x * 0 -> 0", "exact", "mul", zero_product, _with("mul")),
    _rule("x - x -> 0", "exact", "sub", self_difference, _same("sub")),
    _rule("x / x -> 1", "wider", "div", self_quotient, _same("div")),
    _rule("x / y -> x * (1 / y)", "exact", "div", reciprocal_product, _with("div")),
    _rule("sqrt(x * x) -> abs(x)", "function", "sqrt", root_of_square, _squared),
    _rule(
        "(x + c) + d -> x + (c + d)", "exact", "add", regroup,
        lambda s: s.b.emit("add", s.b.emit("add", s.tensor(), s.number()), s.number()),
    ),
    _rule(
        "not x < y -> x >= y", "exact", "logical_not", not_less,
        lambda s: s.b.emit("logical_not", s.b.emit("lt", s.tensor(), s.tensor())),
    ),
    _rule("pow(x, 1/2) -> sqrt(x)", "function", "pow", power_as_root, _with("pow")),
    _rule(
        "(x + y) * c -> x * c + y * c", "wider", "mul", distribute,
        lambda s: s.b.emit("mul", s.b.emit("add", s.tensor(), s.tensor()), s.number()),
    ),
)  # fmt: skip


@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: rule.name)
def test_a_wrong_rule_is_found(rule: Rule) -> None:
    with pytest.raises(Wrong, match="is said to be"):
        check_rule(rule)


def test_a_rule_that_changes_nothing_is_not_fast() -> None:
    double = _rule(
        "-(-x) -> x", "fast", "neg",
        lambda b, node, operands: getattr(producer(operands[0], "neg"), "inputs", (None,))[0],
        lambda s: s.b.emit("neg", s.b.emit("neg", s.tensor())),
    )  # fmt: skip
    with pytest.raises(Wrong, match="changes nothing"):
        check_rule(double)


def test_a_rule_without_an_example_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="no example"):
        _rule("x -> x", "exact", "neg", drop_zero)


def test_a_rule_that_its_examples_never_meet_is_found() -> None:
    with pytest.raises(Wrong, match="never meet it"):
        check_rule(_rule("x + 0 -> x", "exact", "add", drop_zero, _with("mul")))
