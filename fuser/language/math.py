"""Mathematical functions under a name of their own: `fl.math.exp2(x)`."""

from __future__ import annotations

from typing import Any

from fuser.language.builtins import TABLE

NAMES = (
    "abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma", "log", "log2",
    "rsqrt", "sin", "sqrt", "sqrt_rn", "umulhi",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return TABLE[name]
    raise AttributeError(f"math has no {name!r}")


def __dir__() -> list[str]:
    return sorted(NAMES)
