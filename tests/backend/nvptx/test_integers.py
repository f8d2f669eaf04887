"""Single integers of the GPU IR: what they mean, and their text; who writes LLVM's."""

from __future__ import annotations

import ast
import ctypes
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fuser.backend import nvptx
from fuser.backend.llvm import Machine, emit_object
from fuser.backend.nvptx.emit.integers import integer_text
from fuser.backend.nvptx.ir.integers import (
    FUNCTIONS,
    REGISTERS,
    Arithmetic,
    Comparison,
    Conversion,
    evaluate,
    operand_types,
    result_type,
    text_of,
)
from fuser.backend.nvptx.ir.op import Integer
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.values import Operand
from fuser.errors import ParseError
from fuser.runtime.jit import link_objects

ROOT = Path(nvptx.__file__).parent
SHIFTS = ("shl", "lshr", "ashr")
DIVISIONS = ("udiv", "urem", "sdiv", "srem")
KNOWN = [fn for fn, known in FUNCTIONS.items() if known.meaning is not None]
CONVERTED = {
    "zext": [("i1", "i32"), ("i1", "i64"), ("i32", "i64")],
    "sext": [("i1", "i32"), ("i1", "i64"), ("i32", "i64")],
    "trunc": [("i32", "i1"), ("i64", "i1"), ("i64", "i32")],
}


def variants(fn: str) -> list[tuple[str, str]]:
    """(type, to) that an operation is used with."""
    if fn in ("and", "or", "xor", "eq", "ne", "select"):
        return [("i1", ""), ("i32", ""), ("i64", "")]
    return CONVERTED.get(fn, [("i32", ""), ("i64", "")])


def values(type: str) -> list[int]:
    bits = int(type[1:])
    if bits == 1:
        return [0, 1]
    edge = 1 << (bits - 1)
    return [0, 1, -1, 2, 7, -7, 100, -(edge >> 1), edge - 1, -edge, -edge + 1]


def cases(fn: str, type: str) -> list[tuple[int, ...]]:
    """Operands whose result is defined."""
    found = list(itertools.product(*map(values, operand_types(fn, type))))
    bits = int(type[1:])
    if fn in SHIFTS:
        return [item for item in found if 0 <= item[1] < bits]
    if fn in DIVISIONS:
        found = [item for item in found if item[1]]
    if fn in ("sdiv", "srem"):
        return [item for item in found if item != (-1 << (bits - 1), -1)]
    return found


@pytest.mark.parametrize("fn", KNOWN)
def test_the_table_means_what_llvm_does(fn: str) -> None:
    """Of Python ints and of arrays, at the edges of each type, as the host runs what is emitted."""
    for type, to in variants(fn):
        types = operand_types(fn, type)
        lines = [f"%o{n} = trunc i64 %a{n} to {t}" for n, t in enumerate(types) if t != "i64"]
        names = [f"%a{n}" if t == "i64" else f"%o{n}" for n, t in enumerate(types)]
        result = result_type(fn, type, to)
        lines += [f"%r = {integer_text(fn, type, names, to)}"]
        wide = "%r"
        if result != "i64":
            lines.append(f"%w = {'zext' if result == 'i1' else 'sext'} {result} %r to i64")
            wide = "%w"
        listed = ", ".join(f"i64 %a{n}" for n in range(len(types)))
        body = "\n".join([f"define i64 @f({listed}) {{", *lines, f"ret i64 {wide}", "}"])
        code = link_objects({"f": emit_object(body, Machine(), 0)})
        run = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(types))(code["f"])
        every = cases(fn, type)
        wanted = [run(*item) for item in every]
        assert [evaluate(fn, type, item, to) for item in every] == wanted
        assert all(isinstance(evaluate(fn, type, item, to), int) for item in every)
        columns = np.array(every, np.int64).T.copy()
        with np.errstate(over="ignore"):
            found = evaluate(fn, type, list(columns), to)
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == np.int64


def test_no_operation_of_the_table_is_left_out() -> None:
    """What builders take is what the table has, and every operation has a spelling."""
    taken = {*get_args(Arithmetic), *get_args(Comparison), *get_args(Conversion)}
    assert {*taken, *REGISTERS, "select", "shfl.idx"} == set(FUNCTIONS)
    assert set(KNOWN) == {*taken, "select"}
    for fn in FUNCTIONS:
        type, to = variants(fn)[0]
        operands = [f"%a{n}" for n in range(FUNCTIONS[fn].arity)]
        text = integer_text(fn, type, operands, to)
        word = {"shfl.idx": "shfl.sync.idx"}.get(fn, fn)
        assert word in text and all(name in text for name in operands)


