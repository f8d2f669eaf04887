"""What is no kernel says so: the user's file, line and column, what is wrong, and a hint.

Each program marks the line at fault with `#!`. Errors of launches have no line.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fuser.errors import FuserError, LanguageError, UnsupportedDTypeError, UsageError

HEAD = """\
import math
import numpy as np
import numpy
import fuser
import fuser.language as fl
LIST = [1, 2]
TABLE = {"a": 1}
"""

_numbers = itertools.count()


def module_of(folder: Path, text: str) -> ModuleType:
    """A module of a program, in a file, as users write them."""
    name = f"bad_program_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text(HEAD + text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def body(text: str, more: str = "") -> str:
    """A kernel of x (f32), y (i32), n and a constexpr B with these lines."""
    lines = "\n".join(f"    {line}" for line in text.strip("\n").splitlines())
    return f"{more}\n@fuser.kernel\ndef k(x, y, n, B: fl.constexpr):\n{lines}\n"


SYNTAX = {
    "lambda": ("f = lambda a: a  #!", "no lambda", "decorator"),
    "list comprehension": ("t = [i for i in range(4)]  #!", "a loop over a Range", "tuple"),
    "dict comprehension": ("t = {i: i for i in (1, 2)}  #!", "dict comprehension", ""),
    "set comprehension": ("t = {i for i in (1, 2)}  #!", "set comprehension", ""),
    "generator": ("t = sum(i for i in range(4))  #!", "a loop over a Range", "tuple"),
    "try": ("try:  #!\n    pass\nexcept ValueError:\n    pass", "no `try`", "device_assert"),
    "with": ("with open('f') as f:  #!\n    pass", "no `with`", ""),
    "class": ("class C:  #!\n    pass", "no `class`", "outside"),
    "nested def": ("def f(a):  #!\n    return a", "no `def`", "outside"),
    "async def": ("async def f(a):  #!\n    return a", "no `async def`", "outside"),
    "global": ("global LIST  #!", "no `global`", "argument"),
    "del": ("a = 1\ndel a  #!", "no `del`", ""),
    "import": ("import os  #!", "no `import`", "outside"),
    "import from": ("from os import path  #!", "no `import`", "outside"),
    "yield": ("yield 1  #!", "no yield", ""),
    "yield from": ("yield from (1, 2)  #!", "no yield from", ""),
    "raise": ("raise ValueError  #!", "no `raise`", "assert"),
    "match": ("match n:  #!\n    case 1:\n        pass", "no `match`", "elif"),
    "dict": ("a = {'b': 1}  #!", "no dict", "tuple"),
    "set": ("a = {1, 2}  #!", "no set", "tuple"),
    "star assignment": ("a, *b = (1, 2, 3)  #!", "starred", ""),
    "chained comparison": ("a = 0 < n < 'b'  #!", "'b' is not a number", ""),
    "for else": ("for i in range(n):  #!\n    pass\nelse:\n    pass", "`else` of a loop", ""),
    "while else": ("while n > 4:  #!\n    n = n // 2\nelse:\n    pass", "`else` of a loop", ""),
    "matrix product": ("a = fl.zeros((4, 4), fl.float32)\nb = a @ a  #!", "@", "dot"),
    "item assignment": ("t = fl.arange(0, 4)\nt[0] = 1.0  #!", "assignment to t", "where"),
    "item grows": ("t = fl.zeros((4,), fl.float32)\nt[0] += 1.0  #!", "assignment to t", "where"),
    "attribute assignment": ("x.y = 3  #!", "assignment to x.y", ""),
    "tuple item": ("t = (1, 2)\nt[0] = 1  #!", "assignment to t", ""),
    "loop over tensor": ("for i in fl.arange(0, 4):  #!\n    pass", "a loop over", "range"),
    "loop over array": ("for i in x:  #!\n    pass", "a loop over", "range"),
    "loop variable": ("for i, j in range(4):  #!\n    pass", "loop variable", ""),
}  # fmt: skip

NAMES = {
    "unknown name": ("a = missing + 1  #!", "no name 'missing'", ""),
    "unknown function": ("a = fl.sinus(1.0)  #!", "no 'sinus'", ""),
    "close name": ("a = fl.aranje(0, 4)  #!", "no 'aranje'", "arange"),
    "unknown method": ("a = fl.arange(0, 4).median()  #!", "no 'median'", ""),
    "string operation": ("a = 'b' + 1  #!", "'b' + 1", ""),
    "string method": ("a = 'b'.upper()  #!", "upper", ""),
    "f-string of a tensor": ("a = f'{n}'  #!", "known at run time only", "device_print"),
    "numpy": ("a = np.exp(1.0)  #!", "exp is a Python function", "launch"),
    "numpy on a tensor": ("a = np.exp(fl.arange(0, 4))  #!", "Python function", "decorate"),
    "math on a tensor": ("a = math.exp(n)  #!", "run time only", "exp"),
    "a Python function": ("a = plain(n)  #!", "plain is a Python function", "decorate"),
    "open": ("a = open('file')  #!", "open", ""),
    "eval": ("a = eval('1')  #!", "eval", ""),
    "calling a number": ("a = n(1)  #!", "not a function", ""),
    "mutable global list": ("a = LIST[0]  #!", "LIST", "tuple"),
    "mutable global dict": ("a = TABLE['a']  #!", "TABLE", "argument"),
    "setattr": ("setattr(B, 'a', 1)  #!", "setattr", ""),
    "set in one branch": ("if n > 4:\n    a = 1\nfl.store(y, a)  #!", "one branch", ""),
    "set in a loop": ("for i in range(n):\n    a = i\nfl.store(y, a)  #!", "inside of a loop", ""),
    "used before it is set": ("fl.store(y, a)  #!\na = 1", "no name 'a'", ""),
    "type changes in a branch": (
        "a = 1\nif n > 4:\n    a = fl.arange(0, 4)\nfl.store(y, a)  #!", "in one branch", ""),
    "dtype changes in a loop": (
        "a = fl.load(y)\nfor i in range(n):  #!\n    a = a * 0.5", "before the loop", "before"),
    "shape changes in a loop": (
        "a = fl.zeros((4,), fl.float32)\nfor i in range(n):  #!\n    a = fl.sum(a, 0)",
        "before the loop", ""),
    "unpacking": ("a, b = (1, 2, 3)  #!", "unpack", ""),
    "unpacking a tensor": ("a, b = fl.arange(0, 2)  #!", "unpack", ""),
}  # fmt: skip

VALUES = {
    "too few arguments": ("a = fl.arange()  #!", "arange", ""),
    "too many arguments": ("a = fl.zeros((4,), fl.float32, 3)  #!", "zeros", ""),
    "unknown keyword": ("a = fl.load(x, masks=1)  #!", "load", ""),
    "callee arity": ("a = helper(n)  #!", "helper", ""),
    "callee keyword": ("a = helper(n, c=1)  #!", "helper", ""),
    "run-time extent": ("a = fl.arange(0, n)  #!", "known while compiling", "constexpr"),
    "run-time shape": ("a = fl.zeros((n,), fl.float32)  #!", "known while compiling", "constexpr"),
    "run-time axis": ("a = fl.sum(fl.arange(0, 4), n)  #!", "axis", ""),
    "empty range": ("a = fl.arange(4, 4)  #!", "empty", ""),
    "negative extent": ("a = fl.zeros((-4,), fl.float32)  #!", "-4", ""),
    "float extent": ("a = fl.zeros((1.5,), fl.float32)  #!", "whole number", ""),
    "no dtype": ("a = fl.zeros((4,), 'f4')  #!", "element type", "float32"),
    "shapes": ("a = fl.arange(0, 4) + fl.arange(0, 8)  #!", "broadcast", "None"),
    "mask shape": ("a = fl.load(x + fl.arange(0, 4), fl.arange(0, 8) < 2)  #!", "broadcast", ""),
    "reshape": ("a = fl.arange(0, 6).reshape(4)  #!", "as many elements", ""),
    "permute": ("a = fl.zeros((4, 2), fl.int32).permute(0, 0)  #!", "order of the axes", ""),
    "axis": ("a = fl.sum(fl.arange(0, 4), 1)  #!", "no axis 1", ""),
    "too many indices": ("a = fl.arange(0, 4)[0, 0]  #!", "2 indices", ""),
    "index outside": ("a = fl.arange(0, 4)[4]  #!", "axis of 4", ""),
    "run-time index": ("a = fl.arange(0, 4)[n]  #!", "known while compiling", "gather"),
    "dot ranks": ("a = fl.dot(fl.arange(0, 4), fl.arange(0, 4))  #!", "dot of", "axes"),
    "dot shapes": (
        "a = fl.zeros((16, 32), fl.float16)\nb = fl.dot(a, a)  #!", "dot of", "as long as"),
    "dot dtypes": (
        "a = fl.zeros((16, 16), fl.int8)\nb = fl.dot(a, a.to(fl.float32))  #!", "dot of", "cast"),
    "dot precision": (
        "a = fl.zeros((16, 16), fl.float32)\nb = fl.dot(a, a, input_precision='half')  #!",
        "input_precision", "tf32"),
    "dot accumulator": (
        "a = fl.zeros((16, 16), fl.float32)\nb = fl.dot(a, a, fl.zeros((8, 8), fl.float32))  #!",
        "acc is", ""),
    "load of a number": ("a = fl.load(n)  #!", "load of", "pointer"),
    "load of a tile": ("a = fl.load(fl.arange(0, 4))  #!", "load of", "pointer"),
    "store to a number": ("fl.store(3, 4)  #!", "store to", "pointer"),
    "float mask": ("a = fl.load(x + fl.arange(0, 4), fl.zeros((4,), fl.float32))  #!", "mask", ""),
    "other without mask": ("a = fl.load(x, other=0.0)  #!", "without a mask", "mask"),
    "pointer times number": ("a = x * 2  #!", "pointer", ""),
    "pointer plus float": ("a = x + 0.5  #!", "pointer<fp32> + fp32", "whole numbers"),
    "pointer plus pointer": ("a = x + y  #!", "two pointers", ""),
    "pointer as number": ("a = fl.exp(x)  #!", "pointer", "load"),
    "storing a pointer": ("fl.store(y, x)  #!", "pointer", ""),
    "bits of floats": ("a = fl.load(x) & 1  #!", "invalid operands of type fp32", "bits"),
    "whole division of floats": ("a = fl.load(x) // 2.0  #!", "// of floats", "floor"),
    "power": ("a = n ** 2  #!", "**", "exp2"),
    "division of signs": ("a = n // fl.load(y).to(fl.uint32)  #!", "different signedness", "cast"),
    "number too large": ("a = fl.load(y) + 5000000000  #!", "out of range for int32", "cast"),
    "more than 64 bits": ("a = 1 << 70  #!", "64 bits", ""),
    "exp of an integer": ("a = fl.exp(n)  #!", "exp of", "cast"),
    "tile as condition": ("if fl.arange(0, 4) > 2:  #!\n    pass", "condition", "where"),
    "tile in if-else": ("a = 1 if fl.arange(0, 4) > 2 else 2  #!", "tile", "where"),
    "pointer as condition": ("if x:  #!\n    pass", "condition", ""),
    "tile in while": ("while fl.arange(0, 4) > 2:  #!\n    pass", "condition", ""),
    "range of floats": ("for i in range(0.5):  #!\n    pass", "range of a fp32", "whole"),
    "range step of 0": ("for i in range(0, 4, 0):  #!\n    pass", "step of 0", ""),
    "run-time static_range": ("for i in fl.static_range(n):  #!\n    pass", "known while", "range"),
    "static_assert": ("fl.static_assert(B == 3, 'B must be 3')  #!", "B must be 3", ""),
    "static_assert of a number": ("fl.static_assert(n > 3)  #!", "run time only", "device_assert"),
    "assert that is known": ("assert B == 3, 'no'  #!", "assertion failed: no", ""),
    "program_id axis": ("a = fl.program_id(3)  #!", "program_id(3)", "0, 1 and 2"),
    "constexpr of a run-time value": ("a: fl.constexpr = n  #!", "run time only", ""),
    "recursion": ("a = forever(n)  #!", "calls itself", ""),
    "assembly": ("fl.inline_asm_elementwise('', '', [n], fl.int32, True, 1)  #!", "assembly", ""),
    "a compare of a tuple": ("a = (1, 2) < n  #!", "tuple", ""),
    "None plus": ("a = n + None  #!", "None", ""),
    "a module": ("a = n + math  #!", "module", ""),
    "a dtype": ("a = n + fl.float32  #!", "ElementType", ""),
    "bit cast": ("a = fl.load(x).to(fl.int16, bitcast=True)  #!", "bit cast", "32 bits"),
    "missing annotation": ("a = fl.arange(0, n + B)  #!", "known while compiling", "constexpr"),
    "an atomic on a number": ("fl.atomic_add(n, 1)  #!", "atomic", ""),
}  # fmt: skip

HELPERS = """
@fuser.kernel
def helper(a, b):
    return a + b

