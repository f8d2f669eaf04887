"""Mathematical functions by the names of CUDA's libdevice, on every target.

    from fuser.language import libdevice
    y = libdevice.tanh(x)

They are formulas of the language's own primitives, so a CPU and a GPU agree. `IMPLEMENTED` and
`MISSING` list the names.
"""

from __future__ import annotations

from typing import Any

from fuser.language.libdevice import bits, plain, rounding, special
from fuser.language.libdevice.registry import TABLE

MISSING = tuple(sorted(name for name, item in TABLE.items() if item.doc == "Not implemented."))
IMPLEMENTED = tuple(sorted(set(TABLE) - set(MISSING)))


def __getattr__(name: str) -> Any:
    if name in TABLE:
        return TABLE[name]
    raise AttributeError(f"libdevice has no {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *TABLE})


__all__ = ["IMPLEMENTED", "MISSING", "bits", "plain", "rounding", "special"]
