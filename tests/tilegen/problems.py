"""Problems as schedule rules see them."""

from __future__ import annotations

from typing import Any

from fuser.tilegen.rules.problem import Image, Problem


def image(m: int, n: int, channels: int, taps: int, bits: int = 16, **more: Any) -> Problem:
    """A convolution of so many pixels; not fetched by a copy engine unless `streamed` says so."""
    k, streamed = channels * taps, more.pop("streamed", False)
    return Problem(
        m, n, k, bits, streamed=streamed, folded=not streamed, image=Image(channels, taps, **more)
    )
