"""Loops that are not written out, on the CPU: the results are those of ONNX Runtime, and what an
iteration costs beside its kernels is one native call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.parser import parse_model

import fuser.onnxruntime as ours
from fuser.base.limits import Limits
from fuser.errors import FuserError, LimitError
from fuser.frontends.onnx.importer import reader
from fuser.runtime.cpu import CpuExecutor
from fuser.runtime.cpu_loop import CpuLoop

HEAD = '<ir_version: 10, opset_import: ["": 22]>\n'
TRIPS = 1500


def loop(signature: str, call: str, body: str) -> bytes:
    text = f"{HEAD} g ({signature}) {{ {call} Loop <body = b {body}> (m, c, "
    inputs = [part.strip().split()[-1] for part in signature.split(") =>")[0].split(",")]
    names = [name for name in inputs if name not in ("m", "c", "w") and name.isidentifier()]
    model = parse_model(f"{text}{', '.join(names)}) }}")
    return bytes(model.SerializeToString())


ROW, SEED = np.array([0.5, -1.0, 2.0], np.float32), np.array(3, np.int64)
BASE = {"m": np.array(TRIPS), "c": np.array(True)}
LOOPS: dict[str, tuple[bytes, Mapping[str, Any]]] = {
    "one state": (
        loop("int64 m, bool c, float[3] x) => (float[3] y", "y =",
             "(int64 i, bool d, float[3] s) => (bool e, float[3] t)"
             "{ e = Identity(d) h = Sin(s) t = Add(h, s) }"),
        {"x": ROW},
    ),
    "rows": (
        loop("int64 m, bool c, float[3] x) => (float[3] y, float[n, 3] z", "y, z =",
             "(int64 i, bool d, float[3] s) => (bool e, float[3] t, float[3] r)"
             "{ e = Identity(d) t = Cos(s) r = Mul(s, s) }"),
        {"x": ROW},
    ),
    "the number of the iteration": (
        loop("int64 m, bool c, int64 x) => (int64 y, int64[n] z", "y, z =",
             "(int64 i, bool d, int64 s) => (bool e, int64 t, int64 r)"
             "{ e = Identity(d) t = Add(s, i) r = Mul(i, i) }"),
        {"x": SEED},
    ),
    "states that change places": (
        loop("int64 m, bool c, float[3] x, float[3] v) => (float[3] y, float[3] z", "y, z =",
             "(int64 i, bool d, float[3] s, float[3] u) => (bool e, float[3] t, float[3] r)"
             "{ e = Identity(d) t = Identity(u) r = Sin(s) }"),
        {"x": ROW, "v": ROW[::-1].copy()},
    ),
    "a state twice": (
        loop("int64 m, bool c, float[3] x, float[3] v) => (float[3] y, float[3] z", "y, z =",
             "(int64 i, bool d, float[3] s, float[3] u) => (bool e, float[3] t, float[3] r)"
             "{ e = Identity(d) t = Sin(u) r = Identity(t) }"),
        {"x": ROW, "v": ROW},
    ),
    "a state that stays": (
        loop("int64 m, bool c, float[3] x, float[3] v) => (float[3] y, float[3] z", "y, z =",
             "(int64 i, bool d, float[3] s, float[3] u) => (bool e, float[3] t, float[3] r)"
             "{ e = Identity(d) t = Mul(s, u) r = Identity(u) }"),
        {"x": ROW, "v": np.full(3, 0.99, np.float32)},
    ),
    "an end that data decides": (
        loop("int64 m, bool c, float[3] x) => (float[3] y, float[n] z", "y, z =",
             "(int64 i, bool d, float[3] s) => (bool e, float[3] t, float r)"
             "{ k = Constant <value_float = 0.999> ()  t = Mul(s, k)"
             "  r = ReduceMax <keepdims = 0> (t)  q = Constant <value_float = 0.6> ()"
             "  e = Greater(r, q) }"),
        {"x": ROW},
    ),
    "a flag": (
        loop("int64 m, bool c, bool[3] x) => (bool[3] y, bool[n, 3] z", "y, z =",
             "(int64 i, bool d, bool[3] s) => (bool e, bool[3] t, bool[3] r)"
             "{ e = Identity(d) t = Not(s) r = Identity(s) }"),
        {"x": np.array([True, False, True])},
    ),
    "a count of odd iterations": (
        loop("int64 m, bool c, float[3] x) => (float[3] y, float[n, 3] z", "y, z =",
             "(int64 i, bool d, float[3] s) => (bool e, float[3] t, float[3] r)"
             "{ e = Identity(d) t = Neg(s) r = Identity(t) }"),
        {"x": ROW, "m": np.array(TRIPS + 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_long_loops_give_what_onnx_runtime_gives(name: str) -> None:
    data, own = LOOPS[name]
    feeds = {**BASE, **own}
    kept = {key: array.copy() for key, array in feeds.items()}
    providers = ["CPUExecutionProvider"]
    session = ours.InferenceSession(data, providers=providers)
    wanted = onnxruntime.InferenceSession(data, providers=providers).run(None, feeds)
    for _ in range(2):
        found = session.run(None, feeds)
        for mine, theirs in zip(found, wanted, strict=True):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert session.fallbacks == ()
    for key, array in feeds.items():
        np.testing.assert_array_equal(array, kept[key])
    for mine in found:  # arrays of the caller's own
        assert mine.flags.writeable and not any(np.shares_memory(mine, a) for a in feeds.values())


def test_an_iteration_is_one_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a run of the plan, and no iteration is written out to find that there are too many."""
    data, own = LOOPS["one state"]
    calls = {"run": 0, "nodes": 0, "loops": 0}
    for owner, name, key in (
        (CpuExecutor, "run", "run"), (CpuExecutor, "run_into", "run"),
        (reader._Reader, "_add_node", "nodes"), (CpuLoop, "run", "loops"),
    ):  # fmt: skip
        method = getattr(owner, name)

        def counted(*args: Any, _method: Any = method, _key: str = key, **options: Any) -> Any:
            calls[_key] += 1
            return _method(*args, **options)

        monkeypatch.setattr(owner, name, counted)
    session = ours.InferenceSession(data, providers=["CPUExecutionProvider"])
    session.run(None, {**BASE, **own, "m": np.array(20_000)})
    assert calls["loops"] == 1 and calls["run"] <= 3 and calls["nodes"] < 50


@pytest.mark.parametrize("domain", ["local", "ai.onnx.ml", "com.microsoft"])
def test_an_operator_of_that_name_elsewhere_is_not_a_loop(domain: str) -> None:
    node = helper.make_node("Loop", ["x"], ["y"], domain=domain)
    info = helper.make_tensor_value_info("x", 1, [2])
    graph = helper.make_graph([node], "g", [info], [onnx.ValueInfoProto(name="y")])
    imports = [helper.make_opsetid("", 22), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    with pytest.raises(FuserError, match="Loop"):
        ours.InferenceSession(model.SerializeToString()).run(None, {"x": ROW[:2]})


def test_what_iterations_keep_is_counted() -> None:
    data, own = LOOPS["rows"]
    limits = Limits(bytes=200_000)
    session = ours.InferenceSession(data, providers=["CPUExecutionProvider"], limits=limits)
    session.run(None, {**BASE, **own, "m": np.array(3000)})
    with pytest.raises(LimitError, match="the iterations of a loop keep"):
        session.run(None, {**BASE, **own, "m": np.array(900_000)})
