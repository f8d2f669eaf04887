"""Tables and texts that fit a terminal."""

from __future__ import annotations

import io
import random
import sys

import pytest

from fuser.runtime import terminal
from fuser.runtime.terminal import (
    cells,
    echo,
    paragraphs,
    shortened,
    styled,
    table,
    width,
    wrapped,
)


class Terminal(io.StringIO):
    """A stdout that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_numbers_stand_to_the_right_and_text_to_the_left() -> None:
    rows = [("1", "short", "3.50 µs", "a"), ("10", "a longer name", "124 µs", "b")]
    assert table(rows, ("#", "kernel", "time", "node"), numbers=(0, 2)).splitlines() == [
        " #  kernel            time  node",
        " 1  short          3.50 µs  a",
        "10  a longer name   124 µs  b",
    ]


def test_names_lose_their_middle() -> None:
    assert shortened("contraction_6_node_MatMul_120", 15) == "contrac…Mul_120"
    assert shortened("short", 5) == "short" and shortened("longer", 5) == "lo…er"
    assert cells(shortened("層" * 30, 21)) <= 21
    (line,) = table([("a" * 50, "1", "b" * 50, "2")], numbers=(1, 3), most=60).splitlines()
    assert len(line) <= 60 and line.count("…") == 2 and "  1  " in line and line.endswith("  2")


def test_the_last_column_wraps_and_numbers_keep_their_unit() -> None:
    text = "188 -> 43 kernels and 107 MB -> 43.2 MB through memory, which is the floor"
    lines = table([("saved", text)], most=44).splitlines()
    assert len(lines) > 1 and all(len(line) <= 44 for line in lines)
    assert lines[0].startswith("saved  188") and all(x.startswith(" " * 7) for x in lines[1:])
    assert " ".join(line[7:] for line in lines) == text
    assert not any(line.endswith(("107", "43.2", "43")) for line in lines)


def test_nothing_of_a_wrapped_text_is_lost() -> None:
    """Whatever its words are, and with a word of more than a line."""
    drawn = random.Random(3)
    for _ in range(200):
        words = ["x" * drawn.randint(1, 30) for _ in range(20)] + [
            "1",
            "y" * 90,
            "9",
            "kB",
            "層" * 9,
        ]
        drawn.shuffle(words)
        most = drawn.randint(40, 90)
        lines = wrapped(" ".join(words), most, "    ")
        assert all(cells(line) <= most for line in lines)
        assert "".join(lines).replace(" ", "") == "".join(words)
    assert (
        paragraphs("  a: b\n" + "word " * 30, 40).splitlines()[2] == "    " + "word " * 6 + "word"
    )


@pytest.mark.parametrize("most", [40, 80, 140])
def test_columns_without_room_follow_in_another_table(most: int) -> None:
    """With the first column again: no number is cut or left out."""
    rows = [[f"kernel_{row}", *(f"{row}{at:05}" for at in range(20))] for row in range(3)]
    head = ["kernel", *(f"counter {at}" for at in range(20))]
    text = table(rows, head, numbers=range(1, 21), most=most)
    assert max(map(len, text.splitlines())) <= most and text.split().count("kernel_1") > 1
    for row in rows:
        assert all(text.split().count(number) == 1 for number in row[1:])
    assert text.split().count("counter") == 20


def test_every_table_fits() -> None:
    drawn = random.Random(4)
    for _ in range(300):
        count, most = drawn.randint(1, 12), drawn.randint(40, 150)
        numbers = {at for at in range(count) if drawn.random() < 0.5}
        rows = [
            ["7" * drawn.randint(0, 12) if at in numbers else "name " * drawn.randint(0, 20)
             for at in range(count)]
            for _ in range(4)
        ]  # fmt: skip
        lines = table(rows, numbers=numbers, most=most, keys=drawn.randint(0, 1)).splitlines()
        assert all(len(line) <= most for line in lines)


def test_control_characters_of_a_model_are_not_printed() -> None:
    assert table([("a\x1b[31mb", "c\nd")]) == "a?[31mb  c?d"


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    rows = [("compare", "MISMATCH relative error 1")]
    plain = table(rows, labels=True)

    def painted() -> str:
        return table(rows, labels=True, paint=True, colours={"MISMATCH": "red"})

    assert painted() == plain  # no terminal here
    monkeypatch.setattr(sys, "stdout", stdout := Terminal())
    assert table(rows, labels=True) == plain
    red = "\x1b[1mcompare\x1b[0m  \x1b[31mMISMATCH\x1b[0m relative error 1"
    assert painted() == (red if coloured else plain)
    echo(styled("x", bold=True))
    assert stdout.getvalue() == ("\x1b[1mx\x1b[0m\n" if coloured else "x\n")


def test_the_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert width() == 80
    monkeypatch.setenv("COLUMNS", "140")
    assert width() == 140
    monkeypatch.setenv("COLUMNS", "3")
    assert width() == terminal.MIN_WIDTH


def test_letters_that_stdout_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    echo("3.50 µs  a…b  層")
    sys.stdout.flush()
    assert buffer.getvalue() == b"3.50 us  a~b  ?\n"
