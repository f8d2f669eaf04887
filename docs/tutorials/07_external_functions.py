"""Tutorial 7: functions from a library.

The language has the functions that most kernels need: exp, log, sqrt, sin, erf and some more. CUDA
comes with a library of about two hundred others, libdevice, and `libdevice.NAME(x)` calls one of
them for each element of a block. On a CPU the same names mean the same functions.

The example is the activation Mish, x * tanh(log(1 + exp(x))). It shows why a library has a function
for log(1 + y): where y is tiny, 1 + y is rounded, and what y was is lost. In float32 the plain
formula is off by 6 % at x = -16, and from -17 on it gives 0. `log1p` takes y itself and keeps all
its digits.
"""

import math

import workbench

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.triton.language.extra import libdevice

CONFIGS = {
    "cpu": [{"BLOCK": 1024}],
    "cuda": [{"BLOCK": 1024, "num_warps": 4}, {"BLOCK": 2048, "num_warps": 8}],
}


@triton.jit
def mish_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + at, mask=inside)
    result = values * libdevice.tanh(libdevice.log1p(libdevice.exp(values)))
    tl.store(out + at, result, mask=inside)


def mish(x, out, config=None):
    """out = x * tanh(log(1 + exp(x))) for contiguous float32 arrays."""
    config = config or CONFIGS[workbench.device_of(x)][0]
    n = math.prod(x.shape)
    mish_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, **config)


def check(n=12_345, device="cpu"):
    """Every element has nearly all its digits, also where the result is tiny.

    A number x with a rounding of its own changes exp(x) by a part of |x| roundings: so many are
    allowed, and one for each function.
    """
    import numpy as np

    values = np.linspace(-60, 60, n, dtype="float32")
    x, out = workbench.put(values, device), workbench.empty((n,), device=device)
    workbench.assert_repeats(lambda: mish(x, out), out)
    wide = values.astype("float64")
    expected = wide * np.tanh(np.log1p(np.exp(wide)))
    found = workbench.exact(out)
    limit = 4 * workbench.EPSILON["float32"] * (1 + np.abs(wide)) * np.abs(expected)
    worst = int(np.argmax(np.abs(found - expected) - limit))
    assert (np.abs(found - expected) <= limit).all(), (values[worst], found[worst], expected[worst])


def plot(device):
    """Gigabytes a second (a load and a store), beside PyTorch."""
    import chart
    import torch

    lines = {"this kernel": [], "PyTorch": []}
    for n in [1 << power for power in range(12, 23 if device == "cpu" else 28, 2)]:
        x, out = workbench.draw(0, (n,), device=device), workbench.empty((n,), device=device)
        tensor = torch.as_tensor(x)

        def ours(x=x, out=out):
            mish(x, out)

        def peer(tensor=tensor):
            torch.nn.functional.mish(tensor)

        for line, run in zip(lines.values(), (ours, peer), strict=True):
            line.append((n, 8e-6 * n / workbench.milliseconds(run, device)))
    return chart.line_chart("Mish, float32", "elements", "GB/s", lines)


if __name__ == "__main__":
    workbench.main(__file__, check, plot)
