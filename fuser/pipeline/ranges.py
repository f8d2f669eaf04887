"""Kernels ahead of time for ranges of sizes: the variants that serve them all."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from fuser.errors import UsageError
from fuser.graph.sizes import LEAST
from fuser.pipeline.dynamic import DynamicPlan
from fuser.pipeline.variants import INNER_BUCKETS, OUTER_BUCKETS

Range = tuple[int, int | None]
"""The least and the greatest size; None: no end."""

MOST_SIZES = 4096
"""Combinations of sizes that are tried."""


def prepare_ranges(plan: DynamicPlan, ranges: Mapping[str, Range]) -> None:
    """Compile what serves these sizes of the open dims: `prepare` at both ends of every part of the
    ranges that may have kernels of its own. Raises UsageError, and what compiling raises."""
    ends = {name: _ends(*ends) for name, ends in ranges.items()}
    count = 1
    for sizes in ends.values():
        count *= len(sizes)
    if count > MOST_SIZES:
        raise UsageError(
            f"{len(ends)} open dims are {count} combinations of sizes", hint="keep fewer open"
        )
    for chosen in itertools.product(*ends.values()):
        plan.prepare(dict(zip(ends, chosen, strict=True)))


def parse_range(text: str) -> tuple[str, Range]:
    """`NAME=A..B` or `NAME=A..`. Raises UsageError."""
    name, _, rest = text.partition("=")
    low, dots, high = rest.partition("..")
    if not (name and dots and low.isdecimal() and (high.isdecimal() or not high)):
        raise UsageError(
            f"--open {text}: expected NAME=A..B, or NAME=A.. for no end",
            hint=f"for example --open {name or 'batch'}=1..64",
        )
    if high and int(high) < int(low):
        raise UsageError(f"--open {text}: the range is empty")
    return name, (int(low), int(high) if high else None)


def _ends(low: int, high: int | None) -> list[int]:
    """Both ends of each part of a range: 0 and 1 are parts of their own, then buckets begin."""
    buckets = {least for least, *_ in (*INNER_BUCKETS, *OUTER_BUCKETS)}
    starts = {*range(LEAST), *buckets}
    edges = {low, *(s for s in starts if s > low), *(s - 1 for s in starts if s > low)}
    return sorted(edge for edge in edges if high is None or edge < high) + (
        [] if high is None else [high]
    )