@fuser.kernel
def forever(a):
    return forever(a)

def plain(a):
    return a
"""


@pytest.mark.parametrize("table", ["SYNTAX", "NAMES", "VALUES"])
def test_the_tables_are_large(table: str) -> None:
    assert len(globals()[table]) >= 20


@pytest.mark.parametrize("name", [*SYNTAX, *NAMES, *VALUES])
def test_programs(name: str, tmp_path: Path) -> None:
    text, what, hint = (SYNTAX | NAMES | VALUES)[name]
    module = module_of(tmp_path, body(text, HELPERS))
    x, y = np.zeros(64, np.float32), np.zeros(64, np.int32)
    with pytest.raises(LanguageError) as caught:
        module.k[(1,)](x, y, 40, B=16)
    error = caught.value
    file = Path(str(module.__file__))
    lines = file.read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.endswith("#!"))
    inside = name in ("recursion",)  # the error is in what the line calls
    shown = str(error)
    assert what in error.what, shown
    assert hint in error.hint, shown
    if inside:
        assert f"called from {file}:{number}" in shown
        return
    assert error.where == f"{file}:{number}", shown
    line, marks = error.excerpt.splitlines()
    assert line == f"{number} | {lines[number - 1]}"
    code = lines[number - 1].removesuffix("#!").rstrip()
    start, stop = marks.index("^"), marks.rindex("^") + 1
    margin = len(f"{number} | ")
    assert re.fullmatch(r" *\^+", marks)
    assert margin + len(code) - len(code.lstrip()) <= start < stop <= margin + len(code)
    assert shown.endswith(error.excerpt)


CALLS = """
@fuser.kernel
def deepest(a):
    return a @ a

