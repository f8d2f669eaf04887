"""Compile workers: parallel, deduplicated, cached, and safe from what they compile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fuser.backend import failed_kernels, worker_pool, workers
from fuser.backend.module import CompiledKernel
from fuser.backend.workers import (
    CompileJob,
    CompileStats,
    Refused,
    compile_all,
    compile_each,
    refusal_of,
)
from fuser.base.limits import Limits, limited
from fuser.base.target import cpu_target
from fuser.dtypes import f32
from fuser.errors import CompileError, CompileTimeoutError, LimitError
from fuser.runtime.cache import KernelCache
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.ir import Kernel

from . import fake_compiler

TARGET = cpu_target("x86-64-v3", "")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    workers.shutdown()
    name = fake_compiler.__name__
    monkeypatch.setattr(workers._pool, "entry", f"from {name} import main; main()", raising=False)
    monkeypatch.setattr(workers, "LOOK_SECONDS", 0.15)
    yield
    workers.shutdown()


def scale(name: str, size: int) -> Kernel:
    b = Builder(name)
    x, y = b.buffer("x", f32, size), b.buffer("y", f32, size, role="output")
    at = index(b.program_id(0, -(-size // 128))) * 128 + axis(0, 128)
    tile = b.load(b.view(x, (size,)), (at,), (128,))
    b.store(b.view(y, (size,)), (at,), b.map("mul", tile, b.full(2.0, (128,), f32)))
    return b.build()


def job(name: str, size: int) -> CompileJob:
    return CompileJob(scale(name, size), TARGET, where=f"region of {name}")


def test_order_names_and_equal_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(fake_compiler.TOGETHER, f"2:{tmp_path}")
    stats, seen = CompileStats(), []
    jobs = [job(f"map_{i}", 1000 + i % 5) for i in range(12)]
    compiled = compile_all(jobs, processes=2, stats=stats, progress=lambda *n: seen.append(n))
    assert [kernel.name for kernel in compiled] == [f"map_{i}" for i in range(12)]
    assert (stats.jobs, stats.distinct, stats.cache_hits) == (12, 5, 0)
    assert [count for count, _ in seen] == [1, 2, 3, 4, 5] and seen[-1] == (5, 5)
    for i, kernel in enumerate(compiled):
        assert kernel.entry == compiled[i % 5].entry and kernel.grid == (8,)
    assert len({kernel.entry for kernel in compiled}) == 5
    assert len({kernel.code for kernel in compiled}) == 2  # both workers took part


def test_jobs_compile_while_the_next_are_made() -> None:
    def make() -> Iterator[CompileJob]:
        yield job("first", 10)
        deadline = time.monotonic() + 300
        while not workers._pool.workers or not workers._pool.workers[0].connection.poll():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        yield job("second", 11)

    assert [kernel.name for kernel in compile_all(make(), processes=1)] == ["first", "second"]


def test_an_error_of_the_generator_leaves_the_pool_usable() -> None:
    def make() -> Iterator[CompileJob]:
        yield job("first", 10)
        raise KeyError("emitter")

    with pytest.raises(KeyError):
        compile_all(make(), processes=1)
    assert len(compile_all([job("again", 10)], processes=1)) == 1


def test_the_cache_comes_first(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    jobs = [job(f"map_{i}", 1000 + i) for i in range(3)]
    first = compile_all(jobs, cache, 1)
    workers.shutdown()
    stats = CompileStats()
    again = compile_all([*jobs, job("renamed", 1001)], cache, 1, stats=stats)
    assert again[:3] == first and again[3].code == first[1].code and again[3].name == "renamed"
    assert stats.cache_hits == stats.distinct == 3
    assert workers._pool.server is None  # nothing was started for it


def test_workers_are_kept() -> None:
    first = compile_all([job("a", 10)], processes=1)
    second = compile_all([job("b", 11)], processes=1)
    assert first[0].code == second[0].code  # the same process


def test_a_worker_killed_while_idle_is_replaced() -> None:
    first = compile_all([job("a", 10)], processes=1)
    worker_pool._kill(int(first[0].code))
    wait_until(lambda: not is_running(int(first[0].code)))
    second = compile_all([job("b", 11)], processes=1)
    assert first[0].code != second[0].code


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (fake_compiler.ABORT, "the compiler process died: LLVM ERROR: Cannot select"),
        (fake_compiler.REFUSE, "a scan over 3 axes"),
        (fake_compiler.DEFECT, "ZeroDivisionError: division by zero"),
    ],
)
def test_failures_are_reported(size: int, message: str, tmp_path: Path) -> None:
    jobs = [job(f"good_{i}", 10 + i) for i in range(3)] + [job("bad", size)]
    with pytest.raises(CompileError, match=message) as caught:
        compile_all(jobs, KernelCache(tmp_path), 2)
    assert "kernel bad" in str(caught.value) and caught.value.where == "region of bad"
    [folder] = (tmp_path / "failed").iterdir()
    assert str(folder) in caught.value.hint
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert {"kernel.tile", "canonical.tile", "target.json", "versions.json", "error.txt"} <= set(
        files
    )
    assert "@bad" in files["kernel.tile"] and message in files["error.txt"]
    assert len(compile_all(jobs[:3], processes=2)) == 3  # usable again


def test_a_server_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers._pool, "entry", "raise ImportError('half a package')")
    for _ in range(2):
        with pytest.raises(CompileError, match="ImportError: half a package"):
            compile_all([job("a", 10), job("b", 11)], KernelCache(tmp_path))
    assert capfd.readouterr().err == ""


def test_a_server_killed_between_compiles() -> None:
    compile_all([job("a", 10)], processes=1)
    assert workers._pool.server is not None
    workers._pool.server.kill()
    workers._pool.server.wait()
    jobs = [job(f"b{i}", 11 + i) for i in range(20)]
    assert len(compile_all(jobs, processes=3)) == 20


def test_a_hanging_kernel_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker_pool, "TIMEOUT", 0.2)
    with pytest.raises(CompileTimeoutError, match=r"kernel hang.* no result"):
        compile_all([job("hang", fake_compiler.HANG)], KernelCache(tmp_path))


def test_a_kernel_has_a_budget_of_processor_time(tmp_path: Path) -> None:
    jobs = [replace(one, seconds=0.5) for one in (job("good", 10), job("long", fake_compiler.SPIN))]
    with pytest.raises(CompileTimeoutError, match=r"kernel long.* 0\.5 s of processor time"):
        compile_all(jobs, KernelCache(tmp_path), 1)
    [folder] = (tmp_path / "failed").iterdir()
    assert "@long" in (folder / "kernel.tile").read_text()
    assert len(compile_all(jobs[:1], processes=1)) == 1


def test_a_replaceable_kernel_is_refused_and_the_others_compile(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    jobs = [
        replace(job("long", fake_compiler.SPIN), seconds=0.5, replaceable=True),
        replace(job("hard", fake_compiler.REFUSE), replaceable=True),
        *(job(f"good{i}", 10 + i) for i in range(3)),
    ]
    for _ in range(2):  # the second time from the cache
        stats = CompileStats()
        long, hard, *others = compile_each(jobs, cache, 1, stats=stats)
        assert long == Refused("its kernel took more than 0.5 s to compile", 0.5)
        assert hard == Refused("a scan over 3 axes")
        assert [k.name for k in others if isinstance(k, CompiledKernel)] == [
            "good0", "good1", "good2"
        ]  # fmt: skip
    assert stats.cache_hits == 3
    assert not (tmp_path / "failed").exists()
    assert refusal_of(jobs[0], cache) == long
    for other in (replace(jobs[0], seconds=0.6), replace(jobs[0], seconds=0.0), jobs[2]):
        assert refusal_of(other, cache) is None


def test_equal_kernels_of_which_one_is_not_replaceable(tmp_path: Path) -> None:
    size = fake_compiler.REFUSE
    jobs = [replace(job("a", size), replaceable=True), job("b", size)]
    for order in (jobs, jobs[::-1]):
        for cache in (None, KernelCache(tmp_path)):
            with pytest.raises(CompileError, match="a scan over 3 axes"):
                compile_each(order, cache, 1)
    assert isinstance(compile_each(jobs[:1], KernelCache(tmp_path), 1)[0], Refused)
    with pytest.raises(CompileError, match="a scan over 3 axes"):
        compile_each(jobs, KernelCache(tmp_path), 1)


def test_the_limit_of_a_compile_ends_its_workers() -> None:
    def make() -> Iterator[CompileJob]:
        yield job("long", fake_compiler.SPIN)
        wait_until(lambda: bool(workers._pool.workers[0].connection.poll()))  # the greeting
        while True:
            yield job("good", 10)

    with limited(Limits(seconds=0.5)), pytest.raises(LimitError, match=r"longer than 0\.5 s"):
        list(compile_all(make(), processes=1))
    assert not workers._pool.busy


@pytest.mark.parametrize("size", [fake_compiler.KILLED, fake_compiler.STOPPED])
def test_a_lost_worker_is_replaced_once(
    size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_pool, "STOPPED_SECONDS", 0.3)
    monkeypatch.setenv(fake_compiler.ONCE, str(tmp_path / "once"))
    assert len(compile_all([job(f"k{i}", size - i) for i in (0, 20)], processes=2)) == 2
    word = "died" if size == fake_compiler.KILLED else "stopped"
    assert re.search(rf"process .*{word}.*; its kernel is compiled again", caplog.text)

    monkeypatch.delenv(fake_compiler.ONCE)
    workers.shutdown()
    with pytest.raises(CompileError, match=f"kernel bad failed.* process .*{word}"):
        compile_all([job("bad", size)], KernelCache(tmp_path / "cache"))
    [folder] = (tmp_path / "cache" / "failed").iterdir()
    assert "@bad" in (folder / "kernel.tile").read_text()


def test_an_early_start_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for a thread that compiles, nor does it fail where compiling would."""
    workers.shutdown()
    with workers._pool.lock:
        workers.start(TARGET)  # here it would wait for ever
    assert workers._pool.server is None

    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", refuse)
        workers.start(TARGET)
    workers.start(TARGET)
    assert workers._pool.server is not None and workers._pool.lock.acquire(blocking=False)
    workers._pool.lock.release()


