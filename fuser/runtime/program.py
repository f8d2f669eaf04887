"""What the runtime runs: launches, buffers, constants. Plain data, no device access.

`assemble` builds a `Program` from steps that name their buffers by any hashable key (a graph value,
a workspace): it decides which buffer is an input, an output, a constant or an offset in the arena,
and plans the arena by liveness. Everything is known here, before the first run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fuser.backend.module import CompiledKernel
from fuser.base.target import Target
from fuser.dtypes import BY_NAME, DType
from fuser.errors import UsageError, VerifyError
from fuser.runtime.memory import Interval, plan_memory

Space = Literal["input", "output", "constant", "arena"]
IN_PLACE = "in place"
"""Among the facts of a program whose kernels write to its inputs."""
Steady = Callable[[Sequence[int], int], None]
"""A run at addresses, on a stream: see `fuser.runtime.plan.Plan.at`."""


@dataclass(frozen=True)
class TensorSpec:
    """A model input or output, row-major."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        count = 1
        for dim in self.shape:
            count *= dim
        return count

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class BufferRef:
    """Where a kernel argument lives: the index-th input, output or constant, or a byte offset
    into the arena."""

    space: Space
    index: int


@dataclass(frozen=True)
class Zero:
    """Bytes that must be zero before a launch (the target of atomic adds)."""

    buffer: BufferRef
    bytes: int


@dataclass(frozen=True)
class Exchange:
    """A collective among ranks, of one operand and one result: what a launch is whose kernel has it
    among its facts. kind: a primitive of fuser/graph/ops/collective.py, with its groups, fold and
    root. size, result: elements of the operand and of the result of this rank."""

    kind: str
    dtype: str
    groups: tuple[tuple[int, ...], ...]
    size: int
    result: int
    fold: str = ""
    root: int = -1

    @staticmethod
    def of(kernel: CompiledKernel) -> Exchange | None:
        """That of a kernel; None for one with code. Raises KeyError, TypeError or ValueError for a
        record that makes no sense."""
        record = kernel.facts.get("collective")
        if record is None:
            return None
        groups = tuple(tuple(int(rank) for rank in group) for group in record["groups"])
        found = Exchange(**{**record, "groups": groups})
        width = BY_NAME[found.dtype].bytes
        members = {len(group) for group in groups}
        if (
            len(members) != 1
            or width < 1
            or not (isinstance(found.size, int) and isinstance(found.result, int))
        ):
            raise ValueError(f"a collective among {groups} of {found.size} {found.dtype}")
        count = members.pop()
        sizes = {
            "all_gather": (found.size, found.size * count),
            "reduce_scatter": (found.result * count, found.result),
        }.get(found.kind, (found.size, found.size))
        if (found.size, found.result) != sizes or found.size < 0:
            raise ValueError(f"{found.kind} of {found.size} elements to {found.result}")
        return found


@dataclass(frozen=True)
class Launch:
    """One kernel call. `arguments` follow the kernel's buffers. `zeros` are cleared first.

    label: what a profile prints, by default the kernel's name. cost: estimated seconds on one core
    (0: unknown); the CPU runs cheap launches on the calling thread. sizes: bytes of each argument
    (none: unknown). access: a letter for each argument ("": unknown): r is read, w written, u both,
    - neither; a capital where a value in the arena is met for the first time, so that what lay
    there before is gone.
    """

    kernel: CompiledKernel
    arguments: tuple[BufferRef, ...]
    zeros: tuple[Zero, ...] = ()
    label: str = ""
    cost: float = 0.0
    sizes: tuple[int, ...] = ()
    access: str = ""

    @property
    def name(self) -> str:
        return self.label or self.kernel.name


def exchanges_of(launches: Iterable[Launch]) -> tuple[Exchange, ...]:
    """The collectives among launches, in order."""
    found = (Exchange.of(launch.kernel) for launch in launches)
    return tuple(exchange for exchange in found if exchange is not None)


def alone(name: str) -> UsageError:
    """The error of a rank's plan that runs without the other ranks."""
    return UsageError(
        f"{name} is one rank's part of a model and exchanges data with the others",
        hint="run all ranks together: fuser.compile(model, devices=N)",
    )


@dataclass(frozen=True)
class Dependence:
    """A launch, `target` by its place, that waits for an earlier one. data: it reads `bytes` that
    the other wrote. reuse: it writes where the other read or wrote something else."""

    source: int
    target: int
    kind: Literal["data", "reuse"]
    bytes: int = 0


@dataclass(frozen=True)
class Copy:
    """An output that no kernel writes: a copy of an input, a constant or another output."""

    source: BufferRef
    output: int


@dataclass(frozen=True)
class Program:
    """A compiled model. Outputs that kernels write are written in place; `copies` come last."""

    target: Target
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    launches: tuple[Launch, ...]
    constants: tuple[np.ndarray, ...] = ()
    arena_bytes: int = 0
    copies: tuple[Copy, ...] = ()
    name: str = "model"
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def constant_bytes(self) -> int:
        return sum(array.nbytes for array in self.constants)

    @property
    def peak_memory_bytes(self) -> int:
        """Arena, constants, inputs and outputs: all the memory a run touches."""
        ends = sum(spec.bytes for spec in (*self.inputs, *self.outputs))
        return self.arena_bytes + self.constant_bytes + ends


