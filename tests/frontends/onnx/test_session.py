"""InferenceSession: plans for the feeds it meets, and the host for what has no kernel."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx
import pytest

import fuser
from fuser import onnx_backend
from fuser.errors import FeedError, UnsupportedError, UnsupportedOpError, UsageError
from fuser.frontends.onnx.node_args import type_text
from fuser.frontends.onnx.session import InferenceSession
from fuser.pipeline import compiler
from fuser.runtime.cpu_loop import CpuLoop
from fuser.runtime.plan_loop import PlanLoop
from models import TINY, build

Array = np.ndarray[Any, Any]


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')


def test_signature() -> None:
    session = InferenceSession(
        model("m (float[batch, 3] x, int64 n) => (float[batch, 3] y) { y = Relu(x) }")
    )
    assert [(i.name, i.shape, i.type) for i in session.get_inputs()] == [
        ("x", ["batch", 3], "tensor(float)"),
        ("n", [], "tensor(int64)"),
    ]
    assert session.get_outputs()[0].shape == ["batch", 3]
    assert fuser.InferenceSession is InferenceSession
    kind = onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(8, None))
    assert type_text(kind) == "seq(tensor(string))"


def test_sizes_come_from_the_feeds(rng: np.random.Generator) -> None:
    session = InferenceSession(
        model("m (float[n, k] a, float[k, 4] b) => (float[n, 4] y) { y = MatMul(a, b) }")
    )
    for n, k in ((2, 3), (5, 7), (2, 3)):
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((n, k), (k, 4)))
        (y,) = session.run(None, {"a": a, "b": b})
        np.testing.assert_allclose(y, a @ b, rtol=1e-5, atol=1e-5)
    assert len(session.plans) == 2
    with pytest.raises(FeedError, match="missing"):
        session.run(None, {"a": a})
    with pytest.raises(UsageError, match="no output"):
        session.run(["z"], {"a": a, "b": b})


def test_a_plan_for_each_value_that_decides_a_shape(rng: np.random.Generator) -> None:
    session = InferenceSession(
        model("m (float[2, 6] x, int64[2] shape) => (float[r, c] y) { y = Reshape(x, shape) }"),
        fallback=False,
    )
    x = rng.standard_normal((2, 6)).astype(np.float32)
    for shape in ([3, 4], [12, 1], [3, 4], [-1, 2]):
        (y,) = session.run(None, {"x": x, "shape": np.array(shape)})
        np.testing.assert_array_equal(y, x.reshape(shape))
    assert session.value_inputs == ("shape",)
    assert len(session.plans) == 3
    assert session.plans[-1].report().values == ("shape",)


def test_iterations_and_branches() -> None:
    session = InferenceSession(
        model(
            """m (float[2] x, int64 n, bool up) => (float[2] y, float[t, 2] all) {
                start = If(up) <then_branch = a () => (float[2] p) { p = Identity(x) },
                                else_branch = b () => (float[2] q) { q = Neg(x) }>
                always = Constant<value = bool {1}>()
                y, all = Loop(n, always, start) <body = step
                    (int64 i, bool going, float[2] s) => (bool on, float[2] next, float[2] seen) {
                        on = Identity(going)
                        next = Add(s, x)
                        seen = Identity(s)
                    }>
            }"""
        ),
        fallback=False,
    )
    x = np.array([1, 2], np.float32)
    for n, up in ((3, True), (2, False)):
        y, rows = session.run(None, {"x": x, "n": np.array(n), "up": np.array(up)})
        first = x if up else -x
        np.testing.assert_allclose(y, first + n * x)
        np.testing.assert_allclose(rows, [first + i * x for i in range(n)])
    assert session.fallbacks == ()
    assert session.value_inputs == ("n",)  # the branches are selected from, not asked for


ROOTS = """m (float[n] x) => (float[n] y, float[t, n] all, int64 steps) {
    zero = Constant<value = int64 {0}>()
    least = Constant<value = float {0.0001}>()
    y, steps, all = Loop(, , x, zero) <body = step
        (int64 i, bool going, float[n] s, int64 k) =>
            (bool on, float[n] next, int64 count, float[n] seen) {
        half = Constant<value = float {0.5}>()
        quotient = Div(x, s)
        total = Add(s, quotient)
        next = Mul(total, half)
        change = Sub(next, s)
        size = Abs(change)
        most = ReduceMax<keepdims = 0>(size)
        on = Greater(most, least)
        one = Constant<value = int64 {1}>()
        count = Add(k, one)
        seen = Identity(next)
    }>
}"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_loop_until_data_says_so(device: str, rng: np.random.Generator) -> None:
    """Square roots by Newton's method: one body is compiled, whatever the number of iterations."""
    session = InferenceSession(model(ROOTS), device=device)
    x = rng.uniform(1, 50, 5).astype(np.float32)
    for scale in (1, 1, 100):
        y, rows, steps = session.run(None, {"x": scale * x})
        np.testing.assert_allclose(y, np.sqrt(scale * x), rtol=1e-5)
        assert 4 < steps == len(rows)
        np.testing.assert_array_equal(rows[-1], y)
        assert session.fallbacks == () and len(session.plans) == 2  # the constants', the body's


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("most", [1, 2, 3, 90])
def test_iterations_after_the_first_carry_their_state(
    device: str, most: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State that swaps and stays, the number of the iteration, what the body captures, and rows."""
    ends = "float[n] a, float[n] b, int64 last, float[t, n] rows"
    text = f"""m (float[n] x, float[k] w) => ({ends}) {{
        most = Constant<value = int64 {{{most}}}>()
        always = Constant<value = bool {{1}}>()
        zero = Constant<value = int64 {{0}}>()
        neg = Neg(x)
        a, b, last, rows = Loop(most, always, x, neg, zero) <body = step
            (int64 i, bool going, float[n] p, float[n] q, int64 was) =>
                (bool on, float[n] next, float[n] before, int64 now, float[n] row) {{
            half = Constant<value = float {{0.5}}>()
            scaled = Mul(q, half)
            sum = Add(p, scaled)
            total = ReduceMax<keepdims = 0>(w)
            next = Div(sum, total)
            before = Identity(p)
            now = Identity(i)
            row = Add(next, q)
            largest = ReduceMax<keepdims = 0>(next)
            least = Constant<value = float {{0.001}}>()
            on = Greater(largest, least)
        }}>
    }}"""
    iterations_run: list[int] = []
    run = PlanLoop.iterate

    def counted(self: PlanLoop, *arguments: Any) -> Any:
        iterations_run.append(1)
        return run(self, *arguments)

    def counted_on_the_cpu(self: CpuLoop, *arguments: Any) -> None:
        run_on_the_cpu(self, *arguments)
        iterations_run.extend([1] * self.count)

    run_on_the_cpu = CpuLoop.run
    monkeypatch.setattr(PlanLoop, "iterate", counted)
    monkeypatch.setattr(CpuLoop, "run", counted_on_the_cpu)
    session = InferenceSession(model(text), device=device)
    for n in (5, 129, 5):
        x, w = rng.uniform(1, 2, n).astype(np.float32), np.array([1.9, 0.5, 1], np.float32)
        iterations_run.clear()
        a, b, last, rows = session.run(None, {"x": x, "w": w})
        p, q, seen = x, -x, []
        while len(seen) < most and (not seen or p.max() > 0.001):
            p, q, old = (p + q * np.float32(0.5)) / w.max(), p, q
            seen.append(p + old)
        np.testing.assert_allclose(rows, seen, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(a, p, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(b, q, rtol=1e-4, atol=1e-6)
        assert last == len(seen) - 1 and session.fallbacks == ()
        assert len(iterations_run) == len(seen) - 1


def test_a_loop_whose_state_grows_runs_on_the_host() -> None:
    """A body that would be compiled for every iteration is NumPy's, and is listed."""
    text = """m (float[n] x, float limit) => (float[k] y) {
        y = Loop(, , x) <body = step (int64 i, bool going, float[a] s) => (bool on, float[b] next) {
            next = Concat<axis = 0>(s, x)
            total = ReduceSum<keepdims = 0>(next)
            on = Less(total, limit)
        }>
    }"""
    session = InferenceSession(model(text))
    x = np.ones(3, np.float32)
    for limit in (40, 7):
        (y,) = session.run(None, {"x": x, "limit": np.float32(limit)})
        assert y.tolist() == [1.0] * (-(-limit // 3) * 3)
    assert [note.split()[0] for note in session.fallbacks] == ["Loop"]


def test_a_loop_without_iterations() -> None:
    session = InferenceSession(model(ROOTS.replace("Loop(, ,", "Loop(zero, ,")))
    x = np.ones(4, np.float32)
    y, rows, steps = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, x)
    assert steps == 0 and len(rows) == 0


def test_what_depends_on_data_runs_on_the_host(rng: np.random.Generator) -> None:
    text = """m (float[n] x) => (float[k] y) {
        doubled = Add(x, x)
        at = NonZero(doubled)
        flat = Squeeze(at)
        kept = Gather(doubled, flat)
        y = Exp(kept)
    }"""
    session = InferenceSession(model(text))
    for size in (4, 9):
        x = rng.standard_normal(size).astype(np.float32) * (rng.random(size) > 0.5)
        x = x.astype(np.float32)
        x[:2] = 1
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, np.exp(2 * x[x != 0]), rtol=1e-5)
    assert [name.split()[0] for name in session.fallbacks] == ["NonZero"]
    assert session.plans
    with pytest.raises(UnsupportedError, match="NonZero"):
        InferenceSession(model(text), fallback=False).run(None, {"x": x})


def test_backend_runs_one_node() -> None:
    node = onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    x = np.array([[[[1, 3]]]], np.float32)
    (y,) = onnx_backend.run_node(node, [x, np.array([1, 1, 1, 2], np.float32)])
    np.testing.assert_allclose(y, [[[[1, 1.5, 2.5, 3]]]])
    assert onnx_backend.supports_device("CPU")
    with pytest.raises(UsageError, match="device"):
        onnx_backend.run_node(node, [x, np.array([1, 1, 1, 2], np.float32)], device="TPU")


def test_what_the_host_does_not_know_is_refused() -> None:
    """An operator of neither fuser nor the reference implementation."""
    node = onnx.helper.make_node("Nobody", ["x"], ["y"], domain="com.microsoft")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [info("x", 1, [2])], [info("y", 1, [2])])
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("com.microsoft", 1)]
    session = InferenceSession(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))
    with pytest.raises(UnsupportedOpError, match=r"Nobody of com\.microsoft has no kernel"):
        session.run(None, {"x": np.zeros(2, np.float32)})


def test_what_a_large_model_leaves_behind_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and graphs are cycles; a session compiles as `fuser.compile` does."""
    collected = []
    monkeypatch.setattr(compiler, "LARGE_BYTES", 1)
    monkeypatch.setattr(compiler, "NODE_BYTES", 0)
    monkeypatch.setattr(gc, "collect", lambda *_: collected.append(1))
    session = InferenceSession(build("mlp", **TINY["mlp"]), device="cpu")
    session.run(None, {"x": np.zeros((1, TINY["mlp"]["inputs"]), np.float32)})
    assert len(collected) == 2