def test_a_stopped_server_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "STOPPED_SECONDS", 0.3)
    workers.start(TARGET)
    stopped = workers._pool.server
    assert stopped is not None
    stopped.send_signal(signal.SIGSTOP)
    assert len(compile_all([job("a", 10), job("b", 11)], processes=2)) == 2
    assert stopped.wait(120) == -signal.SIGKILL


def test_idle_workers_that_are_stopped_are_replaced() -> None:
    first = int(compile_all([job("a", 10)], processes=1)[0].code)
    os.kill(first, signal.SIGSTOP)
    wait_until(lambda: worker_pool.is_stopped(first))
    assert int(compile_all([job("b", 11)], processes=1)[0].code) != first
    wait_until(lambda: not is_running(first))


def test_workers_end_with_a_killed_parent() -> None:
    code = f"""
        import sys
        sys.path[:0] = {[str(p) for p in sys.path]!r}
        from {__name__} import *
        workers._pool.entry = "from {fake_compiler.__name__} import main; main()"
        pid = int(compile_all([job("a", 10)], processes=1)[0].code)
        print(pid, workers._pool.server.pid, flush=True)
        compile_all([job("long", fake_compiler.SPIN)], processes=1)
        """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker, server = map(int, parent.stdout.readline().split())
    before = processor_seconds(worker)
    wait_until(lambda: processor_seconds(worker) > before + 0.5)  # the call into LLVM
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_running(worker))
    wait_until(lambda: not is_running(server))


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError), tempfile.TemporaryFile():
        pass
    good, bad = job("good", 10), job("bad", fake_compiler.ABORT)
    assert len(compile_all([good])) == 1
    with pytest.raises(CompileError, match="Cannot select"):
        compile_all([good, bad], KernelCache(tmp_path / "cache"))
    workers.shutdown()
    monkeypatch.delattr(os, "memfd_create", raising=False)  # other systems
    assert len(compile_all([good])) == 1
    with pytest.raises(CompileError, match=r"kernel bad failed .* died"):
        compile_all([good, bad])


