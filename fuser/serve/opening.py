"""Opening what a server is given: a plan file, or an ONNX model, which is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fuser.errors import UnsupportedError, UsageError
from fuser.frontends.load import all_of_fuser, load
from fuser.graph.dims import substitute, symbols_of
from fuser.pipeline.devices import parse_device
from fuser.runtime.plan import Plan
from fuser.serve import rows
from fuser.serve.models import Model
from fuser.serve.tensors import NAMES, Tensor

if TYPE_CHECKING:
    from fuser.pipeline.dynamic import DynamicPlan
    from fuser.pipeline.variants import Variant
    from fuser.runtime.program import TensorSpec

PLAN_MAGIC = b"FUSER"
MOST_ROWS = 8
"""Rows of a shared run unless the caller says."""


def open_model(
    path: Path | str, *, name: str = "", device: str = "auto", threads: int | None = None,
    dims: Mapping[str, int] | None = None, most: int = MOST_ROWS,
    warm: Sequence[Mapping[str, int]] = (),
) -> Model:  # fmt: skip
    """Load a plan, or compile a model, and try its batches: at the sizes of `warm` each, by names
    of dims, at small ones otherwise. most: rows of a run that requests share; 1: they share none.
    dims: sizes that a model is compiled for. device: of a plan file it says which GPU only.

    Raises UsageError, UnsupportedError for dtypes that the protocol has no name for, and what
    fuser.load and fuser.compile raise.
    """
    path = Path(path)
    name, dims = name or path.stem, dims or {}
    plan, platform = _open(path, device, threads, dims)
    if isinstance(plan, Plan):
        if warm:
            raise UsageError(f"{name} has no open sizes to prepare", where=str(path))
        return _fixed(name, plan, platform, most)
    batch = _batch(plan, dims)
    starts = [_prepare(plan, batch, sizes) for sizes in warm or [{}]]
    if not all(_is_rows(batch, variant) for variant in plan.variants):
        batch = ""
    inputs = _tensors(plan.inputs, dims)
    ladder = rows.ladder(most) if batch else ()
    model = Model(name, plan, platform, inputs, _outputs(plan), batch, ladder)
    for sizes in starts:
        shapes = [[substitute(dim, sizes) for dim in spec.shape] for spec in plan.inputs]
        model.sizes(tuple(tuple(map(int, shape[bool(batch) :])) for shape in shapes))
    return model


def _open(
    path: Path, device: str, threads: int | None, dims: Mapping[str, int]
) -> tuple[Plan | DynamicPlan, str]:
    """A plan, and the protocol's word for what it came from."""
    if is_plan(path):
        if dims:
            raise UsageError("sizes of a plan file are fixed", where=str(path))
        found = load(path, threads=threads, device=parse_device(device)[1])
        if isinstance(found, Plan):
            return found, "fuser_plan"
        from fuser.pipeline.dynamic import DynamicPlan

        if not isinstance(found, DynamicPlan):
            raise UsageError(
                "a compiled PyTorch module takes and gives trees, not named tensors",
                where=str(path), hint="serve an ONNX model, or a plan of one",
            )  # fmt: skip
        return found, "fuser_plan"
    with all_of_fuser(f"{path} is no plan file"):
        from fuser.frontends.compile import compile
    opened = compile(path, dynamic=True, device=device, dims=dims, threads=threads)
    if any(symbols_of(substitute(d, dims)) for spec in opened.inputs for d in spec.shape):
        return opened, "fuser_onnx"
    return compile(path, device=device, dims=dims, threads=threads), "fuser_onnx"


def _fixed(name: str, plan: Plan, platform: str, most: int) -> Model:
    """A plan for fixed sizes. If all inputs and outputs have the same number of rows, requests may
    have fewer of them, and share runs."""
    inputs, outputs = _tensors(plan.inputs, {}), _tensors(plan.outputs, {})
    sizes = {tensor.shape[:1] for tensor in (*inputs, *outputs)}
    (count,) = next(iter(sizes)) if len(sizes) == 1 and () not in sizes else (0,)
    if most > 1 and count > 1:
        open_inputs, open_outputs = (
            tuple(replace(tensor, shape=(-1, *tensor.shape[1:])) for tensor in tensors)
            for tensors in (inputs, outputs)
        )
        model = Model(name, plan, platform, open_inputs, open_outputs, "rows", (count,))
        if model.sizes(tuple(tensor.shape[1:] for tensor in inputs)):
            return model
    return Model(name, plan, platform, inputs, outputs)


