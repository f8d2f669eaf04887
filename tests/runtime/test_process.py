"""Processes that end, fork or are interrupted while a plan is alive."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from fuser.runtime.threads import get_pool
from tests.runtime.pools import interrupted_everywhere, taken
from tests.runtime.test_cpu import SIZE, CpuExecutor, chain, expected

START = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parents[2]), *sys.path]!r}
import os, threading, time
import numpy as np
from tests.runtime.test_cpu import SIZE, CpuExecutor, chain, expected
executor = CpuExecutor(chain(), 3)
x = np.ones(SIZE, np.float32)
executor.run([x])
"""


def python(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=300, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise SystemError", 1), ("os._exit(4)", 4)],
)
def test_exit_with_live_workers(end: str, code: int) -> None:
    assert python(end).returncode == code


def test_exit_while_other_threads_run() -> None:
    done = python(
        """
        runs = []
        def forever():
            while True:
                executor.run([x])
                runs.append(1)
        for _ in range(3):
            threading.Thread(target=forever, daemon=True).start()
        while len(runs) < 30:
            time.sleep(0.001)
        """
    )
    assert done.returncode == 0, done.stderr


def test_fork_while_other_threads_run() -> None:
    done = python(
        """
        stop = False
        def until_stopped():
            while not stop:
                executor.run([x])
        callers = [threading.Thread(target=until_stopped) for _ in range(3)]
        for caller in callers:
            caller.start()
        codes = []
        for _ in range(10):
            child = os.fork()
            if child == 0:
                good = np.array_equal(executor.run([x])[0], expected(x)[0])
                os._exit(0 if good else 1)
            codes.append(os.waitpid(child, 0)[1])
        stop = True
        for caller in callers:
            caller.join()
        assert not any(codes), codes
        """
    )
    assert done.returncode == 0, done.stderr


def test_an_interrupt_ends_a_loop_of_runs() -> None:
    code = (
        "import itertools, signal\n"  # what runs the tests in the background may ignore interrupts
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "for i in itertools.count():\n"
        "    executor.run([x])\n"
        "    if i == 10: print('ready', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", START + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in errors and process.returncode == -signal.SIGINT


def test_an_interrupt_anywhere_leaves_the_pool_free() -> None:
    pool, executor, x = get_pool(3), CpuExecutor(chain(), 3), np.ones(SIZE, np.float32)
    assert executor._parallel
    for _ in interrupted_everywhere(lambda: executor.run([x]), CpuExecutor._run_on):
        with taken(pool):
            pass
    assert (executor.run([x])[0] == expected(x)[0]).all()


def test_a_taken_pool_does_not_keep_the_process() -> None:
    code = "from fuser.runtime import threads\nthreads.STOP_SECONDS = 0.1\n"
    code += "pool = threads.get_pool(3)\npool.take(pool.pointer)\nprint('ready', flush=True)\n"
    found = subprocess.run([sys.executable, "-c", START + code], capture_output=True, timeout=300)
    assert found.returncode == 0 and found.stdout == b"ready\n"
