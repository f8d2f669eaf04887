"""Tutorial 5: layer norm, and its gradients.

Layer norm brings each row of x to mean 0 and variance 1, then stretches and shifts every column:

    y = (x - mean) * inverse * weight + bias      with inverse = 1 / sqrt(variance + epsilon)

The forward kernel is tutorial 2 again: a program reads a row once and has it in registers for the
mean, for the variance (of the differences, which loses less than a difference of squares) and for
the result. Rows are float16 in memory and float32 in registers.

The gradients are of two kinds. That of x needs a row alone. With h = (x - mean) * inverse and
g = weight * dy it is

    dx = (g - mean of g - h * mean of g * h) * inverse

But the gradients of weight and bias are sums over all rows, dy * h and dy, and rows belong to
different programs. Three steps make them, each with fewer numbers than the one before:

* A program walks through its share of the rows and sums in registers.
* It adds its sums to one of a few buffers in memory. Others add to the same buffer, so they take
  turns. Whoever comes at once, in any order, would be a lock, and a sum in another order has other
  bits. Here each buffer has a counter that says whose turn it is: a program waits until that is its
  own number, adds, and counts up. So the order is fixed, and so are the bits. A program waits only
  for programs with a smaller number, which started before it: nobody waits for ever.
* A second kernel sums the buffers.
"""

import workbench

import fuser.triton as triton
import fuser.triton.language as tl

CONFIGS = {
    "cpu": [{"warps": 4, "resident": 2}],
    "cuda": [{"warps": w, "resident": 2} for w in (4, 8, 2, 16)],
}
"""warps: groups of 32 threads a program. resident: backward programs for each multiprocessor."""
BUFFERS = 32
"""In which programs gather the gradients of weight and bias."""