@fuser.kernel
def middle(a):
    b = a + 1
    return deepest(b)
"""


def test_an_error_in_a_function_names_the_calls(tmp_path: Path) -> None:
    module = module_of(tmp_path, body("c = 1\nb = middle(c)", CALLS))
    with pytest.raises(LanguageError, match="no @") as caught:
        module.k[(1,)](np.zeros(64, np.float32), np.zeros(64, np.int32), 40, B=16)
    file = module.__file__
    first = len(HEAD.splitlines())
    assert caught.value.where == f"{file}:{first + 4}"
    assert str(caught.value).splitlines()[-2:] == [
        f"called from {file}:{first + 9}, in middle",
        f"called from {file}:{first + 14}, in k",
    ]


def test_recursion_is_told_once(tmp_path: Path) -> None:
    module = module_of(tmp_path, body("a = forever(n)", HELPERS))
    with pytest.raises(LanguageError, match="calls itself") as caught:
        module.k[(1,)](np.zeros(64, np.float32), np.zeros(64, np.int32), 40, B=16)
    assert len(str(caught.value).splitlines()) < 8


# launches -----------------------------------------------------------------------------------------

PLAIN = """
@fuser.kernel
def k(x, n, B: fl.constexpr):
    fl.store(x + fl.arange(0, B), n)
