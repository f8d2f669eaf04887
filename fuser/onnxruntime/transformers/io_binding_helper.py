"""Types by their spelling in a session's signature, `tensor(float)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import onnx

from fuser.frontends.onnx.session import InferenceSession
from fuser.frontends.onnx.values import numpy_type

T = TypeVar("T")


class TypeHelper:
    """From the types of `get_inputs()` and `get_outputs()` to those of NumPy, PyTorch and ONNX.

    Each raises ValueError for a name or type that there is not.
    """

    @staticmethod
    def get_input_type(ort_session: InferenceSession, name: str) -> str:
        return _find({info.name: info.type for info in ort_session.get_inputs()}, name)

    @staticmethod
    def get_output_type(ort_session: InferenceSession, name: str) -> str:
        return _find({info.name: info.type for info in ort_session.get_outputs()}, name)

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        name = ort_type.removeprefix("tensor(").removesuffix(")").upper()
        numbers: dict[str, int] = dict(onnx.TensorProto.DataType.items())
        return _find(numbers, name)

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> Any:
        return numpy_type(TypeHelper.ort_type_to_onnx_type(ort_type)).type

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        import torch

        name = np.dtype(TypeHelper.ort_type_to_numpy_type(ort_type)).name
        return _find(vars(torch), name)

    @staticmethod
    def get_io_onnx_type_map(ort_session: InferenceSession) -> dict[str, int]:
        """ONNX's types by the names of inputs and outputs."""
        ends = (*ort_session.get_inputs(), *ort_session.get_outputs())
        return {info.name: TypeHelper.ort_type_to_onnx_type(info.type) for info in ends}


def _find(table: Mapping[str, T], name: str) -> T:
    if name not in table:
        raise ValueError(f"there is no {name}")
    return table[name]
