"""Sized symbols: what is proved, what becomes a guard, and that guards say when answers hold."""

import itertools

import numpy as np
import pytest

from fuser.errors import ShapeError
from fuser.graph import sizes as sizes_module
from fuser.graph.dims import Dim, as_int, ceildiv, maximum, minimum, parse, symbol
from fuser.graph.sizes import (
    Sizes,
    by_example,
    certain,
    divides,
    divisor,
    evaluate,
    guard_from_list,
    size_hint,
)

B, S = symbol("batch"), symbol("seq")


def test_without_sizes_a_symbol_is_no_number() -> None:
    assert B != 3 and symbol("batch") == B and bool(B)
    for question in (lambda: B > 3, lambda: int(B), lambda: as_int(B), lambda: range(B)):
        with pytest.raises(ShapeError, match="batch"):
            question()


@pytest.mark.parametrize(
    "expression",
    ["batch - 1", "batch*seq - batch", "batch*seq - seq - batch", "-((-batch)//6) - 1",
     "seq - seq % 8", "6*(-((-batch*seq)//6)) - batch*seq", "max(batch, 9) - 9",
     "9 - min(seq, 9)"],
)  # fmt: skip
def test_what_holds_for_all_sizes_needs_no_guard(expression: str) -> None:
    dim = parse(expression)
    with Sizes({"batch": 3, "seq": 70}) as sizes:
        proved = certain(dim)
        holds = dim >= 0
    assert holds
    # Two of these are true, but beyond the rules: they cost a guard and no more.
    assert proved == (not sizes.guards)
    assert proved or expression in ("seq - seq % 8", "6*(-((-batch*seq)//6)) - batch*seq")


def test_comparisons_answer_for_the_example_and_leave_a_guard() -> None:
    with Sizes({"batch": 3, "seq": 70}) as sizes:
        assert S <= 512
        assert not S < 70
        assert S % 8 != 0
        assert min(S, 128) is S
        assert minimum(S, 128) is S and maximum(S, 128) == 128
    texts = {str(guard) for guard in sizes.guards}
    assert texts == {"512 >= seq", "seq >= 70", "(seq%8) != 0", "128 >= seq", "127 >= seq"}
    for size, serves in ((69, False), (70, True), (72, False), (128, False), (129, False)):
        assert all(g.holds({"batch": 3, "seq": size}) for g in sizes.guards) == serves, size


def test_an_int_fixes_the_size() -> None:
    with Sizes({"batch": 3}) as sizes:
        assert np.zeros((B, 2)).shape == (3, 2)
    (guard,) = sizes.guards
    assert str(guard) == "batch == 3"
    assert guard.where.startswith("test_sizes.py") or guard.where
    assert guard_from_list(guard.to_list()) == guard


def test_a_written_guard_is_read_as_it_was_at_any_sizes() -> None:
    """Reading one asks nothing: neither what a min in it is, nor anything else."""
    text = "100 - min(seq, batch*seq - 300)"
    with Sizes({"batch": 3, "seq": 70}) as sizes:
        read = guard_from_list([text, ">=", "there"])
    assert not sizes.guards
    for batch, seq in ((3, 70), (9, 101), (2, 300)):
        value = 100 - min(seq, batch * seq - 300)
        assert read.holds({"batch": batch, "seq": seq}) == (value >= 0)


def test_costs_leave_no_guard() -> None:
    @by_example
    def costly() -> bool:
        return B * S > 100 and int(S) == 70 and S / 7 == 10

    with Sizes({"batch": 3, "seq": 70}) as sizes:
        assert costly()
        assert size_hint(B * S + 1) == 211
    assert not sizes.guards


def test_forms() -> None:
    assert divisor(12 * B, 8) == 4
    assert divides(4, 8 * B * S) and not divides(3, 8 * B)
    assert divides(B, 8 * B * S)
    assert evaluate(ceildiv(B * S, 6), {"batch": 2, "seq": 10}) == 4
    with pytest.raises(ValueError, match="batch"):
        Sizes({"batch": 1})


def test_answers_are_those_of_ints_wherever_the_guards_hold() -> None:
    rng = np.random.default_rng(7)
    atoms = ["batch", "seq", "seq//4", "batch*seq", "-((-batch*seq)//6)", "seq % 8", "1"]
    for _ in range(200):
        parts = rng.choice(len(atoms), 2)
        factors = rng.integers(-9, 10, 3)
        text = f"{factors[0]}*({atoms[parts[0]]}) + {factors[1]}*({atoms[parts[1]]}) + {factors[2]}"
        dim = parse(text)
        example = {"batch": int(rng.integers(2, 9)), "seq": int(rng.integers(2, 99))}
        with Sizes(example) as sizes:
            answers = (dim > 0, dim >= 7, dim == 0, dim <= -5)
        for batch, seq in itertools.product((2, 3, 7), (2, 5, 8, 70)):
            at = {"batch": batch, "seq": seq}
            if all(guard.holds(at) for guard in sizes.guards):
                value = evaluate(dim, at)
                assert answers == (value > 0, value >= 7, value == 0, value <= -5), (text, at)


def test_sums_of_many_symbols_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a term without an end is refuted by that term; a fact without it does not help."""
    names = [f"d{i}" for i in range(60)]
    with Sizes(dict.fromkeys(names, 5)) as sizes:
        total: Dim = 0
        for name in names:
            total = total + symbol(name)
            assert total >= symbol(name)  # known of all sizes
            assert total <= 5 * len(names)  # a guard
        written = 0
        expanded = sizes_module._expanded

        def counted(*args: object) -> object:
            nonlocal written
            written += 1
            return expanded(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(sizes_module, "_expanded", counted)
        assert not sizes.proves(symbol("other") - total)
        assert written <= 1  # of 60 facts
        assert sizes.proves(5 * len(names) + 1 - total)
        assert sizes.proves(total - symbol("d7"))
        assert not sizes.proves(total - symbol("d7") * 2)
