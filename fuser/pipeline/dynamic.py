"""`DynamicPlan`: a model ready to run at any size of its symbolic dims.

plan = fuser.compile("model.onnx", dynamic=True)
plan.run({"x": np.zeros((3, 70))})        # kernels for a range of sizes
plan.run({"x": np.zeros((9, 51))})        # the same kernels
print(plan.explain())                     # which sizes have which kernels, and why
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser.errors import UsageError
from fuser.graph.ir import TensorType
from fuser.graph.units import counted
from fuser.pipeline.dynamic_store import (
    SavedVariants,
    load_variants,
    save_variants,
    variants_file,
)
from fuser.pipeline.options import CompileOptions, Progress, quiet
from fuser.pipeline.source import GraphSource, symbols
from fuser.pipeline.specialise import Specialised
from fuser.pipeline.variants import Variant
from fuser.runtime.feeds import check_names
from fuser.runtime.plan import Plan
from fuser.runtime.plan_report import Report
from fuser.runtime.program import TensorSpec
from fuser.runtime.shown import MOST_ROWS, Shown, Summary, specs_shown
from fuser.runtime.terminal import table

if TYPE_CHECKING:
    from fuser.pipeline.devices import Device
    from fuser.pipeline.fusion import Fusing
    from fuser.pipeline.precision import Precision
    from fuser.runtime.latency import Latency


class DynamicPlan(Shown):
    """A model and its kernels for ranges of sizes; more are compiled when sizes outside of them
    come. Safe to use from many threads.

    dims: sizes that are fixed. progress: called before each compile, the first included.
    The rest is as for `fuser.compile`. Raises what that raises.
    """

    def __init__(
        self,
        model: GraphSource,
        *,
        device: Device = "auto",
        dims: Mapping[str, int] | None = None,
        threads: int | None = None,
        fusion: Fusing = True,
        precision: Precision = "model",
        progress: Progress | None = None,
    ) -> None:
        unknown = sorted(set(dims or {}) - set(symbols(model)))
        if unknown:
            raise UsageError(f"unknown dim {unknown[0]!r}", hint=f"{sorted(symbols(model))}")
        self._types: Mapping[str, TensorType] = model.inputs
        self._bind: Callable[[Mapping[str, int]], dict[str, int]] = model.bind
        self._fixed = dict(dims or {})
        self._how: Specialised | SavedVariants = Specialised(
            model,
            CompileOptions(
                device=device, threads=threads, fusion=fusion, precision=precision,
                progress=progress or quiet,
            ),
            dynamic=True, fixed=dims,
        )  # fmt: skip

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs; a dim of a shape is an int or a symbolic expression, which prints."""
        return tuple(_symbolic_spec(name, type) for name, type in self._types.items())

    @property
    def variants(self) -> Sequence[Variant]:
        """What was compiled so far."""
        return self._how.variants

    @property
    def plans(self) -> Sequence[Plan]:
        """A plan for each of the sizes met last."""
        return self._how.plans

    def plan(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan for the sizes of these feeds. Raises FeedError, and what compiling raises."""
        return self._how.plan(feeds)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run on arrays by input name; new output arrays by name. Raises FeedError, and what
        compiling raises."""
        return self._how.run(feeds)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run on arrays in input order, or by name. One output comes back as itself, several as a
        tuple. Raises FeedError, UsageError."""
        names = [spec.name for spec in self.inputs]
        if len(arrays) > len(names):
            raise UsageError(
                f"{len(arrays)} arrays for {len(names)} inputs", hint=f"the inputs are {names}"
            )
        feeds = dict(zip(names, arrays, strict=False))
        if twice := [name for name in named if name in feeds]:
            raise UsageError(f"input {twice[0]!r} is given by position and by name")
        results = tuple(self.run({**feeds, **named}).values())
        return results[0] if len(results) == 1 else results

    def prepare(self, dims: Mapping[str, int]) -> Variant:
        """Compile now for sizes that will come, unless kernels for them are there; those not given
        have their usual sizes. Raises what compiling raises."""
        return self._how.prepare(self._bind({**self._fixed, **dims}))

    def profile(
        self, feeds: Mapping[str, Any], *, iterations: int = 30, warmup: int = 5
    ) -> Latency:
        """`Plan.profile` at the sizes of these feeds."""
        check_names(self.inputs, feeds)
        return self.plan(feeds).profile(feeds, iterations=iterations, warmup=warmup)

    def report(self, feeds: Mapping[str, Any]) -> Report:
        """`Plan.report` at the sizes of these feeds."""
        return self.plan(feeds).report()

    def save(self, path: Path | str) -> None:
        """Write what was compiled so far to a file for `DynamicPlan.load`; it holds native code for
        this device. Raises UsageError where nothing was, or kernels are for values of inputs."""
        self._check_saves()
        save_variants(path, self._types, self.variants)

    def _check_saves(self) -> None:
        if not self.variants:
            raise UsageError(
                "nothing is compiled for ranges of sizes", hint="run the plan, or prepare() sizes"
            )
        if isinstance(self._how, Specialised) and self._how.has_values:
            raise UsageError("kernels for values of inputs cannot be saved")

    @classmethod
    def load(cls, path: Path | str, *, threads: int | None = None, device: int = 0) -> DynamicPlan:
        """A saved plan, ready to run on a device of the same kind; trust it as you trust a program.
        It has kernels for the saved ranges and compiles nothing: other sizes are a UsageError.
        device: which GPU. Raises UsageError, InvalidModelError or DeviceError."""
        return cls._of(load_variants(path, threads, device))

    @classmethod
    def _of(cls, found: SavedVariants) -> DynamicPlan:
        made = cls.__new__(cls)
        made._types, made._fixed, made._bind, made._how = found.inputs, {}, dict, found
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle is the saved plan, what was compiled so far. Raises UsageError as `save`."""
        self._check_saves()
        data = b"".join(variants_file(self._types, self.variants))
        return _restore, (data, self.variants[0].threads, self.variants[0].ordinal)

    def __copy__(self) -> DynamicPlan:
        return self  # what it compiles serves every copy

    def __deepcopy__(self, memo: Any) -> DynamicPlan:
        return self

    def explain(self) -> str:
        """A table of the variants: the sizes that each serves, and what bounds them."""
        return explain_variants(self.variants)

    def _summary(self) -> Summary:
        variants = self.variants
        target = variants[0].bound.target if variants else None
        kernels = [counted(len(variant.bound.steps), "kernel") for variant in variants]
        sizes = [
            ", ".join(f"{name} {bucket}" for name, bucket in variant.buckets.items())
            for variant in variants
        ]
        facts = [
            ("device", f"{target.name} ({target.arch})" if target else "not compiled yet"),
            *zip(sizes, kernels, strict=True),
        ]
        short = [target.name] if target else []
        return Summary(
            variants[0].bound.name if variants else "", specs_shown(self.inputs),
            specs_shown(spec for _, spec in variants[0].bound.outputs) if variants else [],
            facts[: MOST_ROWS + 1], [*short, counted(len(variants), "range") + " of sizes"],
        )  # fmt: skip

    def close(self) -> None:
        """Free the memory of every plan."""
        for plan in self.plans:
            plan.close()


def _restore(data: bytes, threads: int | None, ordinal: int) -> DynamicPlan:
    """A plan from its pickle."""
    return DynamicPlan._of(load_variants(data, threads, ordinal))


def explain_variants(variants: Sequence[Variant]) -> str:
    """The table of `DynamicPlan.explain`."""
    if not variants:
        return "nothing is compiled for ranges of sizes"
    head, rows = ("variant", "sizes", "kernels", "further bounds", "asked by"), []
    for variant in variants:
        sizes = ", ".join(f"{name} {bucket}" for name, bucket in variant.buckets.items())
        first = (str(variant.number), sizes, str(len(variant.bound.steps)))
        bounds = [(str(guard), guard.where) for guard in variant.conditions]
        if variant.note:
            bounds.append((variant.note, ""))
        for number, bound in enumerate(bounds or [("", "")]):
            rows.append((*(first if not number else ("", "", "")), *bound))
    return table(rows, head)


def _symbolic_spec(name: str, type: TensorType) -> TensorSpec:
    return TensorSpec(name, type.dtype, type.shape)  # type: ignore[arg-type]