def test_without_a_cache_the_error_has_the_text(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for cache in (None, KernelCache(tmp_path / "file", quiet=True)):
        with pytest.raises(CompileError, match="FUSER_CACHE_DIR") as caught:
            compile_all([job("bad", fake_compiler.REFUSE)], cache)
        assert "kernel @bad" in "\n".join(caught.value.__notes__)


def test_the_text_that_llvm_gets_is_made_by_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it cannot take longer than its limit, whatever failed."""
    found = {}
    for size, seconds in ((fake_compiler.REFUSE_LATE, 300), (fake_compiler.REFUSE_NO_TEXT, 0.5)):
        monkeypatch.setattr(workers, "TEXT_SECONDS", seconds)  # without it the last takes for ever
        with pytest.raises(CompileError, match="too many registers"):
            compile_all([job(f"k{size}", size), job("long", fake_compiler.SPIN)],
                        KernelCache(tmp_path), 2)  # fmt: skip
        [folder] = (tmp_path / "failed").glob(f"k{size}-*")
        path = folder / "kernel.ll"
        found[size] = path.read_text() if path.exists() else None
        assert not workers._pool.busy
    assert found == {
        fake_compiler.REFUSE_LATE: "define void",
        fake_compiler.REFUSE_NO_TEXT: None,
    }
    assert len(compile_all([job("a", 10)], processes=1)) == 1


def test_few_failed_kernels_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_kernels, "MOST", 3)
    monkeypatch.setattr(failed_kernels, "MOST_BYTES", 1000)

    def fail(name: str, size: int = 1) -> None:
        folder = failed_kernels.keep(tmp_path, f"{name}/..", {"canonical.tile": name * size})
        assert folder is not None and folder.parent == tmp_path
        for path in tmp_path.iterdir():  # older by a second
            status = path.stat()
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 10**9))

    def kept() -> str:
        return "".join(sorted(path.name[0] for path in tmp_path.iterdir()))

    for name in "abcabcde":
        fail(name)
    assert kept() == "cde" and failed_kernels.count(tmp_path) == 3
    fail("f", 990)
    assert kept() == "def"
    fail("g", 2000)
    assert kept() == "g"


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
    """seconds: only against waiting for ever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_nothing_to_compile() -> None:
    assert compile_all([]) == []


def test_the_key_names_everything() -> None:
    requests = [workers._request(job("a", 10)), workers._request(job("b", 10))]
    assert requests[0] == requests[1]
    material = workers.key_material(requests[0])
    for part in ("x86-64-v3", "llvmlite", "source", "kernel @kernel"):
        assert part in material
    other = CompileJob(scale("a", 10), cpu_target("x86-64-v4", ""))
    assert workers.key_material(workers._request(other)) != material


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path[:0] = {[str(p) for p in sys.path]!r}
            print("once")
            from {__name__} import compile_all, fake_compiler, job, workers
            workers._pool.entry = "from {fake_compiler.__name__} import main; main()"
            print(len(compile_all([job("a", 10), job("b", 11)], processes=2)))
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "once\n2\n"), done.stderr