@triton.jit
def forward_kernel(
    x, weight, bias, y, means, inverses, stride, columns, epsilon, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    # Outside of the row there are zeros, and a zero differs from the mean.
    centred = tl.where(inside, values - mean, 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    tl.store(means + row, mean)
    tl.store(inverses + row, inverse)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    result = centred * inverse * w + b
    tl.store(y + row * stride + column, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    dy, x, weight, means, inverses, dx, weight_sums, bias_sums, turns, stride, rows, columns,
    BUFFERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    weight_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    bias_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        values = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(dy + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(inverses + row)
        h = tl.where(inside, (values - tl.load(means + row)) * inverse, 0.0)
        g = w * slope
        change = g - tl.sum(g, axis=0) / columns - h * (tl.sum(g * h, axis=0) / columns)
        result = (change * inverse).to(dx.dtype.element_ty)
        tl.store(dx + row * stride + column, result, mask=inside)
        weight_sum += slope * h
        bias_sum += slope

    buffer, turn = program % BUFFERS, program // BUFFERS
    # An exchange of a number for itself reads it in a way that sees what others have written.
    while tl.atomic_cas(turns + buffer, turn, turn) != turn:
        pass
    at = buffer * columns + column
    follows = inside & (turn > 0)  # the first finds nothing to add to
    weight_sum += tl.load(weight_sums + at, mask=follows, other=0.0)
    bias_sum += tl.load(bias_sums + at, mask=follows, other=0.0)
    tl.store(weight_sums + at, weight_sum, mask=inside)
    tl.store(bias_sums + at, bias_sum, mask=inside)
    tl.debug_barrier()  # all threads of the program have stored before the next one's turn comes
    tl.atomic_xchg(turns + buffer, turn + 1)


@triton.jit
def gather_kernel(
    weight_sums, bias_sums, dweight, dbias, columns, BUFFERS: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    at = tl.arange(0, BUFFERS)[:, None] * columns + column[None, :]
    w = tl.sum(tl.load(weight_sums + at, mask=inside[None, :], other=0.0), axis=0)
    b = tl.sum(tl.load(bias_sums + at, mask=inside[None, :], other=0.0), axis=0)
    tl.store(dweight + column, w.to(dweight.dtype.element_ty), mask=inside)
    tl.store(dbias + column, b.to(dbias.dtype.element_ty), mask=inside)


def choose(columns, device):
    """The config for a row of so many columns: about 16 elements a thread."""
    configs = CONFIGS[device]
    if device == "cpu":
        return configs[0]
    return configs[2 if columns <= 1024 else 0 if columns <= 4096 else 1 if columns <= 8192 else 3]


def forward(x, weight, bias, y, means, inverses, epsilon=1e-5, config=None):
    """y = layer norm of the rows of x; means and inverses are kept for the gradients."""
    rows, columns = x.shape
    config = config or choose(columns, workbench.device_of(x))
    forward_kernel[(rows,)](
        x, weight, bias, y, means, inverses, workbench.strides(x)[0], columns, epsilon,
        BLOCK=triton.next_power_of_2(columns), num_warps=config["warps"],
    )  # fmt: skip


def backward(dy, x, weight, means, inverses, dx, dweight, dbias, config=None):
    """The gradients of x, weight and bias for that of y."""
    rows, columns = x.shape
    device = workbench.device_of(x)
    config = config or choose(columns, device)
    programs = min(rows, workbench.multiprocessors(x) * config["resident"])
    buffers = triton.next_power_of_2(min(BUFFERS, programs))
    if programs < buffers:  # every buffer belongs to somebody
        buffers //= 2
    weight_sums = workbench.scratch((buffers, columns), device=device)
    bias_sums = workbench.scratch((buffers, columns), device=device)
    turns = workbench.zeros((buffers,), "int32", device)
    backward_kernel[(programs,)](
        dy, x, weight, means, inverses, dx, weight_sums, bias_sums, turns,
        workbench.strides(x)[0], rows, columns,
        BUFFERS=buffers, BLOCK=triton.next_power_of_2(columns), num_warps=2 * config["warps"],
    )  # fmt: skip
    gather_kernel[lambda meta: (triton.cdiv(columns, meta["BLOCK"]),)](
        weight_sums, bias_sums, dweight, dbias, columns, BUFFERS=buffers, BLOCK=128
    )


def reference(x, weight, bias, epsilon=1e-5):
    """In float64: the result, what the rows are before weight and bias, and what scaled them."""
    import numpy as np

    centred = x - x.mean(axis=1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)
    return centred * inverse * weight + bias, centred * inverse, inverse


def check(rows=151, columns=781, device="cpu", seed=0, dtype="float16"):
    draw, empty = workbench.draw, workbench.empty
    x, dy = (draw(seed + i, (rows, columns), dtype, device) for i in range(2))
    weight, bias = (draw(seed + 2 + i, (columns,), dtype, device) for i in range(2))
    y, dx = (empty((rows, columns), dtype, device) for _ in range(2))
    dweight, dbias = (empty((columns,), dtype, device) for _ in range(2))
    means, inverses = (empty((rows,), device=device) for _ in range(2))

    def run():
        forward(x, weight, bias, y, means, inverses)
        backward(dy, x, weight, means, inverses, dx, dweight, dbias)

    workbench.assert_repeats(run, y, dx, dweight, dbias)
    slope, gain = workbench.exact(dy), workbench.exact(weight)
    result, h, inverse = reference(workbench.exact(x), gain, workbench.exact(bias))
    g = slope * gain
    change = g - g.mean(axis=1, keepdims=True) - h * (g * h).mean(axis=1, keepdims=True)
    workbench.assert_close(y, result, terms=columns)
    workbench.assert_close(dx, change * inverse, terms=columns)
    workbench.assert_close(dweight, (slope * h).sum(axis=0), terms=rows)
    workbench.assert_close(dbias, slope.sum(axis=0), terms=rows)


def plot(device):
    """Gigabytes a second of rows read and written, forward, beside PyTorch."""
    import chart
    import torch

    dtype = "float16" if device == "cuda" else "float32"
    rows, lines = 4096 if device == "cuda" else 512, {"this kernel": [], "PyTorch": []}
    for columns in range(1024, 16384, 2048):
        x, y = (workbench.draw(i, (rows, columns), dtype, device) for i in range(2))
        weight, bias = (workbench.draw(2 + i, (columns,), dtype, device) for i in range(2))
        means, inverses = (workbench.empty((rows,), device=device) for _ in range(2))
        tensors = [torch.as_tensor(item) for item in (x, weight, bias)]

        def ours(x=x, weight=weight, bias=bias, y=y, means=means, inverses=inverses):
            forward(x, weight, bias, y, means, inverses)

        def peer(columns=columns, tensors=tensors):
            torch.nn.functional.layer_norm(tensors[0], (columns,), tensors[1], tensors[2])

        size = 2 * rows * columns * (2 if dtype == "float16" else 4)
        for line, run in zip(lines.values(), (ours, peer), strict=True):
            line.append((columns, 1e-6 * size / workbench.milliseconds(run, device)))
    title = f"layer norm of {rows} rows, {dtype}"
    return chart.line_chart(title, "columns", "GB/s", lines, logarithmic=False)


if __name__ == "__main__":
    workbench.main(__file__, check, plot)
