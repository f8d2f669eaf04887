"""Time single kernels of the NVIDIA back end beside PyTorch: python -m benchmarks.nvptx_kernels"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_90A, Target
from fuser.dtypes import DType, bf16
from fuser.tilegen.ir import Kernel
from tests.backend.cuda_launch import Loaded
from tests.backend.nvptx import kernels

TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "i64": torch.int64}


def seconds(fn: Callable[[], None], repeats: int = 20) -> float:
    """Median of a few runs, after warming up."""
    for _ in range(3):
        fn()
    times = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            fn()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / repeats / 1e3)
    return sorted(times)[2]


def time_kernel(kernel: Kernel, target: Target, tensors: list[torch.Tensor]) -> tuple[float, str]:
    loaded = Loaded(compile_kernel(kernel, target))
    pointers = [tensor.data_ptr() for tensor in tensors]
    stream = torch.cuda.current_stream().cuda_stream
    spent = seconds(lambda: loaded.launch(pointers, stream))
    note = " ".join(w for w in loaded.log.replace("\n", " ").split() if w.startswith("C75"))
    return spent, f"{loaded.compiled.facts['dot']} {note}"


def tensors_for(kernel: Kernel) -> list[torch.Tensor]:
    return [
        torch.randn(b.size, device="cuda").to(TORCH[b.dtype.name]) * 0.5 for b in kernel.buffers
    ]


def matmul(m: int, n: int, k: int, dtype: DType, target: Target, **options: object) -> None:
    kernel = kernels.matmul(m, n, k, dtype, epilogue=False, **options)  # type: ignore[arg-type]
    tensors = tensors_for(kernel)
    spent, note = time_kernel(kernel, target, tensors)
    a, b, y = tensors
    ta, tb = bool(options.get("transpose_a")), bool(options.get("transpose_b"))
    a2 = a.view(k, m).t() if ta else a.view(m, k)
    b2 = b.view(n, k).t() if tb else b.view(k, n)
    want = a2 @ b2
    error = ((y.view(m, n).float() - want.float()).norm() / want.float().norm()).item()
    reference = seconds(lambda: torch.matmul(a2, b2))
    flops = 2 * m * n * k / 1e12
    print(
        f"matmul {m}x{n}x{k} {dtype} {target.arch} {options} {note}: {flops / spent:.0f} TFLOP/s, "
        f"torch {flops / reference:.0f}, error {error:.1e}", flush=True,
    )  # fmt: skip


def attention(
    heads: int, length: int, width: int, causal: bool, target: Target, **options: object
) -> None:
    kernel = kernels.attention(
        heads, length, length, width, bf16, causal=causal, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    tensors = tensors_for(kernel)
    spent, note = time_kernel(kernel, target, tensors)
    q, k, v, y = (t.view(1, heads, length, width) for t in tensors)

    def run() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    want = run()
    error = ((y.float() - want.float()).norm() / want.float().norm()).item()
    reference = seconds(lambda: run() is None)
    flops = 4 * heads * length * length * width / (2 if causal else 1) / 1e12
    print(
        f"attention {heads}x{length}x{width} causal={causal} {target.arch} {options} {note}: "
        f"{flops / spent:.0f} TFLOP/s, torch {flops / reference:.0f}, error {error:.1e}",
        flush=True,
    )  # fmt: skip


def rows(
    kind: str, count: int, columns: int, dtype: DType, block: tuple[int, int], warps: int
) -> None:
    make = kernels.softmax if kind == "softmax" else kernels.layernorm
    kernel = make(count, columns, dtype, block, warps)
    spent, _ = time_kernel(kernel, SM_90A, tensors_for(kernel))
    moved = 2 * count * columns * dtype.bytes
    print(
        f"{kind} {count}x{columns} {dtype} {block} {warps}w: {moved / spent / 1e9:.0f} GB/s",
        flush=True,
    )


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    for size in ((4096, 4096, 4096), (8192, 8192, 8192), (1024, 768, 3072), (4096, 3072, 768)):
        for tb in (False, True):
            for roles in (False, True):
                for blocks, warps, stages in (
                    ((128, 256, 64), 8, 4), ((128, 128, 64), 8, 4), ((128, 128, 64), 4, 4),
                    ((64, 128, 64), 4, 4), ((128, 64, 64), 4, 4),
                ):  # fmt: skip
                    if size[0] * size[1] >= 1 << 24 and blocks[0] * blocks[1] < 1 << 14:
                        continue
                    matmul(
                        *size, bf16, SM_90A, blocks=blocks, warps=warps, stages=stages,
                        transpose_b=tb, roles=roles,
                    )  # fmt: skip
    for width in (64, 128):
        for causal in (False, True):
            for roles in (False, True):
                attention(
                    16, 4096, width, causal, SM_90A, blocks=(128, 128), warps=8, stages=2,
                    roles=roles,
                )  # fmt: skip


if __name__ == "__main__":
    main()
