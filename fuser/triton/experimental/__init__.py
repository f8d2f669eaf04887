"""triton.experimental: names that packages import; see fuser/triton/gluon.py."""

from __future__ import annotations

import sys

from fuser.language.aggregates import aggregate
from fuser.triton import gluon as _gluon
from fuser.triton.absent import modules
from fuser.triton.constexprs import constexpr_function, must_use_result

modules(
    __name__,
    "gluon gluon.amd gluon.amd.cdna5 gluon.amd.gfx1250 gluon.nvidia gluon.nvidia.blackwell "
    "gluon.nvidia.hopper",
    _gluon.WHY,
    _gluon.HINT,
)
modules(__name__, "gluon.language", _gluon.WHY, _gluon.HINT, _gluon.of_language)
modules(
    f"{__name__}.gluon.language",
    "amd amd.cdna3 amd.cdna4 amd.cdna4.async_copy amd.cdna5 amd.cdna5.async_copy amd.cdna5.cluster "
    "amd.cdna5.mbarrier amd.cdna5.tdm amd.gfx1250 amd.hint amd.rdna3 amd.rdna4 amd.slice "
    "amd.warp_pipeline extra fpsan nvidia nvidia.ampere nvidia.ampere.async_copy "
    "nvidia.ampere.mbarrier nvidia.blackwell nvidia.blackwell.clc nvidia.blackwell.tma "
    "nvidia.hopper nvidia.hopper.cluster nvidia.hopper.mbarrier nvidia.hopper.tma nvidia.rubin "
    "nvidia.rubin.mbarrier",
    _gluon.WHY,
    _gluon.HINT,
)
modules(
    __name__,
    "gsan gsan.graph gsan.symmetric_memory",
    "GSan is not here",
    "launch with check=True, which finds races and reads outside of arrays",
)
vars(sys.modules[f"{__name__}.gluon"]).update(
    GluonJITFunction=_gluon.GluonJITFunction, aggregate=aggregate,
    constexpr_function=constexpr_function, jit=_gluon.jit, must_use_result=must_use_result,
)  # fmt: skip
