"""`import triton` as fuser.triton in a process of Triton's test suite, for everybody in it.

What the tests need that is of the suite itself, not of the compiler, comes from the checkout.
"""

from __future__ import annotations

import os
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

OF_THE_SUITE = ("triton._internal_testing", "triton.tools.mxfp")


def _from_checkout(name: str) -> ModuleSpec | None:
    if name not in OF_THE_SUITE:
        return None
    root = Path(os.environ["TRITON_TESTS_CHECKOUT"]) / "python"
    path = root.joinpath(*name.split(".")).with_suffix(".py")
    return spec_from_file_location(name, path) if path.is_file() else None


def install() -> None:
    """Answer imports of triton from now on."""
    import sys

    from fuser.triton.imports import everywhere

    sys.modules.pop("triton", None)  # the file that called this
    everywhere(_from_checkout)
