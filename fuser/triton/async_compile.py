"""triton.AsyncCompileMode: kernels that several threads compile at once.

with triton.AsyncCompileMode(ThreadPoolExecutor(8)):
    for kernel in kernels:
        kernel.warmup(..., grid=(1,))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from typing import Any, Self

from fuser.errors import UsageError

active_mode: ContextVar[AsyncCompileMode | None] = ContextVar("async_compile_mode", default=None)


class FutureKernel:
    """A kernel that is compiled now: what is asked of it waits until it is."""

    def __init__(
        self,
        finalize_compile: Callable[[Any], None],
        cleanup_compile: Callable[[FutureKernel], None],
        future: Future[Any],
    ) -> None:
        self.finalize_compile, self.cleanup_compile = finalize_compile, cleanup_compile
        self.future, self.kernel = future, None

    def result(self, ignore_errors: bool = False) -> Any:
        """The kernel. Raises what compiling it raised; None instead with ignore_errors."""
        if self.kernel is None:
            try:
                made = self.future.result()
            except Exception:
                self.cleanup_compile(self)
                if ignore_errors:
                    return None
                raise
            self.finalize_compile(made)
            self.kernel = made
        return self.kernel

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.result(), name)


class AsyncCompileMode:
    """In the block, `kernel.warmup(...)` hands its compile to an executor of threads and gives a
    FutureKernel. The end of the block waits for all, and raises what the first of them raised;
    where it ends by an error, what has not begun is given up."""

    def __init__(self, executor: Executor, *, ignore_errors: bool = False) -> None:
        self.executor, self.ignore_errors = executor, ignore_errors
        self.future_kernels: dict[Hashable, FutureKernel] = {}

    def submit(
        self,
        key: Hashable,
        compile_fn: Callable[[], Any],
        finalize_fn: Callable[[Any], None],
        cleanup_fn: Callable[[FutureKernel], None],
    ) -> FutureKernel:
        """The compile of a key, begun now unless it was begun before."""
        if key not in self.future_kernels:
            future = self.executor.submit(compile_fn)
            self.future_kernels[key] = FutureKernel(finalize_fn, cleanup_fn, future)
        return self.future_kernels[key]

    def __enter__(self) -> Self:
        """Raises UsageError within another one."""
        if active_mode.get() is not None:
            raise UsageError(
                "an AsyncCompileMode is active already", hint="leave its block before another"
            )
        active_mode.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        active_mode.set(None)
        futures, self.future_kernels = list(self.future_kernels.values()), {}
        failed: Exception | None = None
        for item in futures:
            given_up = exc[0] is not None and item.future.cancel()
            try:
                item.result(self.ignore_errors or given_up)
            except Exception as error:
                failed = failed or error
        if failed is not None and exc[0] is None:
            raise failed


__all__ = ["AsyncCompileMode", "FutureKernel", "active_mode"]
