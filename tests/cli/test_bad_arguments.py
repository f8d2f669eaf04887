"""Feeds, dims, options and devices that do not fit: one line and an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import Fuser, assert_one_line, feeds_of, input_name


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 24)), ("float64", "f32[2, 24]")),
        (np.zeros((2, 23), np.float32), ("[2, 23]", "24")),
        (np.zeros((24,), np.float32), ("[24]", "axes")),
    ],
    ids=["dtype", "shape", "rank"],
)
def test_wrong_feed(
    fuser: Fuser, mlp: Path, tmp_path: Path, array: np.ndarray[Any, Any], words: tuple[str, ...]
) -> None:
    file = tmp_path / "x.npy"
    np.save(file, array)
    name = input_name(mlp)
    assert_one_line(fuser("run", mlp, "--device", "cpu", "-i", f"{name}={file}"), 2, name, *words)


def test_missing_and_unknown_feed(fuser: Fuser, bert: Path, tmp_path: Path) -> None:
    feeds = feeds_of(bert, batch=1, sequence=8)
    mask = feeds.pop("attention_mask")
    file = tmp_path / "feeds.npz"
    np.savez(file, **feeds)  # type: ignore[arg-type, unused-ignore]
    assert_one_line(
        fuser("run", bert, "--device", "cpu", "-i", file), 2, "missing", "attention_mask"
    )
    np.savez(file, **feeds, attention_musk=mask)  # type: ignore[arg-type, unused-ignore]
    assert_one_line(fuser("run", bert, "--device", "cpu", "-i", file), 2, "attention_musk")


def test_feeds_that_disagree(fuser: Fuser, bert: Path, tmp_path: Path) -> None:
    feeds = feeds_of(bert, batch=2, sequence=8)
    feeds["attention_mask"] = feeds["attention_mask"][:, :-1]
    np.savez(tmp_path / "feeds.npz", **feeds)  # type: ignore[arg-type, unused-ignore]
    result = fuser("run", bert, "--device", "cpu", "-i", tmp_path / "feeds.npz")
    assert_one_line(result, 2, "sequence = 7", "8")


@pytest.mark.parametrize("feed", ["x=absent.npy", "absent.npz", "nonsense", "x=notes.npy"])
def test_unreadable_feed(fuser: Fuser, mlp: Path, tmp_path: Path, feed: str) -> None:
    (tmp_path / "notes.npy").write_text("no array")
    name, _, file = feed.rpartition("=")
    path = f"{name}={tmp_path / file}" if name else str(tmp_path / file)
    assert_one_line(fuser("run", mlp, "--device", "cpu", "-i", path), 2, file)


@pytest.mark.parametrize(
    ("feed", "wrong", "right"),
    [
        ("a=notes", "no file 'notes'", "for example -i x=FILE.npy"),
        ("x=", "no file after the =", "-i x=FILE.npy"),
        ("=array.npy", "no name before the =", "-i x=array.npy"),
        ("array.npy", "of which input", "-i x=array.npy"),
        ("x:array.npy", "of which input", "-i x=FILE.npy"),
        ("x=feeds.npz", "names of its own", "-i feeds.npz"),
        ("x=empty", "names of its own", "-i empty"),
        ("empty", "no input_0.pb", "input_0.pb"),
        ("x=notes.txt", "an .npy file", "numpy.save"),
        ("notes.txt", "an .npz file", "-i FEEDS.npz"),
        ("nothing", "no such file or folder", "-i x=FILE.npy, -i FEEDS.npz, or -i FOLDER"),
    ],
)
def test_a_feed_of_another_form_is_shown_the_right_one(
    fuser: Fuser, mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feed: str,
    wrong: str, right: str,
) -> None:  # fmt: skip
    (tmp_path / "notes.txt").write_text("no array")
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "array.npy", np.zeros((2, 24), np.float32))
    np.savez(tmp_path / "feeds.npz", x=np.zeros((2, 24), np.float32))
    model = mlp.resolve()
    monkeypatch.chdir(tmp_path)
    assert input_name(model) == "x"
    code, out, err = fuser("run", model, "--device", "cpu", "-i", feed)
    assert_one_line((code, out, err), 2, f"-i {feed}: ", wrong)
    assert right in err


def test_broken_tensor_file(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    (tmp_path / "input_0.pb").write_bytes(b"no tensor")
    assert_one_line(fuser("run", mlp, "--device", "cpu", "-i", tmp_path), 2, "input_0.pb")


def test_unknown_dim(fuser: Fuser, mlp: Path) -> None:
    result = fuser("run", mlp, "--device", "cpu", "--dim", "bacth=2")
    assert_one_line(result, 2, "'bacth'", "batch")


@pytest.mark.parametrize("dim", ["batch", "batch=x", "batch=-1", "=3"])
def test_malformed_dim(fuser: Fuser, mlp: Path, dim: str) -> None:
    assert_one_line(fuser("run", mlp, "--device", "cpu", "--dim", dim), 2, dim)


@pytest.mark.parametrize(
    ("dim", "wrong", "right"),
    [
        ("rows", "a name and a size with = between", "--dim rows=8"),
        ("rows:3", "a name and a size with = between", "--dim rows=3"),
        ("3", "a name and a size with = between", "--dim batch=3"),
        ("=3", "no name before the =", "--dim batch=3"),
        ("rows=", "no size after the =", "--dim rows=8"),
        ("rows=x", "'x' is no size", "--dim rows=8"),
        ("rows=1.5", "'1.5' is no size", "--dim rows=1"),
        ("rows=\u00b2", "is no size", "--dim rows=8"),
        ("rows=1..4", "'1..4' is no size", "--dim rows=1; a range is for --open of fuser compile"),
        ("a=3,b=4", "'3,b=4' is no size", "one dim an option: --dim a=3 --dim b=4"),
    ],
)
def test_a_dim_of_another_form_is_shown_the_right_one(
    fuser: Fuser, mlp: Path, dim: str, wrong: str, right: str
) -> None:
    result = fuser("run", mlp, "--device", "cpu", "--dim", dim)
    assert_one_line(result, 2, f"--dim {dim}: ", wrong)
    assert result[2].rstrip().endswith(right)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("bench", "--batch", "\u00b2"), "--batch"),
        (("compile", "--open", "batch=\u00b2..3"), "--open batch=1..64"),
        (("compile", "--open", "=1..3"), "--open batch=1..64"),
        (("serve", "--warm", "batch"), "--warm batch=8"),
        (("serve", "--warm", "batch=\u00b2"), "--warm batch=8"),
    ],
)
def test_other_options_of_sizes(
    fuser: Fuser, mlp: Path, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    command, *others = arguments
    more = ["-o", tmp_path / "p.plan"] if command == "compile" else []
    assert_one_line(fuser(command, mlp, *others, *more), 2, named)


def test_a_number_of_the_environment(
    fuser: Fuser, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSER_THREADS", "\u00b2")
    assert_one_line(fuser("run", mlp), 2, "FUSER_THREADS", "whole number")


@pytest.mark.parametrize(
    "arguments",
    [["--bogus"], ["--device", "tpu"], ["--iterations", "-1"], ["--threads", "0"], []],
    ids=["option", "device", "iterations", "threads", "no model"],
)
def test_usage(fuser: Fuser, mlp: Path, arguments: list[str]) -> None:
    model = [mlp] if arguments else []
    assert_one_line(fuser("run", *model, *arguments), 2, "--help")


def test_compare_and_expect_exclude_each_other(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    result = fuser("run", mlp, "--compare", "unfused", "--expect", tmp_path / "a.npz")
    assert_one_line(result, 2, "--compare", "--expect")


def test_missing_expected_outputs(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    result = fuser("run", mlp, "--device", "cpu", "--expect", tmp_path / "absent.npz")
    assert_one_line(result, 2, "absent.npz")


@pytest.mark.parametrize("option", ["--report", "-o"])
def test_unwritable_result(fuser: Fuser, mlp: Path, tmp_path: Path, option: str) -> None:
    result = fuser("run", mlp, "--device", "cpu", "--json", option, tmp_path / "no" / "file.npz")
    assert result[0] == 2 and "Traceback" not in result[2]
    assert len(result[2].splitlines()) == 1 and "cannot write" in result[2]


def test_no_gpu(fuser: Fuser, mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser.errors import DeviceError
    from fuser.runtime import cuda

    def absent(*_: object) -> None:
        raise DeviceError("there is no NVIDIA GPU", hint="use --device cpu")

    monkeypatch.setattr(cuda, "device_target", absent)
    for command in (["run"], ["explain"], ["dump", "--stage", "ptx"]):
        assert_one_line(fuser(*command, mlp, "--device", "cuda"), 5, "GPU", "--device cpu")
    assert fuser("run", mlp, "--device", "auto")[0] == 0


def test_no_driver_here_is_a_device_error(fuser: Fuser, mlp: Path) -> None:
    from fuser.errors import DeviceError
    from fuser.runtime import cuda

    try:
        cuda.device_target()
    except DeviceError:
        assert_one_line(fuser("run", mlp, "--device", "cuda"), 5)
    else:
        pytest.skip("this machine has a GPU")
