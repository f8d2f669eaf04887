"""triton.language.extra.cuda.gdc: launches that overlap. They run in order here: a kernel has
nothing to wait for and nobody to let go."""

from __future__ import annotations

from fuser.language.extra import gdc_launch_dependents, gdc_wait

__all__ = ["gdc_launch_dependents", "gdc_wait"]
