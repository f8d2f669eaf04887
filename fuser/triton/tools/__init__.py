"""triton.tools."""

from __future__ import annotations

from fuser.triton.absent import modules, names

_WHY = "fuser has no tools on Triton's stages"
_HINT = "`kernel.asm` has the stages of a kernel"
modules(__name__, "build_extern compile disasm gsan link", _WHY, _HINT)
__getattr__ = names(__name__, "LinearLayout", "layouts of Triton's stages are not made here")
