"""`fuser doctor`: is this machine ready?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import click

from fuser.errors import FuserError
from fuser.report.doctor import Check, examine


@click.command("doctor")
def doctor_command() -> int:
    """Check this machine: Python packages, CPU, GPU, kernel cache; compile and run one kernel."""
    from fuser.report.progress import Progress
    from fuser.runtime.terminal import echo, table

    with Progress() as progress:
        checks = []
        for check in itertools.chain(examine(), _self_test()):
            checks.append(check)
            progress.step("checking, and compiling a kernel")
    rows = [
        ("ok" if check.ok else "note" if check.optional else "FAIL", check.name, check.text)
        for check in checks
    ]
    echo(table(rows, paint=True, colours={"ok": "green", "note": "yellow", "FAIL": "red"}))
    return 0 if all(check.ok or check.optional for check in checks) else 5


def _self_test() -> Iterator[Check]:
    """Compile y = relu(x @ w) and compare it with NumPy."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from fuser.frontends.onnx.model import compile

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 33), np.float32), rng.standard_normal((33, 17), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])],
        "self_test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (5, 17))],
        [numpy_helper.from_array(w, "w")],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    try:
        y = compile(model, device="cpu").run({"x": x})["y"]
    except FuserError as error:
        yield Check("self test", str(error), ok=False)
        return
    error_norm = float(np.linalg.norm(y - np.maximum(x @ w, 0)))
    yield Check(
        "self test", f"a fused matmul agrees with NumPy ({error_norm:.1e})", ok=error_norm < 1e-4
    )
