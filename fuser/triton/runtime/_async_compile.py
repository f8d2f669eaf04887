"""triton.runtime._async_compile."""

from __future__ import annotations

from fuser.triton.async_compile import AsyncCompileMode, FutureKernel, active_mode

__all__ = ["AsyncCompileMode", "FutureKernel", "active_mode"]
