"""Launch kernels on NumPy arrays, on the CPU or copied to a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, Any]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
"""For pytest.mark.parametrize("device", ...)."""


def launch(kernel: Any, device: str, *args: Any, grid: Any = (1,), **named: Any) -> None:
    """Run a kernel; arrays hold its results afterwards, wherever it ran."""
    if device == "cpu":
        kernel[grid](*args, **named)
        return
    import torch

    def there(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype.kind not in "fiub":
            kinds = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn,
                     "float8_e5m2": torch.float8_e5m2}  # fmt: skip
            word = value.view(f"i{value.dtype.itemsize}")
            return torch.from_numpy(word).cuda().view(kinds[value.dtype.name])
        return torch.from_numpy(value).cuda()

    moved = [there(value) for value in args]
    kernel[grid](*moved, **named)
    torch.cuda.synchronize()
    for value, copy in zip(args, moved, strict=True):
        if isinstance(value, np.ndarray):
            whole = copy.view(torch.uint8) if value.dtype.kind not in "fiub" else copy
            value.view(whole.cpu().numpy().dtype)[...] = whole.cpu().numpy()
