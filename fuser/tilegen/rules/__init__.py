"""Schedules by simple cost rules: block sizes, warps and stages for each kind of region.

Each target has a record of its rules (record.py): cpu/ and gpu/ hold them, common.py what they
share. A CPU tile is an iteration space: blocks are register tiles (contractions) or enough work for
one program. A GPU tile is spread over warps.
"""

from __future__ import annotations

from fuser.target import Target
from fuser.tilegen.rules.cpu import CPU_RULES
from fuser.tilegen.rules.gpu import GPU_RULES
from fuser.tilegen.rules.record import Rules

RULES: dict[str, Rules] = {"cpu": CPU_RULES, "cuda": GPU_RULES}
"""The rules by the name of a target."""


def rules_of(target: Target) -> Rules:
    """The schedule rules of a target."""
    return RULES[target.name]
