"""Kernels for every size of a model's symbolic dims.

A model is compiled with its symbolic dims left open (graph/sizes.py). What comes out is a
*variant*: kernels that read sizes at run time, and the guards that say for which sizes they are
right. A run looks for a variant that serves its sizes; for sizes met for the first time that costs
a memory plan, not a compile. Only where no variant serves them another one is compiled, and the
table of variants says why.

A variant also has a range of its own: schedules for a few rows are not those for a thousand. Dims
of 0 and 1 are fixed in a variant, since they change what broadcasts.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser.dtypes import DType
from fuser.errors import FuserError, UsageError, ValueNeededError
from fuser.graph.dims import Dim
from fuser.graph.sizes import LEAST, Guard, Sizes, evaluate, guard_from_list, size_hint
from fuser.pipeline.binding import Bound
from fuser.pipeline.devices import choose_target, plan_threads
from fuser.pipeline.options import CompileOptions, quiet
from fuser.pipeline.source import GraphSource, symbols
from fuser.runtime.deferred import Deferred
from fuser.runtime.inputs import Hints, input_hints
from fuser.runtime.memory import aligned_copy
from fuser.runtime.plan import Plan

if TYPE_CHECKING:  # variants that come from a file compile nothing
    from fuser.graph.ir import Graph
    from fuser.pipeline.reporting import Reporting
    from fuser.runtime.plan_report import Report

_log = logging.getLogger(__name__)

MOST_PLANS = 64
"""Sizes whose memory plans a variant keeps; those unused for longest go first."""

SHARED_BYTES = 1 << 16
"""Constants from this size on are looked for among those of other variants."""

OUTER_BUCKETS = ((LEAST, None, 7),)
"""(least, greatest, example) of the sizes that one variant of an outermost dim serves."""
INNER_BUCKETS = ((LEAST, 64, 61), (65, 512, 509), (513, None, 1021))
"""The same for other dims: the example decides the schedule, and is prime, so that it does not look
like a size of the model."""

LENGTH_BUCKET = (LEAST, None, 1021)
"""The same for what grows from run to run."""
CAPACITY_EXAMPLE = 4093
"""For the room that what grows has."""


@dataclass(frozen=True)
class Bucket:
    """The sizes of one dim that a variant serves, inclusive; `most` None: no end."""

    least: int
    most: int | None
    example: int

    def __contains__(self, size: int) -> bool:
        return self.least <= size and (self.most is None or size <= self.most)

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.least)
        return f"{self.least}..{'' if self.most is None else self.most}"


@dataclass(eq=False)
class Variant:
    """Kernels for all sizes within `buckets` at which all guards hold."""

    number: int
    buckets: Mapping[str, Bucket]
    guards: tuple[Guard, ...]
    bound: Bound
    report: Deferred[Report]
    hints: Hints
    types: Mapping[str, DType]
    threads: int | None
    note: str = ""
    """Why it serves these sizes only, where the model did not compile for a range."""
    extra: Any = None
    """What its source gave beside the graph."""
    ordinal: int = 0
    moving: frozenset[str] = frozenset()
    """Open dims whose sizes kernels of a GPU read from memory in each run."""
    reporting: Reporting | None = None
    """What reports at other sizes are made of; None of a variant from a file."""
    _plans: OrderedDict[tuple[tuple[str, int], ...], Plan] = field(default_factory=OrderedDict)

    def serves(self, dims: Mapping[str, int]) -> bool:
        """Whether the kernels are right for these sizes."""
        inside = all(dims[name] in bucket for name, bucket in self.buckets.items())
        return inside and all(guard.holds(dims) for guard in self.guards)

    def plan(self, dims: Mapping[str, int]) -> Plan:
        """The plan for sizes that it serves: memory, launches and shapes, no compile."""
        key = tuple(sorted(dims.items()))
        found = self._plans.get(key)
        if found is not None and not found.is_closed:
            self._plans.move_to_end(key)
            return found
        program = self.bound.at(dims)
        inputs, outputs = (
            tuple(replace(s, dtype=self.types.get(s.name, s.dtype)) for s in specs)
            for specs in (program.inputs, program.outputs)
        )
        program = replace(program, inputs=inputs, outputs=outputs)
        plan = Plan(
            program,
            threads=plan_threads(self.threads),
            device=self.ordinal,
            report=Deferred(lambda: self.report_at(dims)),
            hints=self.hints,
            like=next((other for other in self._plans.values() if not other.is_closed), None),
        )
        self._plans[key] = plan
        if len(self._plans) > MOST_PLANS:
            self._plans.popitem(last=False)
        return plan

    def report_at(self, dims: Mapping[str, int]) -> Report:
        """The report at sizes that it serves. Of a variant from a file the figures are those at the
        example sizes, which the report says."""
        if self.reporting is not None:
            sizes = {name: dims[name] for name in self.reporting.sizes}
            return self.reporting.at(dims, sizes, self.bound.at(dims))
        stored = self.report.get()
        notes = stored.fallbacks
        if stored.dims != dims:
            shown = ", ".join(f"{name} = {size}" for name, size in stored.dims.items())
            notes = (*notes, f"a saved plan of open sizes: the report's figures are of {shown}")
        return replace(stored, dims=dict(dims), fallbacks=notes)

    @property
    def plans(self) -> Sequence[Plan]:
        """The plans that are kept."""
        return tuple(self._plans.values())

    @property
    def conditions(self) -> tuple[Guard, ...]:
        """The guards that bound sizes; not those which hold of all that memory can hold."""
        return tuple(
            guard for guard in self.guards if guard.relation != ">=" or not self._is_implied(guard)
        )

    def _is_implied(self, guard: Guard) -> bool:
        """Whether a lower bound holds in the buckets, or of whatever memory can hold."""
        terms = dict(guard.expression.terms)
        constant = terms.pop((), 0)
        if constant >= 1 << 30:
            return True
        if len(terms) != 1:
            return False
        ((monomial, factor),) = terms.items()
        bucket = self.buckets.get(monomial[0].name) if len(monomial) == 1 else None
        if bucket is None:
            return False
        end = bucket.least if factor > 0 else bucket.most
        return end is not None and constant + factor * end >= 0


@dataclass(frozen=True)
class Source:
    """What variants are compiled from. symbols: names of its symbolic dims, and whether each is an
    outermost axis. read: the graph after the graph passes with some dims fixed, the others symbols
    of the Sizes in force, and whatever else `Variant.extra` is to hold. types, values: as for
    `compile_graph`."""

    name: str
    symbols: Mapping[str, bool]
    read: Callable[[Mapping[str, int]], tuple[Graph, Any]]
    types: Mapping[str, DType] = field(default_factory=dict)
    values: tuple[str, ...] = ()


def source_of(model: GraphSource, values: Mapping[str, np.ndarray] | None = None) -> Source:
    """A model as a source of variants; values: inputs that are constants in it."""

    def read(fixed: Mapping[str, int]) -> tuple[Graph, None]:
        return model.open_graph(fixed, values), None

    return Source(model.name, symbols(model), read, model.types, tuple(values or ()))


class Variants:
    """The variants of one model, made when sizes need them."""

    def __init__(
        self,
        source: Source,
        options: CompileOptions,
        *,
        fixed: Mapping[str, int] | None = None,
        lengths: frozenset[str] = frozenset(),
    ) -> None:
        """options: its `progress` is called before each compile; pairs of `state` share memory with
        room for more (`fuser.partition.options.Options`), and sizes then have that of CAPACITY,
        too. Nothing is tuned. fixed: dims that always have one size. lengths: dims that grow from
        run to run, for all sizes of which one variant is to serve."""
        self.options = options.but(tune=None)
        self.lengths = lengths
        self.following: dict[str, Dim] = {}
        """Dims that are as long as what grows becomes in a run, by what it grows by: one variant is
        to serve all of their sizes, too."""
        self.source = source
        self.fixed = dict(fixed or {})
        self.variants: list[Variant] = []
        self.symbols = source.symbols
        self._constants: dict[tuple[bytes, str, tuple[int, ...]], np.ndarray] = {}
        self._failed: set[tuple[int, str]] = set()
        """(attempt, ranges) that did not compile, for another reason than sizes."""

    def plan(self, dims: Mapping[str, int]) -> Plan:
        """The plan for these sizes of all symbolic dims. Raises UsageError for another size of a
        fixed dim, and what compiling raises."""
        for name, size in self.fixed.items():
            if dims[name] != size:
                raise UsageError(f"the plan is for {name} = {size}, not {dims[name]}")
        return self.variant(dims).plan(dims)

    def variant(self, dims: Mapping[str, int]) -> Variant:
        """The variant that serves these sizes, compiled if there is none."""
        for variant in self.variants:
            if variant.serves(dims):
                return variant
        found = self._compile(dims)
        self.variants.append(found)
        return found

    def _compile(self, dims: Mapping[str, int]) -> Variant:
        """A variant for a range of sizes around these; for a narrower one if that does not do."""
        note = ""
        for number, buckets in enumerate(self._attempts(dims)):
            is_open = any(bucket.least != bucket.most for bucket in buckets.values())
            ranges = ", ".join(f"{name} {bucket}" for name, bucket in buckets.items())
            if (number, ranges) in self._failed:
                continue
            _log.info("compiling %s for %s", self.source.name, ranges)
            self.options.progress(f"compiling for {ranges}")
            try:
                variant = self._build(buckets)
            except ValueNeededError:
                raise
            except FuserError as error:
                # What the model or a kernel cannot do with open sizes, sizes of their own may do,
                # or raise what is wrong with the model. A defect is shown.
                if not is_open:
                    raise
                note = f"narrower: {type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"
                self._failed.add((number, ranges))
                continue
            if variant.serves(dims):
                variant.note = note
                return variant
            broken = next((g for g in variant.guards if not g.holds(dims)), None)
            note = f"narrower: a wider one needs {broken} ({broken.where})" if broken else note
        raise AssertionError("a variant for one size serves it")

    def _attempts(self, dims: Mapping[str, int]) -> list[dict[str, Bucket]]:
        """Ranges to try: by the usual examples, by these sizes as examples, for the outermost dims
        only, these sizes alone."""
        usual: dict[str, Bucket] = {}
        taken: set[int] = set()
        for name, outer in self.symbols.items():
            if name in self.fixed:
                usual[name] = Bucket(dims[name], dims[name], dims[name])
                continue
            usual[name] = bucket = _bucket(dims[name], outer)
            if name in self.lengths:
                if bucket.least != bucket.most:
                    usual[name] = Bucket(*LENGTH_BUCKET)
                continue  # they are all as long
            if bucket.least != bucket.most and bucket.example in taken:
                # two dims of one example would look equal
                bucket = usual[name] = replace(bucket, example=_free_size(bucket, taken))
            taken.add(bucket.example)
        examples = {name: bucket.example for name, bucket in usual.items()}
        for name, rows in self.following.items():
            length = next((examples[other] for other in self.lengths), 0)
            if dims[name] >= LEAST and name not in self.fixed:
                usual[name] = Bucket(LEAST, None, max(LEAST, length + evaluate(rows, examples)))
        own = {
            name: bucket if bucket.least == bucket.most else replace(bucket, example=dims[name])
            for name, bucket in usual.items()
        }
        alone = {name: Bucket(dims[name], dims[name], dims[name]) for name in self.symbols}
        inner_alone = {n: own[n] if outer else alone[n] for n, outer in self.symbols.items()}
        attempts = [usual, own, inner_alone, alone]
        return [item for i, item in enumerate(attempts) if item not in attempts[:i]]

    def _build(self, buckets: Mapping[str, Bucket]) -> Variant:
        from fuser.partition.passes.keep_state import CAPACITY
        from fuser.pipeline.compiled import compile_kernels

        started = time.perf_counter()
        fixed = {n: b.example for n, b in buckets.items() if b.least == b.most}
        examples = {n: b.example for n, b in buckets.items() if n not in fixed}
        if self.options.state:
            examples[CAPACITY] = CAPACITY_EXAMPLE
        moving = self._moving & examples.keys()
        with Sizes(examples, moving) as sizes:
            graph, extra = self.source.read(fixed)
            options = self.options.but(progress=quiet)
            compiled = compile_kernels(graph, options, self.source.name)
            for kernel in compiled.kernels:
                for record in kernel.facts.get("guards", ()):
                    sizes.add(guard_from_list(record))
            constants = {k: self._share(a) for k, a in compiled.bound.constants.items()}
            bound = replace(compiled.bound, constants=constants)
            seconds = time.perf_counter() - started
            example = bound.at(examples)
            noted = {"values": self.source.values, "precision": compiled.precision}
            reporting = compiled.reporting(example, seconds, noted, examples)
            report = reporting.deferred({**fixed, **examples})
            sizes.quiet = True
            found = input_hints(graph).items()
            hints = {name: (size_hint(low), size_hint(high)) for name, (low, high) in found}
        return Variant(
            len(self.variants), dict(buckets), sizes.guards, bound, report, hints,
            self.source.types, self.options.threads, extra=extra, ordinal=self.options.gpu,
            moving=moving, reporting=reporting,
        )  # fmt: skip

    @property
    def _moving(self) -> frozenset[str]:
        """What kernels of a GPU are to read from memory; those of a host read all sizes so."""
        if not self.lengths or not choose_target(self.options.device).is_cuda:
            return frozenset()
        return self.lengths | self.following.keys()

    def _share(self, array: np.ndarray) -> np.ndarray:
        """The constant, in the memory that another variant has it in already."""
        aligned = aligned_copy(array)
        if aligned.nbytes < SHARED_BYTES:
            return aligned
        digest = hashlib.blake2b(aligned.reshape(-1).view(np.uint8).data, digest_size=16).digest()
        return self._constants.setdefault((digest, aligned.dtype.str, aligned.shape), aligned)

    @property
    def plans(self) -> Sequence[Plan]:
        """Every plan that is kept, over all variants."""
        return [plan for variant in self.variants for plan in variant.plans]


def _free_size(bucket: Bucket, taken: set[int]) -> int:
    """The size in the bucket nearest below its example that is not taken, else the next above."""
    most = bucket.example + len(taken) if bucket.most is None else bucket.most
    below = range(bucket.example, bucket.least - 1, -1)
    above = range(bucket.example, most + 1)
    return next((size for size in (*below, *above) if size not in taken), bucket.example)


def _bucket(size: int, outer: bool) -> Bucket:
    if size < LEAST:
        return Bucket(size, size, size)
    for bucket in OUTER_BUCKETS if outer else INNER_BUCKETS:
        found = Bucket(*bucket)
        if size in found:
            return found
    raise AssertionError(size)
