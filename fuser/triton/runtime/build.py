"""triton.runtime.build: modules of C. fuser compiles none: it needs no compiler of C."""

from __future__ import annotations

import platform
import sys
import sysconfig

from fuser.triton.absent import names

__getattr__ = names(
    __name__,
    "compile_module_from_file compile_module_from_src compile_so_from_file compile_so_from_src",
    "fuser builds no modules of C",
    "build it with setuptools, or load a library with ctypes",
)


def platform_key() -> str:
    """The machine, the system and the Python that a module is built for."""
    return ",".join(
        [platform.machine(), platform.system(), sys.implementation.cache_tag or "",
         str(sysconfig.get_config_var("EXT_SUFFIX"))]
    )  # fmt: skip
