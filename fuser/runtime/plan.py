"""The Plan: a compiled model, ready to run. Immutable and safe to use from many threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.runtime.program import Program, TensorSpec


@dataclass(frozen=True)
class Latency:
    """Milliseconds of a whole run, inputs and outputs in host memory."""

    median: float
    p90: float
    p99: float
    minimum: float
    iterations: int

    def to_dict(self) -> dict[str, float | int]:
        """The `latency_ms` object of the report."""
        return {
            "median": self.median,
            "p90": self.p90,
            "p99": self.p99,
            "iterations": self.iterations,
        }


class Plan:
    """A compiled model on a device.

        plan = Plan(program, threads=4)          # cpu; or device=0 for a cuda program
        outputs = plan.run({"x": array})
        y = plan(array)

    report: called with the plan by `plan.report()`; the compiler supplies it.
    Raises DeviceError, OutOfMemoryError or CompileError where the device refuses the program.
    """

    def __init__(
        self,
        program: Program,
        *,
        threads: int | None = None,
        device: int = 0,
        report: Callable[[Plan], Any] | None = None,
    ) -> None:
        self.program = program
        self._report = report

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.program.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.program.outputs

    @property
    def peak_memory_bytes(self) -> int:
        """Arena, constants, inputs and outputs (and staging on a GPU)."""
        return self.program.peak_memory_bytes

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run on arrays by input name; the outputs by name. Raises FeedError."""
        raise NotImplementedError

    def __call__(self, *arrays: Any) -> Any:
        """Run on arrays in input order. One output comes back as itself, several as a tuple."""
        raise NotImplementedError

    def profile(
        self,
        iterations: int = 30,
        warmup: int = 5,
        feeds: Mapping[str, Any] | None = None,
    ) -> Latency:
        """Time whole runs; seeded random feeds unless given."""
        raise NotImplementedError

    def profile_kernels(
        self, iterations: int = 10, feeds: Mapping[str, Any] | None = None
    ) -> list[tuple[str, float]]:
        """(label, median milliseconds) of each launch, in order."""
        raise NotImplementedError

    def report(self) -> Any:
        """The compiler's report on this plan, or None."""
        return self._report(self) if self._report else None

    def close(self) -> None:
        """Free device memory and code. A closed plan refuses to run."""
