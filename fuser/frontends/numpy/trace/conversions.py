"""np.asarray and its kind, of traced arrays and lists of them, while a function is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuser.frontends.numpy.trace.context import holds_traced
from fuser.frontends.numpy.trace.functions import FUNCTIONS
from fuser.frontends.numpy.trace.replaced import replace_while_recording


def _converting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def convert(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else kwargs.get("a", kwargs.get("object"))
        return (FUNCTIONS[name] if holds_traced(first) else original)(*args, **kwargs)

    return convert


for _name in ("array", "asanyarray", "asarray", "ascontiguousarray"):
    replace_while_recording(np, _name, _converting(_name, getattr(np, _name)))
