"""NVIDIA GPUs: Tile IR to PTX through LLVM.

`assign` gives every tile a layout over registers, lanes and warps, and every dot a unit; `lower`
walks the kernel and emits LLVM IR with those choices. See layout.py, assign.py, lower.py and
op_rules.py, in order.
"""

from fuser.backend.nvptx.compile import compile_kernel, gpu_text, lower_to_gpu, lower_to_llvm

__all__ = ["compile_kernel", "gpu_text", "lower_to_gpu", "lower_to_llvm"]
