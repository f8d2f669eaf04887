"""Indices outside of a tensor read 0 and write nothing, however far outside they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

import fuser
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.passes import run_passes
from fuser.partition.partition import partition
from fuser.tilegen import ops
from fuser.tilegen.emit import emit
from fuser.tilegen.index import Index, Lookup
from tests.interpreted import TARGETS, run_partition

Array = np.ndarray[Any, Any]

FAR = (
    99, -99, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**33 + 2, 2**40 + 1, 2**61, 2**62, 2**62 + 1,
    2**63 - 1, -(2**31), -(2**32), -(2**32) + 1, -(2**62), -(2**63), 3, 2, -4, -5, 0,
)  # fmt: skip
"""Indices into axes of 3 and 4: a few are inside."""
ROWS = np.array([i for i in FAR for _ in range(2)], np.int64)


def model(signature: str, body: str) -> ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> g {signature} {{ {body} }}')


def place(index: int, size: int) -> int | None:
    """Where an index points, None outside."""
    return int(index) % size if -size <= index < size else None


def rows(x: Array, index: Array) -> Array:
    found = [place(i, len(x)) for i in index.tolist()]
    return np.stack([np.zeros_like(x[0]) if at is None else x[at] for at in found])


def elements(x: Array, index: Array) -> Array:
    result = np.zeros(index.shape, x.dtype)
    for at in np.ndindex(*index.shape):
        row = place(int(index[at]), len(x))
        if row is not None:
            result[at] = x[(row, *at[1:])]
    return result


def tuples(x: Array, index: Array) -> Array:
    result = np.zeros(len(index), x.dtype)
    for k, pair in enumerate(index.tolist()):
        at = [place(i, size) for i, size in zip(pair, x.shape, strict=True)]
        if None not in at:
            result[k] = x[tuple(at)]  # type: ignore[arg-type]
    return result


def put_elements(x: Array, index: Array, updates: Array) -> Array:
    result = x.copy()
    for at in np.ndindex(*index.shape):
        row = place(int(index[at]), len(x))
        if row is not None:
            result[(row, *at[1:])] = updates[at]
    return result


def put_tuples(x: Array, index: Array, updates: Array) -> Array:
    result = x.copy()
    for k, pair in enumerate(index.tolist()):
        at = [place(i, size) for i, size in zip(pair, x.shape, strict=True)]
        if None not in at:
            result[tuple(at)] = updates[k]  # type: ignore[arg-type]
    return result


COLUMN = np.repeat(ROWS[:, None], 5, 1)
COLUMN[:, 1:] = COLUMN[::-1, 1:]
PAIRS = np.array([(i, j) for i in FAR for j in (0, 1, 4, 5, -5, -6, 2**32, -(2**62))], np.int64)
"""Indices into [4, 5]."""
X = np.arange(10, 30, dtype=np.float32).reshape(4, 5)
FORMS: dict[str, tuple[str, str, Callable[..., Array], tuple[Array, ...]]] = {
    "Gather": ("(float[4,5] x, int64[a] i) => (float[a,5] y)", "y = Gather (x, i)", rows, (ROWS,)),
    "of what is computed": (
        "(float[4,5] x, int64[a] i) => (float[a,5] y)", "e = Exp (x) y = Gather (e, i)",
        lambda x, i: rows(np.exp(x), i), (ROWS,),
    ),
    "of a slice": (
        "(float[4,5] x, int64[a] i) => (float[a,5] y)",
        "b = Constant <value_ints = [1]> () e = Constant <value_ints = [3]> ()"
        " s = Slice (x, b, e) y = Gather (s, i)",
        lambda x, i: rows(x[1:3], i), (ROWS,),
    ),
    "GatherElements": (
        "(float[4,5] x, int64[a,5] i) => (float[a,5] y)", "y = GatherElements (x, i)",
        elements, (COLUMN,),
    ),
    "GatherND": (
        "(float[4,5] x, int64[a,2] i) => (float[a] y)", "y = GatherND (x, i)", tuples, (PAIRS,),
    ),
    "ScatterElements": (
        "(float[4,5] x, int64[a,5] i, float[a,5] u) => (float[4,5] y)",
        "y = ScatterElements (x, i, u)", put_elements,
        (COLUMN, -np.arange(COLUMN.size, dtype=np.float32).reshape(-1, 5)),
    ),
    "ScatterND": (
        "(float[4,5] x, int64[a,2] i, float[a] u) => (float[4,5] y)",
        "y = ScatterND (x, i, u)", put_tuples,
        (PAIRS, -np.arange(len(PAIRS), dtype=np.float32)),
    ),
}  # fmt: skip


def feeds_of(form: str) -> tuple[dict[str, Array], Array]:
    _, _, meaning, rest = FORMS[form]
    return dict(zip(("x", "i", "u"), (X, *rest), strict=False)), meaning(X, *rest)


@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "apart"])
@pytest.mark.parametrize("dims", [True, False], ids=["bound", "open"])
@pytest.mark.parametrize("form", FORMS)
def test_native(form: str, dims: bool, fusion: bool) -> None:
    signature, body, _, rest = FORMS[form]
    feeds, want = feeds_of(form)
    bound = {"a": len(rest[0])} if dims else {}
    made = fuser.compile(
        model(signature, body), device="cpu", dims=bound, dynamic=not dims, fusion=fusion
    )
    np.testing.assert_allclose(made.run(feeds)["y"], want, 1e-6)


@pytest.mark.parametrize("form", ["Gather", "GatherND", "ScatterElements", "ScatterND"])
def test_open_data(form: str) -> None:
    """The axes that are indexed are open, too."""
    signature, body, _, _ = FORMS[form]
    feeds, want = feeds_of(form)
    opened = signature.replace("float[4,5]", "float[p,q]").replace("float[a,5]", "float[a,q]")
    opened = opened.replace("int64[a,5]", "int64[a,q]")
    made = fuser.compile(model(opened, body), device="cpu", dynamic=True)
    np.testing.assert_allclose(made.run(feeds)["y"], want, 1e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_programs_hold_indices_near_the_axis(form: str, target: str) -> None:
    """Both back ends may then compute places in 32 bits."""
    signature, body, _, rest = FORMS[form]
    feeds, want = feeds_of(form)
    graph = run_passes(import_onnx(model(signature, body), {"a": len(rest[0])}))
    parts = partition(graph, TARGETS[target])
    found = run_partition(parts, feeds, TARGETS[target])["y"]
    np.testing.assert_allclose(found.reshape(want.shape), want, 1e-6)
    seen = 0
    for region in parts.regions:
        for program in emit(region, parts, TARGETS[target], None):
            for op in program.kernel.walk():
                if isinstance(op, ops.Load | ops.Store | ops.AtomicAdd):
                    expressions: tuple[Index, ...] = op.indices
                elif isinstance(op, ops.IndexTile):
                    expressions = (op.expression,)
                else:
                    continue
                for expression in expressions:
                    for atom, _ in expression.terms:
                        if isinstance(atom, Lookup):
                            seen += 1
                            assert -64 <= atom.value.low <= atom.value.high <= 64
    if form.startswith("Gather"):
        assert seen


@pytest.mark.parametrize("index", [99, -99, 4, -5, 2**32, 3, -4])
def test_constant_indices(index: int) -> None:
    made = fuser.compile(
        model(
            "(float[4,5] x) => (float[1,5] y)",
            f"i = Constant <value_ints = [{index}]> () e = Neg (x) y = Gather (e, i)",
        ),
        device="cpu",
    )
    np.testing.assert_array_equal(made.run({"x": X})["y"], rows(-X, np.array([index])))


def test_narrow_and_unsigned_indices() -> None:
    for dtype, numbers in (
        ("int32", np.int32([3, -4, 4, -5, 2**31 - 1, -(2**31)])),
        ("int64", np.int64([3, -4, 4, -5, 0, 1])),
    ):
        made = fuser.compile(
            model(f"(float[4,5] x, {dtype}[6] i) => (float[6,5] y)", "y = Gather (x, i)"),
            device="cpu",
        )
        np.testing.assert_array_equal(made.run({"x": X, "i": numbers})["y"], rows(X, numbers))
