"""Write an ONNX graph node by node, with weights that depend on a seed and their name alone."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
Dim = int | str
Value = str

DTYPES: Mapping[str, int] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}

BLOCK = 32
"""Weights of a column that share a scale, where they have few bits."""

# protobuf cannot serialise a message of 2 GiB.
_PROTOBUF_LIMIT = 2**31 - 2**20


class Writer:
    """One graph under construction. Values are their names.

    dtype: of the weights and activations: float32, float16 or bfloat16.
    weights: trained parameters by name, in the layout of torch; without them they are drawn.
    bits: of the weights of projections, 4 or 8: MatMulNBits in blocks of 32; 0 leaves them.
    """

    def __init__(
        self,
        name: str,
        dtype: str = "float32",
        *,
        seed: int = 0,
        opset: int = 17,
        weights: Mapping[str, Array] | None = None,
        bits: int = 0,
    ) -> None:
        if bits not in (0, 4, 8):
            raise ValueError(f"weights of {bits} bits: choose 4 or 8")
        self.bits = bits
        if dtype not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"dtype {dtype!r}: choose float32, float16 or bfloat16")
        self.name = name
        self.dtype = dtype
        self.opset = opset
        self._seed = seed
        self._trained = weights
        self._scopes: list[str] = []
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._name_counts: Counter[str] = Counter()

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Put `name` into the names of the nodes and parameters written inside."""
        self._scopes.append(name)
        yield
        self._scopes.pop()

    def input(self, name: str, shape: Sequence[Dim], dtype: str | None = None) -> Value:
        elem_type = DTYPES[dtype or self.dtype]
        self._inputs.append(helper.make_tensor_value_info(name, elem_type, shape))
        return name

    def output(
        self, name: str, value: Value, shape: Sequence[Dim], dtype: str | None = None
    ) -> None:
        """Make `value`, the result of the node written last, an output called `name`."""
        node = self._nodes[-1]
        node.output[list(node.output).index(value)] = name
        elem_type = DTYPES[dtype or self.dtype]
        self._outputs.append(helper.make_tensor_value_info(name, elem_type, shape))

    def op(self, op_type: str, *inputs: Value, **attributes: Any) -> Value:
        """Write a node with one output."""
        return self.ops(op_type, *inputs, outputs=1, **attributes)[0]

    def ops(self, op_type: str, *inputs: Value, outputs: int, **attributes: Any) -> list[Value]:
        """Write a node with several outputs. An empty string leaves an optional input out."""
        stem = "/".join(["", *self._scopes, op_type])
        count = self._name_counts[stem]
        self._name_counts[stem] += 1
        name = f"{stem}_{count}" if count else stem
        results = [f"{name}_output_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(op_type, inputs, results, name=name, **attributes))
        return results

    def constant(self, name: str, array: Array) -> Value:
        """An initializer; equal names share one."""
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def integers(self, values: Sequence[int]) -> Value:
        """An int64 vector: a shape, axes, starts or ends."""
        name = "int64_" + "_".join(str(value) for value in values)
        return self.constant(name, np.array(values, np.int64))

    def index(self, value: int) -> Value:
        """An int64 scalar: gathering with it drops the axis."""
        return self.constant(f"index_{value}", np.array(value, np.int64))

    def scalar(self, value: float, dtype: str | None = None) -> Value:
        """A scalar of the model's dtype, or of the one given."""
        dtype = dtype or self.dtype
        return self.constant(f"{dtype}_{value:.9g}", np.array(value, _numpy_dtype(dtype)))

    @property
    def elem_type(self) -> int:
        """The ONNX number of the model's dtype."""
        return DTYPES[self.dtype]

    def lowest(self) -> float:
        """The lowest finite number of the model's dtype: what masks put where nothing may look."""
        if self.dtype == "float16":
            return -65504.0
        return float(np.finfo(np.float32).min) if self.dtype == "float32" else -3.3895314e38

    def weight(
        self, name: str, shape: Sequence[int], fan_in: int, *, linear: bool = False
    ) -> Value:
        """A parameter drawn from N(0, 1/fan_in), so that a unit input gives a unit output.

        linear: shape is [in, out], and a trained parameter is stored as [out, in].
        """
        return self._parameter(name, shape, 0.0, fan_in**-0.5, transpose=linear)

    def coded_projection(self, x: Value, name: str, inputs: int, outputs: int) -> Value:
        """x times a parameter [inputs, outputs] that is rounded to whole numbers of `bits` bits
        with a scale for each BLOCK of a column, as MatMulNBits stores it. inputs: a multiple of
        BLOCK."""
        path = ".".join([*self._scopes, name])
        if f"{path}.codes" not in self._initializers:
            self.weight(name, (inputs, outputs), inputs, linear=True)
            whole = numpy_helper.to_array(self._initializers.pop(path)).astype(np.float32)
            blocks = whole.T.reshape(outputs, inputs // BLOCK, BLOCK)
            zero = 1 << (self.bits - 1)
            scale = np.abs(blocks).max(axis=2) / (zero - 1)
            codes = np.rint(blocks / scale[..., None]).astype(np.int16) + zero
            codes = codes.astype(np.uint8)
            if self.bits == 4:
                codes = codes[..., ::2] | codes[..., 1::2] << 4
            self.constant(f"{path}.codes", codes)
            self.constant(f"{path}.scales", scale.astype(_numpy_dtype(self.dtype)))
        return self.op(
            "MatMulNBits", x, f"{path}.codes", f"{path}.scales", domain="com.microsoft",
            K=inputs, N=outputs, bits=self.bits, block_size=BLOCK,
        )  # fmt: skip

    def bias(self, name: str, shape: Sequence[int]) -> Value:
        return self._parameter(name, shape, 0.0, 0.05)

    def gain(self, name: str, shape: Sequence[int], mean: float = 1.0) -> Value:
        """The scale of a norm, spread around `mean`."""
        return self._parameter(name, shape, mean, 0.05 * mean)

    def variance(self, name: str, shape: Sequence[int]) -> Value:
        """A running variance: about one, always positive."""
        return self._parameter(name, shape, 1.0, 0.05)

    def _parameter(
        self,
        name: str,
        shape: Sequence[int],
        mean: float,
        deviation: float,
        *,
        transpose: bool = False,
    ) -> Value:
        path = ".".join([*self._scopes, name])
        if path in self._initializers:
            return path
        if self._trained is None:
            generator = np.random.default_rng([self._seed, zlib.crc32(path.encode())])
            array = generator.standard_normal(tuple(shape), np.float32)
            array *= np.float32(deviation)
            array += np.float32(mean)
        else:
            array = self._trained[path].T if transpose else self._trained[path]
            if array.shape != tuple(shape):
                raise ValueError(f"{path}: shape {array.shape}, expected {tuple(shape)}")
        return self.constant(path, np.ascontiguousarray(array.astype(_numpy_dtype(self.dtype))))

    def model(self) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._initializers.values())
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if self.bits:
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        return helper.make_model(
            graph,
            producer_name="fuser-models",
            opset_imports=opsets,
            ir_version=helper.find_min_ir_version_for(opsets[:1]),
        )


def save(model: onnx.ModelProto, path: str | Path) -> None:
    """Save a model, and its weights beside it (`path`.data) where one file cannot hold them."""
    path = Path(path)
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) < _PROTOBUF_LIMIT:
        onnx.save(model, path)
        return
    weights = path.with_name(path.name + ".data")
    weights.unlink(missing_ok=True)  # onnx appends
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, path, save_as_external_data=True, location=weights.name)


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(DTYPES[dtype])
