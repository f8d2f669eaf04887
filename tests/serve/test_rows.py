"""Shared runs have the bits of single ones, and are not made where they would not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import fuser
from fuser.errors import OutOfMemoryError, UsageError
from fuser.serve.models import Model
from fuser.serve.opening import open_model
from fuser.serve.rows import ladder, same_bits
from fuser.serve.tensors import RequestError
from tests.serve.conftest import WIDTH, numbers

Arrays = Mapping[str, np.ndarray]


def test_ladder_wastes_a_third_at_most() -> None:
    sizes = ladder(100)
    assert sizes == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100)
    for rows in range(1, 101):
        size = next(size for size in sizes if size >= rows)
        assert (size - rows) / size < 1 / 3


FEEDS = {"x": np.random.default_rng(0).standard_normal((8, 5), np.float32)}


def _shifts(feeds: Arrays) -> Arrays:
    return {"y": feeds["x"] * np.float32(3) + np.float32(1)}


def _mixes(feeds: Arrays) -> Arrays:
    return {"y": feeds["x"] - feeds["x"].mean(0)}


def _other_bits_alone(feeds: Arrays) -> Arrays:
    x = feeds["x"]
    return {"y": x * np.float32(1 + 1e-6 * (len(x) == 1))}


def _by_size(feeds: Arrays) -> Arrays:
    return {"y": feeds["x"] * np.float32(len(feeds["x"]))}


def _by_place(feeds: Arrays) -> Arrays:
    return {"y": feeds["x"] * np.arange(1, len(feeds["x"]) + 1, dtype=np.float32)[:, None]}


def _sums_up(feeds: Arrays) -> Arrays:
    return {"y": feeds["x"].sum(0)}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (_shifts, (1, 2, 4, 8)), (_other_bits_alone, (2, 4, 8)), (_by_size, (8,)),
        (_mixes, ()), (_by_place, ()), (_sums_up, ()),
    ],
)  # fmt: skip
def test_which_batches_keep_bits_is_found(run, expected) -> None:  # type: ignore[no-untyped-def]
    assert same_bits(run, FEEDS, (1, 2, 4, 8)) == expected


def test_shared_runs_have_the_bits_of_single_ones(mlp: Model) -> None:
    assert mlp.batch == "batch"
    requests = [{"x": numbers(rows, seed)} for seed, rows in enumerate((1, 3, 2, 1, 9, 1, 4))]
    single = [mlp.plan.run(feeds) for feeds in requests]
    for expected, found in zip(single, mlp.answer(requests), strict=True):
        assert found["y"].tobytes() == expected["y"].tobytes()
    counts = [mlp.rows(feeds) for feeds in requests]
    assert mlp.fitting(counts, (1, 2, 3, 4, 6, 8)) == 4
    assert mlp.fitting(counts[4:], (1, 2, 3, 4, 6, 8)) == 1  # more rows than a shared run has
    assert mlp.fitting(counts, ()) == 1


def model_file(folder: Path, text: str) -> Path:
    path = folder / "model.onnx"
    onnx.save(parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}'), path)
    return path


def test_rows_that_depend_on_each_other_are_not_joined(tmp_path: Path) -> None:
    """A softmax over the batch: the answer to a request must not depend on who asks beside it."""
    path = model_file(tmp_path, "g (float[n, 4] x) => (float[n, 4] y) { y = Softmax<axis=0>(x) }")
    model = open_model(path, device="cpu", threads=1)
    feeds = [{"x": np.full((1, 4), i, np.float32)} for i in range(3)]
    assert model.sizes(model.key(feeds[0])) == ()
    assert model.summary() == "requests do not share runs"
    for answer in model.answer(feeds):
        assert (answer["y"] == 1).all()


def test_rows_of_a_plan_for_fixed_sizes_are_filled_up(mlp_file: Path, tmp_path: Path) -> None:
    plan = fuser.compile(mlp_file, device="cpu", dims={"batch": 4}, threads=1)
    plan.save(tmp_path / "mlp.plan")
    model = open_model(tmp_path / "mlp.plan", threads=1)
    assert [tensor.shape for tensor in model.inputs] == [(-1, WIDTH)]
    x = numbers(4)
    found = model.answer([{"x": x[:1]}, {"x": x[1:3]}, {"x": x[3:]}])
    together = plan.run({"x": x})["y"]
    assert np.concatenate([answer["y"] for answer in found]).tobytes() == together.tobytes()
    alone = open_model(tmp_path / "mlp.plan", threads=1, most=1)
    assert [tensor.shape for tensor in alone.inputs] == [(4, WIDTH)]


def test_batches_that_memory_has_no_room_for_are_not_made(
    mlp_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that eight rows exceed is no error of a request with one."""
    model = open_model(mlp_file, device="cpu", threads=1)
    right = model.plan.run

    def small(feeds: Arrays) -> Arrays:
        if len(feeds["x"]) > 4:
            raise OutOfMemoryError("too many rows")
        return right(feeds)

    monkeypatch.setattr(model.plan, "run", small)
    model._sizes.clear()
    model._tried.clear()
    assert model.sizes(((WIDTH,),)) == (1, 2, 3, 4)
    answers = model.answer([{"x": numbers(1, seed)} for seed in range(7)])
    assert len(answers) == 7 and model.runs == 2


def test_each_request_has_its_answer_or_its_error(mlp: Model) -> None:
    good, bad = {"x": numbers(2)}, {"x": numbers(2).astype(np.float64)}
    first, second, third = mlp.answer_each([good, bad, {"z": numbers(1)}])
    assert isinstance(first, dict) and first["y"].shape == (2, 10)
    assert isinstance(second, RequestError) and "FP64" in str(second)
    assert isinstance(third, RequestError)


def test_what_cannot_be_opened_is_said(mlp_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        open_model(tmp_path / "no.plan")
    with pytest.raises(UsageError, match="unknown dim"):
        open_model(mlp_file, dims={"nobatch": 2})
