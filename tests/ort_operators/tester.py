"""The object that tests of ONNX Runtime fill: an operator's name, tensors and attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.ort_operators.cases import Case, NotPlain, Tensor, array_of

DOMAINS = {
    "kOnnxDomain": "", "kMSDomain": "com.microsoft", "kMLDomain": "ai.onnx.ml",
    "kOnnxDomainAlias": "ai.onnx",
}  # fmt: skip
DEFAULT_VERSION = 7
CONFIGURATION = frozenset(
    {"AddShapeToTensorData", "Config", "ConfigEp", "ConfigEps", "ConfigExcludeEps",
     "EnableSharingOfPrePackedWeightsAcrossSessions", "SetNumRunCalls", "SetVerifyOutput"}
)  # fmt: skip
"""Methods that say how to run, not what."""


class Tester:
    """Methods by the names that the tests use; `record` takes a finished case."""

    def __init__(self, arguments: Sequence[Any], name: str, record: Callable[[Case], None]) -> None:
        op, version, domain = (*arguments, *(DEFAULT_VERSION, "")[len(arguments) - 1 :])[:3]
        if not isinstance(op, str) or not isinstance(version, int) or not isinstance(domain, str):
            raise NotPlain("an operator that is not named plainly")
        domain = {"ai.onnx": ""}.get(domain, domain)
        self.case = Case(name, op, version, domain)
        self.record = record

    def call(self, method: str, types: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Raises NotPlain for what is not known."""
        if method in CONFIGURATION:
            return self
        if method in ("Run", "RunWithConfig"):
            if not any(isinstance(a, str) and a == "kExpectFailure" for a in arguments):
                self.record(replace(self.case, inputs=[*self.case.inputs]))
            return None
        found = getattr(self, f"_{method}", None)
        if found is None:
            raise NotPlain(f"OpTester.{method}")
        found(list(types), list(arguments))
        return self

    def _AddInput(self, types: list[str], arguments: list[Any]) -> None:
        self.case.inputs.append(self._tensor(types, arguments, constant=True))

    def _AddOutput(self, types: list[str], arguments: list[Any]) -> None:
        # name, dims, values, sort_output, relative, absolute
        if len(arguments) > 3 and arguments[3] is True:
            raise NotPlain("an output in any order")
        if len(arguments) > 4:
            self.case.relative = float(arguments[4])
        if len(arguments) > 5:
            self.case.absolute = float(arguments[5])
        self.case.outputs.append(self._tensor(types, arguments[:3]))

    def _tensor(self, types: list[str], arguments: list[Any], constant: bool = False) -> Tensor:
        if len(arguments) < 3 or not isinstance(arguments[0], str):
            raise NotPlain("a tensor that is not given plainly")
        name, dims, values = arguments[:3]
        kind = types[0] if types else getattr(values, "element", "")
        if not isinstance(dims, list) or not isinstance(values, list):
            raise NotPlain("a tensor that is not given plainly")
        if not name:  # as optional operands are left out
            return Tensor("", None)
        held = constant and len(arguments) > 3 and arguments[3] is True
        return Tensor(name, array_of(kind, dims, values), held)

    def _AddOptionalInputEdge(self, types: list[str], arguments: list[Any]) -> None:
        self.case.inputs.append(Tensor("", None))

    def _AddOptionalOutputEdge(self, types: list[str], arguments: list[Any]) -> None:
        self.case.outputs.append(Tensor("", None))

    def _AddMissingOptionalInput(self, types: list[str], arguments: list[Any]) -> None:
        self.case.inputs.append(Tensor("", None))

    def _AddAttribute(self, types: list[str], arguments: list[Any]) -> None:
        name, value = arguments
        if types and types[0] == "float":
            value = float(value)
        if not isinstance(value, int | float | str | list):
            raise NotPlain(f"an attribute of {type(value).__name__}")
        self.case.attributes[name] = value

    def _SetOutputAbsErr(self, types: list[str], arguments: list[Any]) -> None:
        self.case.absolute = float(arguments[1])

    def _SetOutputRelErr(self, types: list[str], arguments: list[Any]) -> None:
        self.case.relative = float(arguments[1])

    def _SetOutputTolerance(self, types: list[str], arguments: list[Any]) -> None:
        self.case.absolute = float(arguments[0])
        if len(arguments) > 1:
            self.case.relative = float(arguments[1])
