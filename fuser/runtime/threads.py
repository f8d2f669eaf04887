"""Persistent worker threads, one pool a thread count and process, rebuilt in a forked child."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time

import numpy as np

from fuser.base.forks import new_lock
from fuser.runtime import native_pool
from fuser.runtime.jit import runtime_library
from fuser.runtime.memory import address, aligned_empty

STOP_SECONDS = 10.0
"""That the end of the process waits for a run."""
POLL_SECONDS = 0.001
"""Between two looks whether it is over."""

_VOID_P = ctypes.c_void_p
_pools: dict[int, Pool] = {}
_pools_lock = new_lock()


class Pool:
    """`threads` - 1 workers in native loops; the thread that runs a plan is the missing one."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._memory = aligned_empty(native_pool.POOL_BYTES + 64 * threads)
        self._memory[:] = 0
        self._memory[native_pool.POOL_THREADS :][:8].view(np.int64)[0] = threads
        self.pointer = address(self._memory)
        library = runtime_library()
        ctypes.CFUNCTYPE(None, _VOID_P)(library["fuser_pool_init"])(self.pointer)
        self.take = ctypes.CFUNCTYPE(ctypes.c_bool, _VOID_P)(library["fuser_pool_take"])
        self.give = ctypes.CFUNCTYPE(None, _VOID_P)(library["fuser_pool_give"])
        self._stop = ctypes.CFUNCTYPE(None, _VOID_P)(library["fuser_pool_stop"])
        # A ctypes call releases the GIL, so a worker stays out of Python until the pool stops.
        loop = ctypes.CFUNCTYPE(None, _VOID_P, ctypes.c_int64)(library["fuser_worker"])
        self._workers = [
            threading.Thread(
                target=loop, args=(self.pointer, i), name=f"fuser-worker-{i}", daemon=True
            )
            for i in range(1, threads)
        ]
        for worker in self._workers:
            worker.start()

    def stop(self) -> None:
        """End the workers. Waits for a plan that is running to finish, but not for ever."""
        end = time.monotonic() + STOP_SECONDS
        while not self.take(self.pointer) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        self._stop(self.pointer)
        for worker in self._workers:
            worker.join()


def get_pool(threads: int) -> Pool:
    """The pool of this many threads, started on first use."""
    pool = _pools.get(threads)
    if pool is None:
        with _pools_lock:
            pool = _pools.get(threads)
            if pool is None:
                pool = _pools[threads] = Pool(threads)
    return pool


def _forget() -> None:
    """In a forked child: the parent's workers do not exist here."""
    _pools.clear()


def _stop_all() -> None:
    # Native code must not be running when the interpreter frees what it runs on.
    for pool in list(_pools.values()):
        pool.stop()
    _pools.clear()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
