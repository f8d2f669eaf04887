"""fork() while other threads compile, run and import; pools of processes; the end under load."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from fuser.backend import workers
from fuser.base.forks import cached_property, hold_at_fork, new_lock

START = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parents[2]), *sys.path]!r}
import os, signal, threading, time
import numpy as np
import fuser

def function(scale, threads=2):
    def body(x):
        return np.tanh(x * scale).sum(axis=1) + scale
    return fuser.jit(body, device="cpu", threads=threads)

x = np.ones((400, 300), np.float32)

def check(scale):
    expected = np.tanh(x * scale).sum(axis=1) + scale
    return bool(np.allclose(function(scale)(x), expected, rtol=1e-4))

def child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(500)
        try:
            os._exit(0 if work() else 3)
        finally:
            os._exit(4)
    return pid

def ends(pids):
    return [os.waitpid(pid, 0)[1] for pid in pids]
"""


def python(code: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)], capture_output=True, text=True,
        timeout=600, env={**os.environ, "FUSER_CACHE_DIR": str(folder)}, **options,
    )  # fmt: skip


def test_children_compile_and_run_while_threads_do(tmp_path: Path) -> None:
    done = python(
        """
        running = function(3.0)
        known = running(x)
        stop = []
        def run():
            while not stop:
                running(x)
        def compile():
            while not stop:
                function(3.0)(x)   # found in the cache: links again and again
        def compile_new():
            scale = 10.0
            while not stop:
                scale += 1
                function(scale)(x)
        threads = [threading.Thread(target=f) for f in (run, compile, compile_new)]
        for thread in threads:
            thread.start()
        def work():
            return np.array_equal(running(x), known) and check(3.0)
        found = []
        for i in range(16):
            time.sleep(0.02)
            found.append(child(work if i % 8 else lambda: work() and check(0.5)))
        found = ends(found)
        stop.append(1)
        for thread in threads:
            thread.join()
        assert not any(found), found
        assert check(3.0) and check(0.25)  # the parent goes on as before
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_children_of_a_thread_that_imports(tmp_path: Path) -> None:
    done = python(
        """
        thread = threading.Thread(target=check, args=(3.0,))
        thread.start()
        found = []
        while thread.is_alive() and len(found) < 6:
            time.sleep(0.05)
            found.append(child(lambda: check(3.0)))
        thread.join()
        found = ends(found)
        assert not any(found), found
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("daemon", [True, False])
def test_the_interpreter_ends_while_threads_compile_and_run(daemon: bool, tmp_path: Path) -> None:
    done = python(
        f"""
        check(3.0)
        running = function(3.0, threads=1)
        ready = []
        def run():
            while not ready or {daemon}:
                running(x)
        def compile():
            scale = 10.0
            while True:
                scale += 1
                function(scale)(x)
                ready.append(1)
                if not {daemon}:
                    break
        for target in (run, run, compile, compile):
            threading.Thread(target=target, daemon={daemon}).start()
        if {daemon}:
            while not ready:
                time.sleep(0.01)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes(method: str) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        found = pool.map(_sum_of, [3, 4, 3], chunksize=1)
    assert found == [pytest.approx(12.0 * n, rel=1e-5) for n in (3, 4, 3)]


def _sum_of(n: int) -> float:
    import numpy as np

    import fuser

    total = fuser.jit(lambda x: (x * 4).sum(), device="cpu")(np.full(n, 3.0, np.float32))
    return float(total)


def test_a_child_has_the_server_of_its_parent() -> None:
    assert _sum_of(5) == 60
    workers.shutdown()
    from fuser.base.target import cpu_target

    workers.start(cpu_target("x86-64-v3", ""))
    server = workers._pool.server_pid
    child = os.fork()
    if child == 0:
        try:
            pool = workers._pool
            good = pool.server is None and pool.server_pid == server and not pool.workers
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert workers._pool.server is not None and workers._pool.server.poll() is None


def test_locks_of_other_threads_are_free_in_a_child() -> None:
    theirs, ours = new_lock(), new_lock()
    taken, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with theirs:
            taken.set()
            leave.wait(300)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(300)
    with ours:
        child = os.fork()
        if child == 0:
            free = theirs.acquire(blocking=False)
            os._exit(0 if free and ours._is_owned() else 1)  # type: ignore[attr-defined]
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


class Watched:
    """A lock that tells when somebody waits for it who may not have it yet."""

    def __init__(self) -> None:
        self.lock, self.waits = threading.RLock(), threading.Event()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self.lock.acquire(blocking=False):
            return True
        self.waits.set()
        return self.lock.acquire(blocking, timeout)

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


def test_fork_waits_for_what_may_not_be_cut() -> None:
    lock, steps = Watched(), []
    hold_at_fork("test", lock)
    taken, waits = threading.Event(), lock.waits

    def change() -> None:
        with lock:
            steps.append("begun")
            taken.set()
            waits.wait(300)
            steps.append("done")

    thread = threading.Thread(target=change)
    thread.start()
    taken.wait(300)
    child = os.fork()
    if child == 0:
        os._exit(0 if steps == ["begun", "done"] and lock.acquire(blocking=False) else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_values_are_computed_once() -> None:
    class Thing:
        count = 0

        @cached_property
        def value(self) -> int:
            """What it is."""
            self.count += 1
            return self.count

    thing = Thing()
    assert (thing.value, thing.value, Thing().value) == (1, 1, 1)
    assert isinstance(Thing.value, cached_property) and Thing.value.__doc__ == "What it is."