@dataclass(frozen=True)
class Step:
    """A launch before its buffers are placed. `operands` are keys, in the kernel's buffer order;
    `zeroed` are those of them that must be zero first. See `Launch` for label, cost and access,
    which has small letters alone."""

    kernel: CompiledKernel
    operands: tuple[Hashable, ...]
    zeroed: tuple[Hashable, ...] = ()
    label: str = ""
    cost: float = 0.0
    access: str = ""


def _with_workspaces(
    steps: Sequence[Step], sizes: Mapping[Hashable, int]
) -> tuple[list[Step], dict[Hashable, int]]:
    """Steps and sizes with the workspaces of kernels as further operands."""
    table = dict(sizes)
    found = []
    for position, step in enumerate(steps):
        if step.kernel.workspace_bytes:
            key = ("workspace of step", position)
            table[key] = step.kernel.workspace_bytes
            access = step.access and f"{step.access}u"
            step = replace(step, operands=(*step.operands, key), access=access)
        found.append(step)
    return found, table


def _owners(
    steps: Sequence[Step], first: Mapping[Hashable, int], last: Mapping[Hashable, int],
    sizes: Mapping[Hashable, int],
) -> dict[Hashable, Hashable]:  # fmt: skip
    """The key whose arena buffer each key has: its own, or that of an operand which the kernel that
    writes it first may overwrite, and which nobody reads later."""
    owner = {key: key for key in first}
    for position, step in enumerate(steps):
        taken: set[Hashable] = set()
        for pair in step.kernel.facts.get("in_place", ()):
            operand, result = (step.operands[at] for at in pair)
            if operand not in owner or result not in owner or {operand, result} & taken:
                continue
            alone = step.operands.count(operand) == step.operands.count(result) == 1
            ends = last[operand] == first[result] == position
            if alone and ends and sizes[operand] == sizes[result] and result not in step.zeroed:
                owner[result] = owner[operand]
                taken |= {operand, result}
    return owner


def assemble(
    target: Target,
    steps: Sequence[Step],
    inputs: Sequence[tuple[Hashable, TensorSpec]],
    outputs: Sequence[tuple[Hashable, TensorSpec]],
    constants: Mapping[Hashable, np.ndarray],
    sizes: Mapping[Hashable, int],
    name: str = "model",
) -> Program:
    """Give every key a buffer and return the Program.

    constants: C-contiguous arrays, packed as the kernels read them; only those in use are kept.
    sizes: bytes of each key that is neither an input, an output nor a constant (values between
    kernels, workspaces). An arena buffer lives from the first to the last step that names it, and
    on where a result takes its place (facts["in_place"] of a kernel).
    An output key may also be an input or a constant, or repeat: it becomes a copy. A kernel that
    wants a workspace gets it behind its operands.
    Raises VerifyError for an operand that nothing defines.
    """
    steps, sizes = _with_workspaces(steps, sizes)
    refs: dict[Hashable, BufferRef] = {}
    kept: list[np.ndarray] = []
    for position, (key, _) in enumerate(inputs):
        refs.setdefault(key, BufferRef("input", position))

    def constant(key: Hashable) -> BufferRef:
        if key not in refs:
            refs[key] = BufferRef("constant", len(kept))
            kept.append(constants[key])
        return refs[key]

    named = {key for step in steps for key in step.operands}
    copies: list[Copy] = []
    for position, (key, spec) in enumerate(outputs):
        if key in refs:
            copies.append(Copy(refs[key], position))
        elif key in constants:
            copies.append(Copy(constant(key), position))
        elif key in named or spec.bytes == 0:
            refs[key] = BufferRef("output", position)
        else:
            raise VerifyError("no kernel writes an output", where=spec.name)

    first: dict[Hashable, int] = {}
    last: dict[Hashable, int] = {}
    for position, step in enumerate(steps):
        for key in step.operands:
            if key in refs:
                continue
            if key in constants:
                constant(key)
            elif key in sizes:
                first.setdefault(key, position)
                last[key] = position
            else:
                raise VerifyError(f"nothing defines the operand {key!r}", where=step.kernel.name)
    owner = _owners(steps, first, last, sizes)
    ends: dict[Hashable, int] = {}
    for key, buffer in owner.items():
        ends[buffer] = max(ends.get(buffer, 0), last[key])
    intervals = [Interval(first[key], ends[key], sizes[key]) for key in ends]
    offsets, arena_bytes = plan_memory(intervals, 256 if target.is_cuda else 64)
    places = dict(zip(ends, offsets, strict=True))
    for key in first:
        refs[key] = BufferRef("arena", places[owner[key]])

    extents = dict(sizes) | {key: constants[key].nbytes for key in refs if key in constants}
    extents |= {key: spec.bytes for key, spec in (*inputs, *outputs)}
    launches = tuple(
        Launch(
            step.kernel,
            tuple(refs[key] for key in step.operands),
            tuple(Zero(refs[key], extents[key]) for key in step.zeroed),
            step.label,
            step.cost,
            tuple(extents[key] for key in step.operands),
            "".join(
                letter.upper() if first.get(key) == position else letter
                for key, letter in zip(step.operands, step.access, strict=bool(step.access))
            ),
        )
        for position, step in enumerate(steps)
    )
    return Program(
        target,
        tuple(spec for _, spec in inputs),
        tuple(spec for _, spec in outputs),
        launches,
        tuple(kept),
        arena_bytes,
        tuple(copies),
        name,
    )