def is_plan(path: Path) -> bool:
    """Whether a file starts as plans do. Raises UsageError."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(PLAN_MAGIC)) == PLAN_MAGIC
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _tensors(specs: Sequence[TensorSpec], dims: Mapping[str, int]) -> tuple[Tensor, ...]:
    """Raises UnsupportedError for dtypes that the protocol has no name for."""
    for spec in specs:
        if spec.dtype.numpy not in NAMES:
            raise UnsupportedError(
                f"{spec.name!r} is {spec.dtype}, for which the protocol has no name",
                hint="let the model cast it",
            )
    shapes = [[substitute(dim, dims) for dim in spec.shape] for spec in specs]
    return tuple(
        Tensor(spec.name, spec.dtype.numpy, tuple(d if isinstance(d, int) else -1 for d in shape))
        for spec, shape in zip(specs, shapes, strict=True)
    )


def _outputs(plan: DynamicPlan) -> tuple[Tensor, ...]:
    """The outputs; a size that is open for any kernels, or differs between them, is open."""
    every = [_tensors([spec for _, spec in v.bound.outputs], {}) for v in plan.variants]
    return tuple(
        Tensor(same[0].name, same[0].dtype, tuple(
            sizes[0] if len(set(sizes)) == 1 else -1
            for sizes in zip(*(tensor.shape for tensor in same), strict=True)
        ))
        for same in zip(*every, strict=True)
    )  # fmt: skip


def _batch(plan: DynamicPlan, dims: Mapping[str, int]) -> str:
    """The open dim that is axis 0 of every input and no other axis; "" where there is none."""
    shapes = [[substitute(dim, dims) for dim in spec.shape] for spec in plan.inputs]
    names = {str(shape[0]) if shape else "" for shape in shapes}
    name = next(iter(names)) if len(names) == 1 else ""
    if not shapes or {name} != symbols_of(shapes[0][0] if name else 0):
        return ""
    inner = [dim for shape in shapes for dim in shape[1:]]
    return "" if any(name in symbols_of(dim) for dim in inner) else name


def _is_rows(batch: str, variant: Variant) -> bool:
    """Whether kernels give a row of every output for each row of the inputs."""
    bucket = variant.buckets.get(batch)
    if bucket is None or bucket.least == bucket.most:
        return bucket is not None
    shapes = [spec.shape for _, spec in variant.bound.outputs]
    return all(
        shape and str(shape[0]) == batch and not any(batch in symbols_of(d) for d in shape[1:])
        for shape in shapes
    )


def _prepare(plan: DynamicPlan, batch: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Have kernels for these sizes, and say all sizes to begin with: for dims that `sizes` does not
    name the least that the kernels serve. Raises UsageError, and what compiling raises."""
    wanted = {**({batch: 2} if batch else {}), **sizes}
    try:
        variant = plan.prepare(wanted)
    except UsageError:  # a plan from a file wants all sizes
        variant = _saved(plan, sizes)
    least = {name: bucket.least for name, bucket in variant.buckets.items()} | dict(sizes)
    example = {name: bucket.example for name, bucket in variant.buckets.items()} | dict(sizes)
    return least if variant.serves(least) else example


def _saved(plan: DynamicPlan, sizes: Mapping[str, int]) -> Variant:
    for variant in plan.variants:
        buckets = variant.buckets
        if all(name in buckets and size in buckets[name] for name, size in sizes.items()):
            return variant
    ranges = "; ".join(
        ", ".join(f"{name} {bucket}" for name, bucket in variant.buckets.items())
        for variant in plan.variants
    )
    raise UsageError(f"there are no kernels for {dict(sizes)}", hint=f"sizes are {ranges}")
