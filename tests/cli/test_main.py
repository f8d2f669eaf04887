"""`fuser` itself: help, doctor, environment variables, logs, the cache, defects."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Fuser, assert_one_line, in_a_process


def test_doctor_checks_this_machine(fuser: Fuser) -> None:
    code, out, err = fuser("doctor")
    assert (code, err) == (0, ""), out
    for word in ("python", "llvmlite", "cpu", "gpu", "kernel cache", "self test"):
        assert word in out
    assert "FAIL" not in out


def test_help_and_version_are_instant() -> None:
    script = (
        "import sys, fuser\n"
        "from fuser.cli.main import run\n"
        "assert run(['--help']) == 0 and run(['run', '--help']) == 0 and run(['--version']) == 0\n"
        "heavy = {'numpy', 'onnx', 'llvmlite', 'networkx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for word in ("run", "explain", "dump", "doctor", "--compare", "python -m fuser"):
        assert word in " ".join(done.stdout.split())


def test_unusable_cache_folder_costs_only_the_cache(
    fuser: Fuser, mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    folders = [tmp_path / "file" / "cache"]
    if os.geteuid():  # root may write anywhere
        (tmp_path / "frozen").mkdir(mode=0o500)
        folders.append(tmp_path / "frozen")
    for folder in folders:
        monkeypatch.setenv("FUSER_CACHE_DIR", str(folder))
        code, out, err = fuser("run", mlp, "--device", "cpu", "--json")
        assert code == 0 and json.loads(out)["cache_hits"] == 0
        assert len(err.splitlines()) == 1
        assert "cache" in err and str(folder) in err


def test_unknown_environment_variable(
    fuser: Fuser, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is noted, once, and the run goes on."""
    monkeypatch.setenv("FUSER_CACHE_DRI", "/tmp")
    code, out, err = fuser("run", mlp, "--device", "cpu", "--iterations", "0", "--json")
    assert code == 0 and json.loads(out)["kernels"]["after"] > 0
    assert len(err.splitlines()) == 1
    assert "note: unknown variable FUSER_CACHE_DRI" in err and "'FUSER_CACHE_DIR'" in err


def test_bad_value_of_an_environment_variable(
    fuser: Fuser, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSER_THREADS", "many")
    assert_one_line(fuser("run", mlp, "--device", "cpu"), 2, "FUSER_THREADS=many")


def test_logs(fuser: Fuser, mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = {"FUSER_CACHE_DIR": str(tmp_path / "cache")}
    run_it = ("run", mlp, "--device", "cpu", "--iterations", "0")
    first = in_a_process(*run_it, "-vv", **folder)
    assert first.returncode == 0, first.stderr
    lines = first.stderr.splitlines()
    assert any(re.match(r"fuser compile: \S+: partitioning", line) for line in lines)
    assert sum(bool(re.match(r"fuser kernels: \S+: compiled, \d+ bytes", x)) for x in lines) == 3
    assert any("3 kernels for" in line and "0 kernels from the cache" in line for line in lines)
    again = in_a_process(*run_it, FUSER_LOG="compile", **folder)
    assert ", 3 kernels from the cache" in again.stderr
    assert "fuser kernels" not in again.stderr
    silent = in_a_process(*run_it, **folder).stderr  # but for steps that a busy machine makes slow
    assert not [line for line in silent.splitlines() if not line.endswith(" ...")]
    monkeypatch.setenv("FUSER_LOG", "kernel")
    assert_one_line(fuser(*run_it), 2, "did you mean 'kernels'")


def test_cache(fuser: Fuser, mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kernels"
    monkeypatch.setenv("FUSER_CACHE_DIR", str(folder))
    assert fuser("cache", "dir") == (0, f"{folder}\n", "")
    fuser("run", mlp, "--device", "cpu", "--iterations", "0")
    files = [path for path in folder.glob("??/*") if path.is_file()]
    code, out, _ = fuser("cache")
    rows = dict(re.split(r"  +", line) for line in out.splitlines())
    assert code == 0 and rows["folder"] == str(folder) and rows["state"] == "on"
    assert int(rows["entries"]) == len(files) > 0 and rows["failed kernels"] == "0"
    code, out, _ = fuser("cache", "clear")
    assert code == 0 and f"removed {len(files)} entries" in out
    assert not [path for path in folder.glob("??/*") if path.is_file()]
    monkeypatch.setenv("FUSER_CACHE", "0")
    assert "off (FUSER_CACHE=0)" in fuser("cache", "info")[1]


def test_a_defect_is_one_line(fuser: Fuser, mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser.frontends.onnx import hosted

    def defect(*_: object, **__: object) -> None:
        raise KeyError("tile")

    monkeypatch.setattr(hosted, "compile_on_host", defect)
    code, out, err = fuser("run", mlp)
    assert (code, out) == (70, "")
    assert len(err.splitlines()) == 1 and "KeyError" in err and "--debug" in err


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["fuser", "b"], ["bench"]),
        (["fuser", "run", "--host", ""], ["error", "allow"]),
        (["fuserc", "run", "--compar"], ["--compare"]),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_as_documented(
    tmp_path: Path, words: list[str], completed: list[str]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "command-line.md"
    line = re.search(r"^eval .*bash_source fuser\)\"", page.read_text(), re.MULTILINE)
    assert line is not None
    for name in ("fuser", "fuserc"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m fuser "$@"\n')
        (tmp_path / name).chmod(0o755)
    script = (
        f"{line[0]}\n"
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fuser_completion "$1"\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words], capture_output=True, text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, completed), done.stderr
