"""Tutorial 2: softmax of rows, without a detour through memory.

The softmax of a row is `e / e.sum()` with `e = exp(row - row.max())`. NumPy runs that as five
operations, and each reads its operands from memory and writes its result there: about eight passes
over the matrix. The arithmetic is small, so the passes are the time. A fused kernel reads each row
once, keeps it in registers while it finds the maximum, the exponentials and the sum, and writes
the result: two passes.

Two ideas are new.

* A row seldom has a power of two of elements, and a block always has. The mask cuts the row out of
  the block. Here it matters what the elements outside are: they take part in the maximum and in the
  sum, so `other` makes them minus infinity, of which the exponential is 0.

* A grid of one program a row would start thousands of programs, each of which works for a moment.
  Instead we start about as many as run at the same time, and each walks through the rows in steps
  of the grid's size. Such programs are called persistent. While one row is computed, the loads of
  the next are under way: `num_stages` says how many rows are in flight.
"""

import workbench

import fuser.triton as triton
import fuser.triton.language as tl

CONFIGS = {
    "cpu": [{"resident": 1024, "STAGES": 1}, {"resident": 4, "STAGES": 1}],
    "cuda": [
        {"resident": 8, "STAGES": 2, "warps": 4},
        {"resident": 16, "STAGES": 2, "warps": 2},
        {"resident": 4, "STAGES": 2, "warps": 8},
        {"resident": 4, "STAGES": 1, "warps": 8},
        {"resident": 2, "STAGES": 2, "warps": 16},
        {"resident": 2, "STAGES": 1, "warps": 16},
    ],
}
"""resident: programs for each multiprocessor (or core). warps: groups of 32 threads a program.

On a CPU a program costs nothing to start, and a core takes neighbouring programs one after the
other. With as many as there are rows it reads memory in order; steps of the grid's size would make
it jump."""


@triton.jit
def softmax_kernel(
    x, out, x_stride, out_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    column = tl.arange(0, BLOCK)
    inside = column < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        values = tl.load(x + row * x_stride + column, mask=inside, other=-float("inf"))
        # The greatest becomes 0, so that no exponential overflows.
        numerator = tl.exp(values - tl.max(values, axis=0))
        result = numerator / tl.sum(numerator, axis=0)
        tl.store(out + row * out_stride + column, result, mask=inside)


def choose(columns, device):
    """The config for a row of so many columns: 8 to 32 elements a thread."""
    configs = CONFIGS[device]
    if device == "cpu":
        return configs[0]
    return configs[0 if columns <= 2048 else 2 if columns <= 8192 else 4]


def softmax(x, out, config=None):
    """The softmax of each row of a matrix whose rows are contiguous."""
    rows, columns = x.shape
    device = workbench.device_of(x)
    config = config or choose(columns, device)
    programs = min(rows, workbench.multiprocessors(x) * config["resident"])
    softmax_kernel[(programs,)](
        x, out, workbench.strides(x)[0], workbench.strides(out)[0], rows, columns,
        BLOCK=triton.next_power_of_2(columns), STAGES=config["STAGES"],
        num_warps=config.get("warps", 4),
    )  # fmt: skip


def reference(x):
    """In float64."""
    import numpy as np

    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def check(rows=1823, columns=781, device="cpu", seed=0):
    x = workbench.draw(seed, (rows, columns), device=device)
    out = workbench.empty((rows, columns), device=device)
    workbench.assert_repeats(lambda: softmax(x, out), out)
    workbench.assert_close(out, reference(workbench.exact(x)), terms=columns)


def plot(device):
    """Gigabytes a second of rows read and written, beside PyTorch, by the length of a row."""
    import chart
    import torch

    rows, lines = 4096 if device == "cuda" else 512, {"this kernel": [], "PyTorch": []}
    for columns in range(256, 8192, 1024):
        x = workbench.draw(0, (rows, columns), device=device)
        out = workbench.empty((rows, columns), device=device)
        tensor = torch.as_tensor(x)

        def ours(x=x, out=out):
            softmax(x, out)

        def peer(tensor=tensor):
            torch.softmax(tensor, dim=1)

        for line, run in zip(lines.values(), (ours, peer), strict=True):
            line.append((columns, 8e-6 * rows * columns / workbench.milliseconds(run, device)))
    title = f"softmax of {rows} rows, float32"
    return chart.line_chart(title, "columns", "GB/s", lines, logarithmic=False)


if __name__ == "__main__":
    workbench.main(__file__, check, plot)