def test_division_by_zero_is_some_number() -> None:
    for fn, type in itertools.product(DIVISIONS, ("i32", "i64")):
        found = evaluate(fn, type, [np.array([5, -5, 0]), np.zeros(3, np.int64)])
        assert [evaluate(fn, type, (a, 0)) for a in (5, -5, 0)] == list(found)


def read(text: str) -> tuple[str, str, tuple[Operand, ...], str]:
    """What a program has of an integer, whose operands are given to it."""
    given = "".join(f"  given {name}\n" for name in sorted(set(re.findall(r"%[\w.]+", text))))
    head = "gpu @integers sm_90a warps(1) threads(32) launch(1, 1, 1) {\n"
    program = parse_program(f"{head}{given}\n  %s0 := {text}\n}}\n")
    (op,) = program.body.ops
    assert isinstance(op, Integer)
    return op.fn, op.type, op.operands, op.to


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_text_is_read_back(fn: str) -> None:
    for type, to in variants(fn):
        operands = (-4, "%a.b_1", "%size.0.i32")[: FUNCTIONS[fn].arity]
        text = text_of(fn, type, operands, to)
        assert read(text) == (fn, type, operands, to)
        assert read(re.sub("([, ])", r"\1 ", text)) == (fn, type, operands, to)


@pytest.mark.parametrize("text, message", [
    ("icmp eq i32 %a, 4", "there is no integer operation 'icmp'"),
    ("call i32 @llvm.smin.i32(i32 %a, i32 4)", "there is no integer operation 'call'"),
    ("add %a, 4", "add is followed by a type"),
    ("add i32 %a 4", "expected"),
    ("add i32 %a, a", "expected"),
    ("xor i1 %a, true", "expected"),
    ("sext i32 %a to", "expected"),
])  # fmt: skip
def test_what_is_no_integer_is_told(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        read(text)


# LLVM's text -------------------------------------------------------------------------------------

VERBS = (
    "add|sub|mul|[us]div|[us]rem|and|or|xor|shl|lshr|ashr|[if]cmp|select|[sz]ext|trunc|bitcast|call"
    "|load|store|br|phi|getelementptr|(?:extract|insert)value|f(?:add|sub|mul|div|neg)"
)
TYPES = r"i\d+|half|float|double|void|ptr|label|eq|[iu]?ne|[us][lg][te]|<\d|\{\w"
LLVM = re.compile(
    rf"(?<![\w.%])(?:{VERBS}) (?:{TYPES})(?![\w.])|@llvm\.|\b(?:i\d+|ptr|half|float|double) [%?]"
    rf"|(?<![\w.%])(?:{VERBS}) \? \S+(?:,| to )"
    r"|addrspace|zeroinitializer"
)
"""An instruction, or a part of one; `?` stands for what an f-string fills in."""


def literals(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, but those that only tell a reader something. What an f-string fills
    in is a question mark."""
    nodes = list(ast.walk(tree))
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "?" for p in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in inner | prose:
                yield node.value


@pytest.mark.parametrize("text, count", [
    ('e.value(f"add i32 {a}, 4")', 1), ('e.value(f"{op} i32 %a, {b}")', 1),
    ('f"select i1 {c}, {type} {a}, {type} {b}"', 1), ('x = "icmp slt i64 %a, 0"', 1),
    ('f"{op} {type} {a}"', 0), ('e.compute("add", a, 4)', 0), ('"""add i32 %a, 4"""', 0),
    ('f"call {type} @llvm.s{fn}"', 1), ('f"sub {type} {a}, {b}"', 1),
    ('x = "a load of memory"', 0), ('f"{a} and {b} takes an {type} there"', 0),
    ('f"sext {type} {a} to {to}"', 1), ('x = "add.s32 %r1, 4"', 0),
])  # fmt: skip
def test_what_counts_as_text_of_llvm(text: str, count: int) -> None:
    assert sum(bool(LLVM.search(item)) for item in literals(ast.parse(text))) == count


def test_text_of_llvm_is_made_by_emission_alone() -> None:
    found: dict[bool, list[str]] = {True: [], False: []}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT)
        for item in literals(ast.parse(path.read_text())):
            if LLVM.search(item):
                found[name.parts[0] == "emit"].append(f"{name}: {item}")
    assert found[False] == []
    assert len(found[True]) > 200
