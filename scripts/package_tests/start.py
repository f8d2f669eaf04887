"""What every Python process of a run begins with, those that tests start among them: `import
triton` answered by fuser.triton in the package and its tests."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack

OPTIONS = json.loads(os.environ["PACKAGE_TESTS_OPTIONS"])
"""Of run.py, and `packages`: whose imports are answered."""
_answers = ExitStack()
"""Holds as long as the process."""


def begin() -> None:
    if OPTIONS["cuda_is_cpu"]:
        import cuda_is_cpu

        cuda_is_cpu.install()
    answer()


def answer() -> None:
    """Answer imports from now on, also where finders of others were put in front since."""
    from fuser.base.imports import answered

    if not OPTIONS["triton"]:
        _answers.enter_context(answered({"triton": "fuser.triton"}, *OPTIONS["packages"]))
