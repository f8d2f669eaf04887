"""Reports held against runs without fusion: a sample of `python -m tests.report.walk`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuser.report.page import page
from fuser.report.record import Record
from models import TINY, build, save
from tests.report.walk import bar, line, report_of, wrong, wrong_page


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Record]:
    """The report of a model, and that of its plan without fusion."""
    path = tmp_path_factory.mktemp("walk") / "conv_block.onnx"
    save(build("conv_block", **TINY["conv_block"]), path)
    return report_of(path, "cpu", 5), report_of(path, "cpu", 5, "--no-fusion")


def test_nothing_is_wrong(records: tuple[Record, Record]) -> None:
    assert list(wrong(*records)) == []
    assert line("conv_block", *records).startswith("conv_block: kernels 7 -> 2; memory 78.5 kB")


def more_kernels(data: dict[str, Any]) -> None:
    data["kernels"]["before"] += 1


def high_floor(data: dict[str, Any]) -> None:
    data["boundary_bytes"]["floor"] = data["boundary_bytes"]["after"] + 1


def more_bytes(data: dict[str, Any]) -> None:
    data["dram_bytes_cold"]["before"] += 1


@pytest.mark.parametrize(
    ("change", "said"),
    [(more_kernels, "kernels without fusion"), (high_floor, "the floor"),
     (more_bytes, "dram_bytes_cold without fusion")],
)  # fmt: skip
def test_what_is_wrong_is_told(
    records: tuple[Record, Record], change: Callable[[dict[str, Any]], None], said: str
) -> None:
    data = copy.deepcopy(dict(records[0].data))
    change(data)
    assert [said in text for text in wrong(Record(data), records[1])] == [True]


def test_a_page_that_does_not_add_up_is_told(records: tuple[Record, Record]) -> None:
    text = page(records[0])
    run_us = records[0].data["latency_ms"]["median"] * 1e3
    assert bar(text) == pytest.approx(run_us, rel=0.03)
    data = copy.deepcopy(dict(records[0].data))
    data["latency_ms"]["median"] *= 1.1
    (said,) = wrong_page(Record(data), text)
    assert said.startswith("the bar adds up to")
    first, second = (f">{one.own}</a>" for one in records[0].launches[:2])
    (said,) = wrong_page(records[0], text.replace(second, first))
    assert said.startswith("2 rows of the page are called")
    (said,) = wrong_page(records[0], text.replace("<main>", "<main>http://a"))
    assert said.startswith("the page asks for")


def test_a_kernel_that_is_too_fast_is_named(records: tuple[Record, Record], tmp_path: Path) -> None:
    data = copy.deepcopy(dict(records[0].data))
    data["launches"][0]["roofline_us"] = 2 * data["launches"][0]["time_us"]
    fast = Record(data)
    text = page(fast)
    assert list(wrong_page(fast, text)) == []
    (said,) = wrong_page(fast, text.replace("Faster than their roofline", ""))
    assert said.endswith("the page does not say so")
