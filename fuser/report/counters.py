"""What counters of the hardware are to a report, whoever reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class MissingCountersError(Exception):
    """There are no counters; the text says in one line what is missing."""


@dataclass(frozen=True)
class Counted:
    """source: what counted, with its version. launches: of each launch of a plan, in a run, by the
    names in docs/report.md."""

    source: str
    launches: Sequence[Mapping[str, float]]
