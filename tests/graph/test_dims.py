"""Symbolic dims agree with Python's integers, print and parse back."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuser.errors import ParseError, ShapeError
from fuser.graph import dims
from fuser.graph.dims import Dim, symbol

NAMES = ("batch", "seq", "past-length")
Expression = tuple[Callable[[dict[str, Dim]], Dim], str]

BINARY: dict[str, Callable[[Dim, Dim], Dim]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": dims.floordiv,
    "%": dims.modulo,
    "min": dims.minimum,
    "max": dims.maximum,
}


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Callable[[dict[str, Dim]], Dim]:
    """A function from the values of the symbols to a dim, built of every operation."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            name = draw(st.sampled_from(NAMES))
            return lambda values: values[name]
        number = draw(st.integers(-4, 9))
        return lambda values: number
    operation = BINARY[draw(st.sampled_from(sorted(BINARY)))]
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    return lambda values: operation(left(values), right(values))


SYMBOLS: dict[str, Dim] = {name: symbol(name) for name in NAMES}
SIZES = st.fixed_dictionaries({name: st.integers(0, 12) for name in NAMES})


@settings(max_examples=400, deadline=None)
@given(expressions(), SIZES)
def test_substitution_gives_what_integers_give(
    expression: Callable[[dict[str, Dim]], Dim], sizes: dict[str, int]
) -> None:
    try:
        wanted = expression(dict(sizes))
        symbolic = expression(SYMBOLS)
        found = dims.substitute(symbolic, sizes)
    except ShapeError:
        return  # a division by zero
    assert found == wanted


@settings(max_examples=200, deadline=None)
@given(expressions())
def test_text_parses_to_the_same_object(expression: Callable[[dict[str, Dim]], Dim]) -> None:
    try:
        dim = expression(SYMBOLS)
    except ShapeError:
        return
    assert dims.parse(str(dim)) is dim or dims.parse(str(dim)) == dim
    assert pickle.loads(pickle.dumps(dim)) == dim


def test_equal_expressions_are_one_object() -> None:
    batch, seq = symbol("batch"), symbol("seq")
    assert batch * (seq + 1) is batch * seq + batch
    assert (4 * batch * seq) // (2 * seq) is 2 * batch
    assert (batch + seq) - seq is batch
    assert batch - batch == 0


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (symbol("b") * symbol("s") * 4 + 1, "4*b*s + 1"),
        ((symbol("s") + 1) // 2, "((s + 1)//2)"),
        ((2 * symbol("s") + 3) // 2, "s + 1"),
        ((4 * symbol("s") + 3) % 2, "1"),
        (dims.minimum(symbol("s"), symbol("s") + 1), "s"),
        (dims.maximum(symbol("s"), 0), "s"),
        (dims.maximum(symbol("s"), 3), "max(3, s)"),
        (dims.ceildiv(symbol("s"), 64), "-((-s)//64)"),
        (symbol("past-length") + 1, "'past-length' + 1"),
    ],
)
def test_simplified_text(dim: Dim, text: str) -> None:
    assert str(dim) == text


def test_as_int_names_the_symbol() -> None:
    assert dims.as_int(7) == 7
    with pytest.raises(ShapeError, match=r"batch\*seq is symbolic.*bind batch, seq"):
        dims.as_int(symbol("seq") * symbol("batch"))


def test_may_equal() -> None:
    seq = symbol("seq")
    assert dims.may_equal(seq, 5) and dims.may_equal(seq, symbol("batch"))
    assert not dims.may_equal(seq, seq + 1)


@pytest.mark.parametrize("text", ["", "a +", "f(x)", "a/2", "True", "[1]"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ParseError):
        dims.parse(text)
