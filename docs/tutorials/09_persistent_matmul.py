"""Tutorial 9: persistent matrix product, with pointers and with tensor descriptors.

Tutorial 3 starts a program for each tile of c. Between two programs on the same multiprocessor
there is a gap: the sums of the first are rounded and stored, the second computes its addresses and
waits for its first loads, and the tensor cores wait for both. A persistent program makes one tile
after the other in a loop, so that the loads of the next tile can begin while the last is stored.

The second kernel also says what the arrays are. A tensor descriptor has the address, the shape and
the strides of an array and the shape of a block, and `desc.load([row, column])` is a block of it:
no pointers, no masks, zeros beyond the edge. A Hopper GPU has a unit that copies such blocks by
itself. It asks for strides that are multiples of 16 bytes, so the check below has rows with a gap.
"""

import workbench

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.triton.tools.tensor_descriptor import TensorDescriptor


def _config(m, n, k, warps, stages, group=8):
    return {
        "BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": group,
        "num_warps": warps, "num_stages": stages,
    }  # fmt: skip


CONFIGS = {
    "cpu": [_config(64, 64, 64, 4, 1)],
    "cuda": [
        _config(128, 256, 64, 8, 3),
        _config(128, 128, 64, 8, 4),
        _config(128, 256, 64, 8, 4),
        _config(128, 128, 64, 4, 4),
    ],
}


@triton.jit
def place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile, group by group as in tutorial 3."""
    first = tile // (GROUP * tiles_n) * GROUP
    height = min(tiles_m - first, GROUP)
    row = first + tile % (GROUP * tiles_n) % height
    column = tile % (GROUP * tiles_n) // height
    tl.assume(row >= 0)
    tl.assume(column >= 0)
    return row, column


@triton.jit
def pointer_kernel(
    a, b, c, M, N, K, a_row, b_row, c_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    for tile in range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        row, column = place(tile, tiles_m, tiles_n, GROUP)
        m = row * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        n = column * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, K, BLOCK_K):
            across = start + k
            left = tl.load(
                a + m * a_row + across[None, :], mask=(m < M) & (across[None, :] < K), other=0.0
            )
            right = tl.load(
                b + across[:, None] * b_row + n, mask=(across[:, None] < K) & (n < N), other=0.0
            )
            total = tl.dot(left, right, total)
        tl.store(c + m * c_row + n, total.to(c.dtype.element_ty), mask=(m < M) & (n < N))


@triton.jit
def descriptor_kernel(
    a, b, c, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        row, column = place(tile, tiles_m, tiles_n, GROUP)
        m, n = row * BLOCK_M, column * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            total = tl.dot(a.load([m, k]), b.load([k, n]), total)
        c.store([m, n], total.to(c.dtype))


def choose(m, n, device):
    """The config for a product of this size: the largest tiles that give every processor work."""
    configs = CONFIGS[device]
    if device == "cpu":
        return configs[0]
    large = triton.cdiv(m, configs[0]["BLOCK_M"]) * triton.cdiv(n, configs[0]["BLOCK_N"]) >= 128
    return configs[0 if large else 1]


def matmul(a, b, c, descriptors=False, config=None):
    """c = a @ b, for matrices with neighbouring columns; see above for what descriptors ask."""
    (m, k), n = a.shape, b.shape[1]
    config = config or choose(m, n, workbench.device_of(a))
    tiles = triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"])
    grid = (min(tiles, workbench.multiprocessors(a)),)
    if descriptors:
        blocks = (("BLOCK_M", "BLOCK_K"), ("BLOCK_K", "BLOCK_N"), ("BLOCK_M", "BLOCK_N"))
        described = [
            TensorDescriptor(
                x, list(x.shape), list(workbench.strides(x)), [config[i] for i in block]
            )
            for x, block in zip((a, b, c), blocks, strict=True)
        ]
        descriptor_kernel[grid](*described, m, n, k, **config)
    else:
        steps = [workbench.strides(x)[0] for x in (a, b, c)]
        pointer_kernel[grid](a, b, c, m, n, k, *steps, **config)


def check(m=257, n=301, k=131, device="cpu", seed=0, dtype="float16"):
    """Rows have a gap behind them, so that each begins at a multiple of 16 bytes."""
    wide_k, wide_n = (triton.cdiv(x, 8) * 8 for x in (k, n))
    a = workbench.draw(seed, (m, wide_k), dtype, device)[:, :k]
    b = workbench.draw(seed + 1, (k, wide_n), dtype, device)[:, :n]
    product = workbench.exact(a) @ workbench.exact(b)
    for descriptors in (False, True):
        whole = workbench.empty((m, wide_n), dtype, device)
        c = whole[:, :n]
        workbench.assert_repeats(lambda c=c, way=descriptors: matmul(a, b, c, way), whole)
        workbench.assert_close(c, product, k, workbench.operands_of_dot(dtype, device))
        gap = workbench.host(whole)[:, n:]
        assert (gap != gap).all(), "the kernel wrote beyond the rows"


def plot(device):
    """Operations a second for square matrices, beside PyTorch (cuBLAS on a GPU)."""
    import chart
    import torch

    dtype = "float16" if device == "cuda" else "float32"
    unit, scale = ("TFLOP/s", 1e-9) if device == "cuda" else ("GFLOP/s", 1e-6)
    lines = {"pointers": [], "descriptors": [], "PyTorch": []}
    for n in range(512, 8193, 1280) if device == "cuda" else range(128, 1025, 128):
        a, b = (workbench.draw(i, (n, n), dtype, device) for i in range(2))
        c = workbench.empty((n, n), dtype, device)
        left, right = torch.as_tensor(a), torch.as_tensor(b)

        def ours(descriptors, a=a, b=b, c=c):
            matmul(a, b, c, descriptors)

        def peer(_, left=left, right=right):
            torch.mm(left, right)

        for line, (run, way) in zip(
            lines.values(), ((ours, False), (ours, True), (peer, None)), strict=True
        ):
            time = workbench.milliseconds(lambda run=run, way=way: run(way), device)
            line.append((n, scale * 2 * n**3 / time))
    title = f"persistent matrix product, {dtype}"
    return chart.line_chart(title, "rows and columns", unit, lines, logarithmic=False)


if __name__ == "__main__":
    workbench.main(__file__, check, plot)
