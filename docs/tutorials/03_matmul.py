"""Tutorial 3: matrix product with an activation.

`c = leaky_relu(a @ b)`. Each program makes one tile of c: it walks along the rows of a and the
columns of b in steps of BLOCK_K, multiplies a tile of each (`dot`, which runs on tensor cores where
there are some) and adds up in float32, whatever the type of the operands. The activation is applied
to the sums while they are in registers: c is written once and is never read.

What decides the speed of a large product besides `dot` is how often a and b come from memory. Say c
has 64 x 64 tiles, and 128 programs run at a time. If these make two rows of tiles, they need 2 rows
of tiles of a and all 64 columns of tiles of b. If they make a patch of 8 x 16 tiles, they need 8 of
a and 16 of b: a third of the traffic, and the cache holds it. So programs are numbered group by
group, GROUP rows of tiles to each, and run down the columns within a group.
"""

import workbench

import fuser.triton as triton
import fuser.triton.language as tl


def _config(m, n, k, warps, stages, group=8):
    return {
        "BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": group,
        "num_warps": warps, "num_stages": stages,
    }  # fmt: skip


CONFIGS = {
    "cpu": [_config(64, 64, 64, 4, 1), _config(128, 128, 128, 4, 1)],
    "cuda": [
        _config(128, 256, 64, 8, 3),
        _config(128, 256, 64, 8, 4),
        _config(256, 128, 64, 8, 3),
        _config(128, 128, 64, 8, 4),
        _config(128, 128, 64, 4, 4),
        _config(128, 64, 64, 4, 4),
        _config(64, 128, 64, 4, 4),
        _config(64, 64, 64, 4, 5),
    ],
}
"""Tiles by device. Large ones load less for each product, small ones keep more processors busy."""


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul_kernel(
    a, b, c, M, N, K, a_row, a_column, b_row, b_column, c_row, c_column,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Which tile of c is this program's? Its group first, then its place in the group. The last
    # group may be lower than the others.
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = program // (GROUP * tiles_n) * GROUP
    height = min(tiles_m - first, GROUP)
    tile_m = first + program % (GROUP * tiles_n) % height
    tile_n = program % (GROUP * tiles_n) // height
    # Promises that the compiler cannot prove: it does not know that the grid fits M and N.
    tl.assume(tile_m >= 0)
    tl.assume(tile_n >= 0)

    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    k = tl.arange(0, BLOCK_K)
    a_tile = a + m * a_row + k[None, :] * a_column
    b_tile = b + k[:, None] * b_row + n * b_column
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        left = tl.load(a_tile, mask=(m < M) & (k[None, :] < K - start), other=0.0)
        right = tl.load(b_tile, mask=(k[:, None] < K - start) & (n < N), other=0.0)
        total = tl.dot(left, right, total)
        a_tile += BLOCK_K * a_column
        b_tile += BLOCK_K * b_row
    # A constexpr decides while compiling: the kernel without an activation has no trace of one.
    if ACTIVATION == "leaky_relu":
        total = leaky_relu(total)
    tl.store(c + m * c_row + n * c_column, total.to(c.dtype.element_ty), mask=(m < M) & (n < N))


def choose(m, n, device):
    """The config for a product of this size: the largest tiles that give every processor work."""
    configs = CONFIGS[device]
    if device == "cpu":
        return configs[0]
    for config in (configs[0], configs[3], configs[5]):
        if triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]) >= 128:
            return config
    return configs[-1]


def matmul(a, b, c, activation="", config=None):
    """c = activation(a @ b), for matrices of any strides."""
    (m, k), n = a.shape, b.shape[1]
    config = config or choose(m, n, workbench.device_of(a))
    matmul_kernel[
        lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)
    ](
        a, b, c, m, n, k,
        *workbench.strides(a), *workbench.strides(b), *workbench.strides(c),
        ACTIVATION=activation, **config,
    )  # fmt: skip


def check(m=257, n=301, k=131, device="cpu", seed=0, dtype="float16", activation="leaky_relu"):
    import numpy as np

    a = workbench.draw(seed, (m, k), dtype, device)
    b = workbench.draw(seed + 1, (k, n), dtype, device)
    c = workbench.empty((m, n), dtype, device)
    workbench.assert_repeats(lambda: matmul(a, b, c, activation), c)
    product = workbench.exact(a) @ workbench.exact(b)
    if activation:
        product = np.where(product >= 0, product, 0.01 * product)
    workbench.assert_close(c, product, k, workbench.operands_of_dot(dtype, device))


def plot(device):
    """Operations a second for square matrices, beside PyTorch (cuBLAS on a GPU)."""
    import chart
    import torch

    dtype = "float16" if device == "cuda" else "float32"
    unit, scale = ("TFLOP/s", 1e-9) if device == "cuda" else ("GFLOP/s", 1e-6)
    lines = {"this kernel": [], "PyTorch": []}
    for n in range(512, 8193, 1280) if device == "cuda" else range(128, 1025, 128):
        a, b = (workbench.draw(i, (n, n), dtype, device) for i in range(2))
        c = workbench.empty((n, n), dtype, device)
        left, right = torch.as_tensor(a), torch.as_tensor(b)

        def ours(a=a, b=b, c=c):
            matmul(a, b, c)

        def peer(left=left, right=right):
            torch.mm(left, right)

        for line, run in zip(lines.values(), (ours, peer), strict=True):
            line.append((n, scale * 2 * n**3 / workbench.milliseconds(run, device)))
    title = f"matrix product, {dtype}"
    return chart.line_chart(title, "rows and columns", unit, lines, logarithmic=False)


if __name__ == "__main__":
    workbench.main(__file__, check, plot)
