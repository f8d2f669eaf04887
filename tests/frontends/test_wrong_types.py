"""Objects that are no models, functions or numbers where those are wanted: one kind of error, which
says what is taken."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.errors import FuserError, UnsupportedDTypeError, UsageError

NO_MODELS: dict[str, Any] = {
    "function": lambda x: x, "ufunc": np.sin, "int": 3, "NoneType": None, "list": ["m.onnx"],
    "ndarray": np.zeros(3), "dict": {}, "type": int, "bytearray": bytearray(b"x"),
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "plan": {}, "dynamic": {"dynamic": True}, "host": {"host": "allow"},
    "state": {"state": {"a": "b"}}, "devices": {"devices": 2},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NO_MODELS)
def test_compile_says_what_a_model_is(kind: str, way: str) -> None:
    with pytest.raises(TypeError, match=f"a {kind} is no model") as found:
        fuser.compile(NO_MODELS[kind], **WAYS[way])
    assert isinstance(found.value, FuserError) and found.value.exit_code == 2
    assert "ONNX file" in str(found.value) and "nn.Module" in str(found.value)
    assert ("fuser.jit" in str(found.value)) == (kind in ("function", "ufunc"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fuser.InferenceSession(NO_MODELS["ufunc"]), "is no model"),
        (lambda: fuser.load(NO_MODELS["ufunc"]), "path of what was saved, not a ufunc"),
        (lambda: fuser.jit(NO_MODELS["int"]), "function of arrays is traced, not a int"),
        (
            lambda: fuser.trace(NO_MODELS["int"], np.zeros(2)),
            "function of arrays is traced, not a int",
        ),
    ],
)
def test_other_calls_say_what_they_take(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(TypeError, match=words) as found:
        call()
    assert isinstance(found.value, FuserError)


@pytest.mark.parametrize("name", ["m.onnx", "m.onnxtxt", "m.pt2"])
def test_load_knows_models(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x08\x08 what it holds")
    with pytest.raises(UsageError, match=r"is a model.*fuser compile MODEL -o PLAN"):
        fuser.load(tmp_path / name)


REAL = np.ones(3, np.float32)
MADE_INSIDE: dict[str, Callable[[Any], Any]] = {
    "operator": lambda x: x * 1j,
    "swapped": lambda x: 1j + x,
    "power": lambda x: x**0.5j,
    "compared": lambda x: x == 1j,
    "not equal": lambda x: x != 1j,
    "ufunc": lambda x: np.multiply(x, 1j),
    "where": lambda x: np.where(x > 0, x, 1j),
    "list": lambda x: np.array([x[0], 1j]),
    "cast": lambda x: x.astype(complex),
    "made": lambda x: np.zeros(3, complex) + x,
    "scalar": lambda x: x + np.complex128(1),
    "sum": lambda x: np.sum(x, dtype=complex),
}


@pytest.mark.parametrize("name", MADE_INSIDE)
def test_complex_numbers_in_a_traced_function_are_named(name: str) -> None:
    with pytest.raises(UnsupportedDTypeError, match=r"complex128.*x\.real and x\.imag"):
        fuser.jit(MADE_INSIDE[name])(REAL)


def test_a_complex_number_is_refused_in_place_too() -> None:
    def scaled(x: Any) -> Any:
        x = x + 1
        x *= 1j
        return x

    with pytest.raises(UnsupportedDTypeError, match="complex128"):
        fuser.jit(scaled)(REAL)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.zeros(3, np.complex64), "complex64"), (np.zeros(3, complex), "complex128"),
        (1j, "complex128"), (np.complex64(1), "complex64"),
    ],
)  # fmt: skip
def test_complex_arguments_are_named(value: Any, dtype: str) -> None:
    @fuser.jit
    def add(left: Any, right: Any) -> Any:
        return left + right

    said = re.escape(f"the element type {dtype} is not supported (at argument 'right')")
    for _ in range(2):
        with pytest.raises(UnsupportedDTypeError, match=said):
            add(REAL, value)
    assert (add(REAL, 2.0) == 3).all()
