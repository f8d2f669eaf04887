"""Tutorial 1: add two vectors.

In NumPy this is `out = x + y`: one instruction for whole arrays, and NumPy decides how the machine
runs it. A kernel is written from the other side. It says what happens to one block of the arrays;
a launch starts as many copies of it as there are blocks. A copy is called a program. Programs run
in any order and at the same time, on the cores of a CPU or the multiprocessors of a GPU, and each
learns from `program_id` which block is its own.

Inside a program NumPy's habits are back. `arange` makes a block of whole numbers, arithmetic goes
element by element, shapes broadcast. What is new: an array argument is a pointer to its first
element. A pointer plus a block of offsets is a block of pointers, `load` reads what they point at,
and `store` writes. Threads, vector registers and the order of memory traffic are the compiler's
business.
"""

import math

import workbench

import fuser.triton as triton
import fuser.triton.language as tl

CONFIGS = {
    "cpu": [{"BLOCK": 4096}],
    "cuda": [
        {"BLOCK": 1024, "num_warps": 4},
        {"BLOCK": 2048, "num_warps": 8},
        {"BLOCK": 4096, "num_warps": 8},
    ],
}
"""Block sizes by device, the one to start with first."""


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # The last block reaches beyond the end, unless BLOCK divides n. A mask says which elements of
    # a block exist; the others are neither read nor written.
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


def add(x, y, out, config=None):
    """out = x + y, for contiguous arrays of one size."""
    config = config or CONFIGS[workbench.device_of(x)][0]
    n = math.prod(x.shape)
    # The grid is the number of programs. Given as a function, it sees the arguments of the launch.
    # BLOCK is a constexpr: it is compiled in, and each value of it makes a kernel of its own.
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, **config)


def check(n=98_432, device="cpu", seed=0):
    """A sum of two float32 is rounded once, on every machine: the result is NumPy's to the bit."""
    x, y = (workbench.draw(seed + i, (n,), device=device) for i in range(2))
    out = workbench.empty((n,), device=device)
    workbench.assert_repeats(lambda: add(x, y, out), out)
    reference = (workbench.exact(x) + workbench.exact(y)).astype("float32")
    assert (workbench.host(out) == reference).all()


def plot(device):
    """Gigabytes a second (two loads and a store of 4 bytes an element) by the number of elements.

    An addition is nothing; the time is that of memory. So the measure is how near a kernel comes to
    what memory can do, and small arrays show what a launch costs."""
    import chart
    import numpy as np

    lines = {"this kernel": [], "NumPy" if device == "cpu" else "PyTorch": []}
    for n in [1 << power for power in range(12, 25 if device == "cpu" else 28, 2)]:
        x, y = (workbench.draw(i, (n,), device=device) for i in range(2))
        out = workbench.empty((n,), device=device)

        def peer(x=x, y=y, out=out):
            if device == "cpu":
                np.add(x, y, out=out)
            else:
                import torch

                torch.add(x, y, out=out)

        def ours(x=x, y=y, out=out):
            add(x, y, out)

        for line, run in zip(lines.values(), (ours, peer), strict=True):
            line.append((n, 12e-6 * n / workbench.milliseconds(run, device)))
    return chart.line_chart("vector add, float32", "elements", "GB/s", lines)


if __name__ == "__main__":
    workbench.main(__file__, check, plot)
