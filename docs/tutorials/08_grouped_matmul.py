"""Tutorial 8: many matrix products in one launch.

A layer of experts multiplies each group of rows by a matrix of its own. The groups differ in size,
some are tiny, and a launch for each would leave most of the machine idle. One launch for all gives
every program work until the end: the tiles of all products are numbered from first to last, and
programs walk through the numbers in steps of the grid's size.

The sizes are data. They are in an array that the kernel reads: a row for each product with M, N
and K, and where its matrices begin in three common buffers. A program goes through the products
with the number of its next tile; as long as that lies within the product, it computes the tile, a
`while` loop. Tutorial 3 is in its body.

(Triton can also turn loaded whole numbers into pointers, and have an array of those instead of
places in a buffer. In fuser a pointer is always a place in an argument of the launch, so that it
can be told which accesses are inside of an array. This kernel is right in both.)
"""

import workbench

import fuser.triton as triton
import fuser.triton.language as tl


def _config(m, n, k, warps, stages, resident=1):
    return {
        "BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k,
        "num_warps": warps, "num_stages": stages, "resident": resident,
    }  # fmt: skip


CONFIGS = {
    "cpu": [_config(64, 64, 64, 4, 1)],
    "cuda": [
        _config(128, 128, 64, 8, 4),
        _config(128, 128, 64, 4, 3),
        _config(64, 128, 64, 4, 4, 2),
    ],
}
"""resident: programs for each multiprocessor (or core)."""
COLUMNS = 6
"""Of the table of products: M, N, K and the beginnings of a, b and c."""


@triton.jit
def grouped_kernel(
    a, b, c, table, count,
    ALIGNED: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    first = 0  # the number of a product's first tile
    for product in range(0, count):
        row = table + product * COLUMNS
        M, N, K = tl.load(row), tl.load(row + 1), tl.load(row + 2)
        a_begin, b_begin, c_begin = tl.load(row + 3), tl.load(row + 4), tl.load(row + 5)
        if ALIGNED:  # what the launch knows of all of them, and the compiler cannot see
            N, K = tl.multiple_of(N, 16), tl.multiple_of(K, 16)
            a_begin, b_begin = tl.multiple_of(a_begin, 16), tl.multiple_of(b_begin, 16)
            c_begin = tl.multiple_of(c_begin, 16)
        tiles_n = tl.cdiv(N, BLOCK_N)
        beyond = first + tl.cdiv(M, BLOCK_M) * tiles_n
        while tile < beyond:
            m = (tile - first) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
            n = (tile - first) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
            k = tl.arange(0, BLOCK_K)
            total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for start in range(0, K, BLOCK_K):
                across = start + k
                left = tl.load(
                    a + a_begin + m * K + across[None, :],
                    mask=(m < M) & (across[None, :] < K), other=0.0,
                )  # fmt: skip
                right = tl.load(
                    b + b_begin + across[:, None] * N + n,
                    mask=(across[:, None] < K) & (n < N), other=0.0,
                )  # fmt: skip
                total = tl.dot(left, right, total)
            result = total.to(c.dtype.element_ty)
            tl.store(c + c_begin + m * N + n, result, mask=(m < M) & (n < N))
            tile += tl.num_programs(0)
        first = beyond


def describe(shapes, device):
    """(the table of products, sizes of the buffers of a, b and c, whether all is aligned)."""
    import numpy as np

    rows, sizes = [], [0, 0, 0]
    for m, n, k in shapes:
        rows.append((m, n, k, *sizes))
        # Each matrix begins at a multiple of 16 elements.
        sizes = [
            old + triton.cdiv(new, 16) * 16
            for old, new in zip(sizes, (m * k, k * n, m * n), strict=True)
        ]
    aligned = all(n % 16 == 0 and k % 16 == 0 for _, n, k in shapes)
    return workbench.put(np.array(rows, "int32"), device), sizes, aligned


def grouped_matmul(a, b, c, table, aligned, config=None):
    """All products of a table; see `describe`. a, b and c hold the matrices, row by row."""
    config = dict(config or CONFIGS[workbench.device_of(a)][0])
    programs = workbench.multiprocessors(a) * config.pop("resident")
    grouped_kernel[(programs,)](
        a, b, c, table, table.shape[0], ALIGNED=aligned, COLUMNS=COLUMNS, **config
    )


def check(
    shapes=((70, 33, 129), (1, 64, 16), (257, 130, 65)), device="cpu", seed=0, dtype="float16"
):
    table, sizes, aligned = describe(shapes, device)
    a, b = (workbench.draw(seed + i, (sizes[i],), dtype, device) for i in range(2))
    c = workbench.empty((sizes[2],), dtype, device)
    workbench.assert_repeats(lambda: grouped_matmul(a, b, c, table, aligned), c)
    left, right, found = workbench.exact(a), workbench.exact(b), workbench.host(c)
    rounded = workbench.operands_of_dot(dtype, device)
    for m, n, k, i, j, at in workbench.host(table):
        product = left[i : i + m * k].reshape(m, k) @ right[j : j + k * n].reshape(k, n)
        workbench.assert_close(found[at : at + m * n].reshape(m, n), product, k, rounded)


def plot(device):
    """Operations a second for groups of 4 to 64 products, beside a loop in PyTorch."""
    import chart
    import torch

    dtype, n = ("float16", 1024) if device == "cuda" else ("float32", 128)
    unit, scale = ("TFLOP/s", 1e-9) if device == "cuda" else ("GFLOP/s", 1e-6)
    lines = {"this kernel": [], "PyTorch, one by one": []}
    for count in (4, 8, 16, 32, 64):
        shapes = [(n // 4 * (1 + i % 4), n, n) for i in range(count)]
        table, sizes, aligned = describe(shapes, device)
        a, b = (workbench.draw(i, (sizes[i],), dtype, device) for i in range(2))
        c = workbench.empty((sizes[2],), dtype, device)
        pairs = [
            (
                torch.as_tensor(a)[i : i + m * k].view(m, k),
                torch.as_tensor(b)[j : j + k * w].view(k, w),
            )
            for m, w, k, i, j, _ in workbench.host(table).tolist()
        ]

        def ours(a=a, b=b, c=c, table=table, aligned=aligned):
            grouped_matmul(a, b, c, table, aligned)

        def peer(pairs=pairs):
            for left, right in pairs:
                torch.mm(left, right)

        work = sum(2 * m * w * k for m, w, k in shapes)
        for line, run in zip(lines.values(), (ours, peer), strict=True):
            line.append((count, scale * work / workbench.milliseconds(run, device)))
    return chart.line_chart(f"products of {n // 4} to {n} rows, {dtype}", "products", unit, lines)


if __name__ == "__main__":
    workbench.main(__file__, check, plot)
