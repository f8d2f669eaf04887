"""A served model: a plan, what the protocol says of it, and runs that several requests share."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser.errors import FuserError, LimitError, UsageError
from fuser.runtime.plan import Plan
from fuser.serve import rows
from fuser.serve.tensors import NAMES, RequestError, Tensor

if TYPE_CHECKING:
    from fuser.pipeline.dynamic import DynamicPlan

_log = logging.getLogger("fuser")

Feeds = Mapping[str, np.ndarray]
Key = tuple[tuple[int, ...], ...]
"""The shapes of the inputs without their rows: requests with one key may share a run."""
VERSION = "1"
MOST_KEYS = 4096
"""Keys that are remembered."""


@dataclass(eq=False)
class Model:
    """A plan ready to answer requests. Use it from one thread.

    batch: the dim that is axis 0 of every input and output; "" where there is none. ladder: the
    rows that runs of several requests may have; they are filled up to one of them. All answers to a
    request have the same bits, whatever it shares a run with (`rows.py`): where that does not hold,
    requests do not share runs.
    """

    name: str
    plan: Plan | DynamicPlan
    platform: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    batch: str = ""
    ladder: tuple[int, ...] = ()
    runs: int = 0
    """Runs that answered requests."""
    _sizes: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    _tried: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = field(default_factory=dict)

    def metadata(self) -> dict[str, Any]:
        """What the protocol tells of a model."""
        return {
            "name": self.name, "versions": [VERSION], "platform": self.platform,
            "inputs": [tensor.metadata() for tensor in self.inputs],
            "outputs": [tensor.metadata() for tensor in self.outputs],
        }  # fmt: skip

    def summary(self) -> str:
        """What is known of shared runs, for people."""
        found = [sizes for sizes in self._sizes.values() if sizes]
        if not found:
            return "requests do not share runs"
        return f"requests share runs of up to {found[0][-1]} rows, bits are those of one alone"

    def key(self, feeds: Feeds) -> Key:
        """Raises RequestError where the inputs differ in rows."""
        shapes = tuple(feeds[tensor.name].shape for tensor in self.inputs)
        if not self.batch:
            return shapes
        if len({shape[0] for shape in shapes}) > 1:
            raise RequestError(f"the inputs differ in {self.batch}, their axis 0")
        return tuple(shape[1:] for shape in shapes)

    def rows(self, feeds: Feeds) -> int:
        """The rows of a request; 1 where nothing is shared."""
        return len(feeds[self.inputs[0].name]) if self.batch else 1

    def sizes(self, key: Key) -> tuple[int, ...]:
        """The rows that shared runs may have; () where requests do not share runs. The first time
        for new kernels they are tried, which takes runs; the kernels may be compiled, too. Raises
        FeedError, UsageError and what compiling raises."""
        found = self._sizes.get(key)
        if found is None:
            if len(self._sizes) >= MOST_KEYS:
                self._sizes.clear()
            found = self._sizes[key] = self._try(key) if self.ladder else ()
        return found

    def limit(self, key: Key) -> int:
        """The rows beyond which a run takes no further request, as far as is known."""
        sizes = self._sizes.get(key, self.ladder)
        return sizes[-1] if sizes else 1

    def answer(self, requests: Sequence[Feeds]) -> list[dict[str, np.ndarray]]:
        """The outputs for each request, in order; the requests have one key, and runs are as few as
        can be. Raises what a run raises."""
        found: list[dict[str, np.ndarray]] = []
        sizes = self.sizes(self.key(requests[0])) if requests else ()
        while len(found) < len(requests):
            left = requests[len(found) :]
            taken = self.fitting([self.rows(feeds) for feeds in left], sizes)
            found += self._run(left[:taken], sizes)
        return found

    def answer_each(self, requests: Sequence[Feeds]) -> list[dict[str, np.ndarray] | FuserError]:
        """The outputs for each request, whatever their keys, or what is wrong with it."""
        found: list[dict[str, np.ndarray] | FuserError] = [{}] * len(requests)
        groups: dict[Key, list[int]] = {}
        for number, feeds in enumerate(requests):
            try:
                self.check(feeds)
                groups.setdefault(self.key(feeds), []).append(number)
            except FuserError as error:
                found[number] = error
        for numbers in groups.values():
            try:
                outputs = self.answer([requests[i] for i in numbers])
            except FuserError as error:
                outputs = [error] * len(numbers)  # type: ignore[list-item]
            for i, output in zip(numbers, outputs, strict=True):
                found[i] = output
        return found

    def check(self, feeds: Feeds) -> None:
        """Raise RequestError unless the arrays are inputs of this model."""
        names = {tensor.name for tensor in self.inputs}
        if names != set(feeds):
            raise RequestError(f"the inputs are {sorted(names)}, not {sorted(map(str, feeds))}")
        for tensor in self.inputs:
            array = feeds[tensor.name]
            tensor.check(NAMES.get(array.dtype, str(array.dtype)), array.shape)

    def fitting(self, counts: Sequence[int], sizes: Sequence[int]) -> int:
        """How many requests of these rows one run serves: the first at least."""
        total = 0
        for number, count in enumerate(counts):
            total += count
            if number and (not sizes or total > sizes[-1] or not count):
                return number
        return len(counts)

    def _run(self, requests: Sequence[Feeds], sizes: Sequence[int]) -> list[dict[str, np.ndarray]]:
        self.runs += 1
        counts = [self.rows(feeds) for feeds in requests]
        size = next((size for size in sizes if size >= sum(counts)), sum(counts))
        if len(requests) == 1 and (size == counts[0] or not counts[0]):
            return [self.plan.run(requests[0])]
        names = [tensor.name for tensor in self.inputs]
        outputs = self.plan.run({n: rows.fill([f[n] for f in requests], size) for n in names})
        ends = np.cumsum(counts)
        return [
            {name: array[end - count : end] for name, array in outputs.items()}
            for count, end in zip(counts, ends, strict=True)
        ]

    def _try(self, key: Key) -> tuple[int, ...]:
        kernels: dict[int, int] = {}
        refusal: FuserError | None = None
        for size in self.ladder:
            try:
                kernels[size] = self._kernels(size, key)
            except UsageError as error:  # a plan from a file may have none for this size
                refusal = error
        if refusal is not None and not kernels:
            raise refusal
        # The same code at other inner sizes adds up in the same order at all places of a batch.
        form = tuple(kernels.items())
        if form not in self._tried:
            self._tried[form] = self._same_bits(key, tuple(kernels))
        return self._tried[form]

    def _kernels(self, size: int, key: Key) -> int:
        """A number for the kernels that serve so many rows, compiled if there are none. Raises
        UsageError, and what compiling raises."""
        if isinstance(self.plan, Plan):
            return 0
        from fuser.graph.ir import TensorType
        from fuser.pipeline.specialise import read_dims

        specs = zip(self.plan.inputs, key, strict=True)
        types = {spec.name: TensorType(spec.dtype, spec.shape) for spec in self.plan.inputs}
        shapes = {spec.name: np.broadcast_to(0, (size, *inner)) for spec, inner in specs}
        return self.plan.prepare(read_dims(types, shapes)).number

    def _same_bits(self, key: Key, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """`rows.same_bits` of the plan for those sizes that memory has room for."""
        for count in range(len(sizes), 0, -1):
            feeds = {
                tensor.name: np.zeros((sizes[count - 1], *shape), tensor.dtype)
                for tensor, shape in zip(self.inputs, key, strict=True)
            }
            try:
                plan = self.plan if isinstance(self.plan, Plan) else self.plan.plan(feeds)
                found = rows.same_bits(self.plan.run, plan.random_feeds(), sizes[:count])
            except LimitError:
                continue
            self._tell(key, found, sizes[:count])
            return found
        return ()

    def _tell(self, key: Key, found: Sequence[int], sizes: Sequence[int]) -> None:
        if not found:
            _log.warning(
                "model %s: at %s rows of a batch depend on each other or on its size, so that "
                "requests do not share runs", self.name, list(map(list, key)),
            )  # fmt: skip
        elif found != sizes:
            _log.warning(
                "model %s: runs have %d rows at least, for equal bits at all sizes of a batch",
                self.name, found[0],
            )  # fmt: skip
