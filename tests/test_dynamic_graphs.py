"""Random graphs with open dims, run at sizes that they were not compiled for."""

import random
from collections.abc import Callable

import numpy as np
import onnx.helper as oh
import pytest

from fuser.dtypes import from_numpy
from fuser.frontends.onnx.model import Model, open_model, reference
from fuser.pipeline.devices import Device
from fuser.pipeline.dynamic import DynamicPlan
from tests.numerics import assert_close

Shape = tuple[str | int, ...]


class Drawing:
    """A graph in the making: values by name with their symbolic shapes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes: list[object] = []
        self.constants: list[object] = []
        self.inputs: dict[str, Shape] = {}
        self.values: dict[str, Shape] = {}
        for number in range(rng.choice((1, 2, 3))):
            shape = tuple(rng.choice(("a", "b", "c", 5, 8, 24)) for _ in range(rng.choice((2, 3))))
            if not any(isinstance(dim, str) for dim in shape):
                shape = ("a", *shape[1:])
            self.inputs[f"x{number}"] = self.values[f"x{number}"] = shape

    def fresh(self) -> str:
        return f"v{len(self.nodes)}_{len(self.constants)}"

    def emit(self, op: str, inputs: list[str], shape: Shape, **attributes: object) -> None:
        name = self.fresh()
        self.nodes.append(oh.make_node(op, inputs, [name], **attributes))
        self.values[name] = shape

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        kind = 7 if array.dtype.kind == "i" else 1
        self.constants.append(oh.make_tensor(name, kind, array.shape, array.reshape(-1)))
        return name

    def pick(self) -> tuple[str, Shape]:
        recent = list(self.values.items())[-5:]
        return self.rng.choice(recent)

    # steps --------------------------------------------------------------------------------------

    def unary(self) -> None:
        name, shape = self.pick()
        self.emit(self.rng.choice(("Tanh", "Neg", "Abs", "Sigmoid")), [name], shape)

    def binary(self) -> None:
        name, shape = self.pick()
        same = [other for other, s in self.values.items() if s == shape]
        op = self.rng.choice(("Add", "Mul", "Max"))
        self.emit(op, [name, self.rng.choice(same)], shape)

    def reduce(self) -> None:
        name, shape = self.pick()
        axis = self.rng.randrange(len(shape))
        keep = tuple(1 if i == axis else dim for i, dim in enumerate(shape))
        op = self.rng.choice(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceL2"))
        self.emit(op, [name, self.constant(np.array([axis]))], keep, keepdims=1)
        last = list(self.values)[-1]
        self.emit("Add", [name, last], shape)

    def softmax(self) -> None:
        name, shape = self.pick()
        self.emit("Softmax", [name], shape, axis=self.rng.randrange(len(shape)))

    def transpose(self) -> None:
        name, shape = self.pick()
        order = self.rng.sample(range(len(shape)), len(shape))
        self.emit("Transpose", [name], tuple(shape[i] for i in order), perm=order)

    def product(self) -> None:
        name, shape = self.pick()
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        turned = tuple(shape[i] for i in order)
        self.emit("Transpose", [name], turned, perm=order)
        last = list(self.values)[-1]
        self.emit("MatMul", [name, last], (*shape[:-1], shape[-2]))
        last = list(self.values)[-1]
        self.emit("Tanh", [last], self.values[last])

    def weights(self) -> None:
        name, shape = self.pick()
        if not isinstance(shape[-1], int):
            return
        columns = self.rng.choice((3, 16, 33))
        table = np.random.default_rng(columns).normal(0, 0.4, (shape[-1], columns))
        made = self.constant(table.astype(np.float32))
        self.emit("MatMul", [name, made], (*shape[:-1], columns))

    def merge(self) -> None:
        name, shape = self.pick()
        if len(shape) != 3 or len(self.rng.sample(shape, 1)) == 0:
            return
        front = self.constant(np.array([0, -1]))
        self.emit("Reshape", [name, front], (shape[0], f"{shape[1]}*{shape[2]}"))
        last = list(self.values)[-1]
        self.emit("Softmax", [last], self.values.pop(last), axis=-1)
        flat = list(self.values)[-1]
        sizes = self.fresh()
        self.nodes.append(oh.make_node("Shape", [name], [sizes]))
        self.values.pop(flat)
        self.emit("Reshape", [flat, sizes], shape)

    def double(self) -> None:
        name, shape = self.pick()
        axis = self.rng.randrange(len(shape))
        wide = self.fresh()
        self.nodes.append(oh.make_node("Concat", [name, name], [wide], axis=axis))
        sizes, part = self.fresh(), self.fresh() + "p"
        self.nodes.append(oh.make_node("Shape", [name], [sizes], start=axis, end=axis + 1))
        self.nodes.append(oh.make_node("Div", [sizes, self.constant(np.array([2]))], [part]))
        self.nodes.append(oh.make_node("Add", [sizes, part], [part + "e"]))
        where = self.constant(np.array([axis]))
        self.emit("Slice", [wide, part, part + "e", where], shape)

    def running(self) -> None:
        name, shape = self.pick()
        axis = self.constant(np.array(self.rng.randrange(len(shape))))
        self.emit("CumSum", [name, axis], shape)
        last = list(self.values)[-1]
        self.emit("Tanh", [last], shape)

    def build(self) -> Model:
        steps: list[Callable[[], None]] = [
            self.unary, self.binary, self.binary, self.reduce, self.softmax, self.transpose,
            self.product, self.weights, self.merge, self.double, self.running,
        ]  # fmt: skip
        for _ in range(self.rng.randint(3, 9)):
            self.rng.choice(steps)()
        inputs = [oh.make_tensor_value_info(n, 1, s) for n, s in self.inputs.items()]
        last = [name for name in self.values if name not in self.inputs][-2:]
        outputs = [oh.make_tensor_value_info(name, 1, None) for name in last]
        graph = oh.make_graph(self.nodes, "drawn", inputs, outputs, self.constants)
        return open_model(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)]))


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(s, marks=pytest.mark.slow) for s in range(12, 300))]
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_random_graph(seed: int, device: Device) -> None:
    rng = random.Random(seed)
    drawing = Drawing(rng)
    model = drawing.build()
    plan = DynamicPlan(model, device=device, fusion=rng.random() < 0.9)
    for _ in range(4):
        sizes = {name: rng.choice((2, 3, 5, 8, 17, 24, 40)) for name in "abc"}
        draw = np.random.default_rng(seed)
        feeds = {
            name: draw.normal(0, 1, [sizes.get(str(d), d) for d in shape]).astype(np.float32)
            for name, shape in drawing.inputs.items()
        }
        used = {n: s for n, s in sizes.items() if any(n in v for v in drawing.inputs.values())}
        outputs = plan.run(feeds)
        for name, expected in reference(model, feeds, used).items():
            assert_close(outputs[name], expected, from_numpy(outputs[name].dtype), 1 << 14)