"""

Launch = Callable[[Any, np.ndarray], Any]
LAUNCHES: dict[str, tuple[Launch, str]] = {
    "missing": (lambda k, x: k[(1,)](x, B=16), "missing a required argument: 'n'"),
    "missing constexpr": (lambda k, x: k[(1,)](x, 3), "missing a required argument: 'B'"),
    "unknown": (lambda k, x: k[(1,)](x, 3, B=16, C=1), "unexpected keyword argument 'C'"),
    "too many": (lambda k, x: k[(1,)](x, 3, 16, 5), "too many positional arguments"),
    "twice": (lambda k, x: k[(1,)](x, 3, 16, B=16), "multiple values"),
    "no grid": (lambda k, x: k(x, 3, B=16), "launched over a grid"),
    "empty grid": (lambda k, x: k[()](x, 3, B=16), "a grid of 0 axes"),
    "grid of four": (lambda k, x: k[(1, 1, 1, 1)](x, 3, B=16), "a grid of 4 axes"),
    "negative grid": (lambda k, x: k[(-1,)](x, 3, B=16), "negative"),
    "float grid": (lambda k, x: k[(1.5,)](x, 3, B=16), "no whole number"),
    "text grid": (lambda k, x: k[("a",)](x, 3, B=16), "no whole number"),
    "None grid": (lambda k, x: k[None](x, 3, B=16), "no whole number"),
    "read-only": (lambda k, x: k[(1,)](_frozen(x), 3, B=16), "read-only"),
    "complex": (lambda k, x: k[(1,)](x.astype(np.complex64), 3, B=16), "complex64"),
    "big endian": (lambda k, x: k[(1,)](x.astype(">f4"), 3, B=16), "byte order"),
    "strings": (lambda k, x: k[(1,)](x.astype("S4"), 3, B=16), "S4"),
    "masked array": (lambda k, x: k[(1,)](np.ma.array(x), 3, B=16), "masked"),
    "list for an array": (lambda k, x: k[(1,)]([1.0, 2.0], 3, B=16), "x is a list"),
    "dict for a number": (lambda k, x: k[(1,)](x, {}, B=16), "n is a dict"),
    "complex number": (lambda k, x: k[(1,)](x, 1j, B=16), "n is a complex"),
    "more than 64 bits": (lambda k, x: k[(1,)](x, 1 << 70, B=16), "64 bits"),
    "array for a constexpr": (lambda k, x: k[(1,)](x, 3, B=x), "B"),
    "half elements": (lambda k, x: k[(1,)](_misplaced(), 3, B=16), "strides"),
}  # fmt: skip


def _frozen(x: np.ndarray) -> np.ndarray:
    copy = x.copy()
    copy.flags.writeable = False
    return copy


def _misplaced() -> np.ndarray:
    return np.zeros(64, [("a", "f4"), ("b", "i2")])["a"]


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches(name: str, tmp_path: Path) -> None:
    launch, what = LAUNCHES[name]
    module = module_of(tmp_path, PLAIN)
    with pytest.raises(FuserError, match=re.escape(what)) as caught:
        launch(module.k, np.zeros(64, np.float32))
    assert isinstance(caught.value, UsageError | UnsupportedDTypeError | LanguageError)


class Elsewhere:
    """An array that says it is on a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (0,), "typestr": "<f4", "data": (0, False), "version": 3, "strides": None}


def test_arrays_on_two_devices(tmp_path: Path) -> None:
    module = module_of(tmp_path, PLAIN.replace("x, n,", "x, y, n,"))
    with pytest.raises(UsageError, match="the arrays of a launch are on GPU 0, the CPU"):
        module.k[(1,)](np.zeros(64, np.float32), Elsewhere(), 3, B=16)


def test_source_that_cannot_be_read() -> None:
    space: dict[str, Any] = {}
    exec("def k(x):\n    pass", space)  # as some programs make functions
    import fuser

    with pytest.raises(LanguageError, match="cannot be read"):
        fuser.kernel(space["k"])[(1,)](np.zeros(4, np.float32))


def test_a_lambda_is_no_kernel() -> None:
    import fuser

    with pytest.raises(LanguageError):
        fuser.kernel(lambda x: None)[(1,)](np.zeros(4, np.float32))
