"""NVIDIA GPUs: Tile IR to PTX through LLVM.

`assign` gives every tile a layout over registers, lanes and warps, and every dot a unit; `lower`
records the kernel in the GPU IR with those choices; passes go over it; `emit` writes LLVM IR. See
docs/gpu-level.md.
"""

from fuser.backend.nvptx.compile import (
    compile_kernel,
    gpu_pass_texts,
    gpu_text,
    lower_to_gpu,
    lower_to_llvm,
    mechanisms,
)

__all__ = [
    "compile_kernel",
    "gpu_pass_texts",
    "gpu_text",
    "lower_to_gpu",
    "lower_to_llvm",
    "mechanisms",
]
