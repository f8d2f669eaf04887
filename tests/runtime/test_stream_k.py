"""Plans whose kernels wait for each other's blocks, at once and one kernel after the other."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import fuser
from fuser.backend.module import CompiledKernel
from fuser.base.target import SM_90A
from fuser.dtypes import f32
from fuser.runtime.program import Step, TensorSpec, assemble

DEEP, WIDE = 4096, 1536


def test_workspaces_are_operands_of_their_own() -> None:
    """Every launch has memory for sums behind its operands, in the arena while it runs."""
    kernel = CompiledKernel("k", "sm_90a", "k", b"", (1,), workspace_bytes=4096)
    spec = TensorSpec("x", f32, (16,))
    steps = [Step(kernel, ("x", "t")), Step(kernel, ("t", "y"))]
    found = assemble(SM_90A, steps, [("x", spec)], [("y", spec)], {}, {"t": 64})
    assert [len(launch.arguments) for launch in found.launches] == [3, 3]
    assert all(launch.arguments[2].space == "arena" for launch in found.launches)
    first, between = found.launches[0].arguments[2], found.launches[0].arguments[1]
    assert abs(first.index - between.index) >= min(64, 4096)
    assert 4096 + 64 <= found.arena_bytes < 2 * 4096 + 1024  # the second takes the first's place


def chain(rng: np.random.Generator) -> tuple[bytes, np.ndarray]:
    """x @ a @ b @ a @ b, of few tiles each, so the same two kernels twice; and a @ b."""
    a = (rng.standard_normal((DEEP, WIDE)) / DEEP**0.5).astype(np.float16)
    b = (rng.standard_normal((WIDE, DEEP)) / WIDE**0.5).astype(np.float16)
    nodes = [
        helper.make_node("MatMul", [left, right], [out])
        for left, right, out in (("x", "a", "s"), ("s", "b", "t"), ("t", "a", "u"), ("u", "b", "y"))
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, (128, DEEP)) for name in ("x", "y")
    ]
    weights = [numpy_helper.from_array(a, "a"), numpy_helper.from_array(b, "b")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    wide = a.astype(np.float32) @ b.astype(np.float32)
    return model.SerializeToString(), wide


@pytest.mark.cuda
def test_plans_at_once(rng: np.random.Generator) -> None:
    """Two plans of the same kernels on two streams, whose blocks do not all fit the device at once;
    in each, kernels that start under the end of the one before. All runs have the same bits."""
    model, wide = chain(rng)
    x = rng.standard_normal((128, DEEP)).astype(np.float16)
    plans = [fuser.compile(model, device="cuda") for _ in range(2)]
    if not plans[0].program.target.arch.startswith("sm_90"):
        pytest.skip("the rules cut products on Hopper")
    facts = [launch.kernel.facts for launch in plans[0].program.launches]
    assert sum(bool(fact["stream_k"]) for fact in facts) >= 2
    results: list[list[np.ndarray]] = [[] for _ in plans]

    def use(number: int) -> None:
        for _ in range(30):
            plans[number].profile_device(iterations=20, warmup=1)
            results[number].append(plans[number](x))

    callers = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    first = results[0][0]
    for found in (*results[0], *results[1]):
        np.testing.assert_array_equal(found.view(np.uint16), first.view(np.uint16))
    expected = x.astype(np.float32) @ wide @ wide
    error = np.linalg.norm(first - expected) / np.linalg.norm(expected)
    assert error < 2e-3
    for plan in plans:
        plan.close()
