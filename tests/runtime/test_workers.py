"""Compile workers: parallel, deduplicated, cached, and safe from what they compile."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuser.backend import workers
from fuser.backend.workers import CompileJob, CompileStats, compile_all
from fuser.dtypes import f32
from fuser.errors import CompileError
from fuser.runtime.cache import KernelCache
from fuser.target import cpu_target
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


def test_order_names_and_equal_kernels() -> None:
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
        deadline = time.monotonic() + 10
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
    workers._kill(int(first[0].code))
    time.sleep(0.05)
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
        compile_all(jobs, processes=2, reproduction_folder=tmp_path)
    assert "kernel bad" in str(caught.value) and caught.value.where == "region of bad"
    [folder] = tmp_path.iterdir()
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
            compile_all([job("a", 10), job("b", 11)], reproduction_folder=tmp_path)
    assert capfd.readouterr().err == ""


def test_a_server_killed_between_compiles() -> None:
    compile_all([job("a", 10)], processes=1)
    assert workers._pool.server is not None
    workers._pool.server.kill()
    workers._pool.server.wait()
    jobs = [job(f"b{i}", 11 + i) for i in range(20)]
    assert len(compile_all(jobs, processes=3)) == 20


def test_a_hanging_kernel_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workers, "TIMEOUT", 0.2)
    with pytest.raises(CompileError, match="no result"):
        compile_all([job("hang", fake_compiler.HANG)], reproduction_folder=tmp_path)


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
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "once\n2\n"), done.stderr
