"""Tutorial 4: dropout that remembers a number.

Dropout sets each element to 0 with probability p, and divides the others by 1 - p so that the mean
stays. The gradient passes where an element was kept, so training needs the same mask again, much
later. Frameworks keep it: a byte an element, for every dropout of a model.

It need not be kept if it can be made again. `tl.rand(seed, offset)` is a function: it scrambles the
offset by a key made of the seed, in ten rounds of multiplications (the generator is called Philox),
and gives a number between 0 and 1. It has no state, so elements may be computed in any order, by
any program, on any machine, twice. All that must be remembered is the seed. The gradient is the
same kernel with the same seed.

The check below has the generator in NumPy, and expects the same numbers to the bit.
"""

import math

import workbench

import fuser.triton as triton
import fuser.triton.language as tl

CONFIGS = {
    "cpu": [{"BLOCK": 4096}],
    "cuda": [{"BLOCK": 1024, "num_warps": 4}, {"BLOCK": 2048, "num_warps": 4}],
}


@triton.jit
def dropout_kernel(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + at, mask=inside)
    kept = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(kept, values / (1 - p), 0.0), mask=inside)


def dropout(x, out, p, seed, config=None):
    """out = x where a random number is above p, by 1 / (1 - p), else 0; contiguous arrays."""
    config = config or CONFIGS[workbench.device_of(x)][0]
    n = math.prod(x.shape)
    dropout_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, p, seed, **config)


def uniform(seed, n):
    """What tl.rand gives for the offsets 0 ... n - 1, in NumPy."""
    import numpy as np

    word = np.uint64(0xFFFFFFFF)
    c = [np.arange(n, dtype=np.uint64), *(np.zeros(n, np.uint64) for _ in range(3))]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(keys[0]), b & word,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(keys[1]), a & word,
        ]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    signed = c[0].astype(np.uint32).view(np.int32)
    # A negative number stands for its mirror image, so that all are from 0 to just below 2^31.
    return np.where(signed < 0, -signed - 1, signed).astype("float32") * np.float32(
        4.6566127342e-10
    )


def check(n=98_432, p=0.5, seed=123, device="cpu"):
    """The result, and the gradient by the same mask; another seed gives another mask."""
    import numpy as np

    x, slope = (workbench.draw(i, (n,), device=device) for i in range(2))
    out, change, other = (workbench.empty((n,), device=device) for _ in range(3))

    def run():
        dropout(x, out, p, seed)
        dropout(slope, change, p, seed)
        dropout(x, other, p, seed + 1)

    workbench.assert_repeats(run, out, change, other)
    kept = uniform(seed, n) > np.float32(p)
    assert ((workbench.host(out) != 0) == kept).all()
    for found, given in ((out, x), (change, slope)):
        workbench.assert_close(found, np.where(kept, workbench.exact(given) / (1 - p), 0))
    share = 5 * (p * (1 - p) / n) ** 0.5  # five standard deviations
    assert abs(kept.mean() - (1 - p)) <= share
    again = uniform(seed + 1, n) > np.float32(p)
    assert ((workbench.host(other) != 0) == again).all()
    assert n < 100 or (again != kept).any()


def plot(device):
    """Gigabytes a second (a load and a store), beside PyTorch, which writes its mask as well."""
    import chart
    import torch

    lines = {"this kernel": [], "PyTorch": []}
    for n in [1 << power for power in range(12, 23 if device == "cpu" else 28, 2)]:
        x, out = workbench.draw(0, (n,), device=device), workbench.empty((n,), device=device)
        tensor = torch.as_tensor(x)

        def ours(x=x, out=out):
            dropout(x, out, 0.5, 7)

        def peer(tensor=tensor):
            torch.native_dropout(tensor, 0.5, True)

        for line, run in zip(lines.values(), (ours, peer), strict=True):
            line.append((n, 8e-6 * n / workbench.milliseconds(run, device)))
    return chart.line_chart("dropout, float32", "elements", "GB/s", lines)


if __name__ == "__main__":
    workbench.main(__file__, check, plot)
