"""triton.runtime.build: modules of C. fuser compiles none: it needs no compiler of C."""

from __future__ import annotations

import platform
import sys
import sysconfig

from fuser.triton.absent import function

_WHY = "fuser builds no modules of C"
_HINT = "build it with setuptools, or load a library with ctypes"
compile_module_from_src = function("compile_module_from_src", _WHY, _HINT)
compile_module_from_file = function("compile_module_from_file", _WHY, _HINT)
compile_so_from_src = function("compile_so_from_src", _WHY, _HINT)
compile_so_from_file = function("compile_so_from_file", _WHY, _HINT)


def platform_key() -> str:
    """The machine, the system and the Python that a module is built for."""
    return ",".join(
        [platform.machine(), platform.system(), sys.implementation.cache_tag or "",
         str(sysconfig.get_config_var("EXT_SUFFIX"))]
    )  # fmt: skip
