"""Equal kernels of a report as one, under names of their own."""

from __future__ import annotations

from typing import Any

import pytest

import fuser
from fuser.report.beside import measure
from fuser.report.groups import groups
from fuser.report.record import Record
from fuser.report.verdict import of_record
from models import build, save


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Two convolutions, each of which takes three kernels."""
    path = tmp_path_factory.mktemp("groups") / "model.onnx"
    save(build("conv_block"), path)
    plan = fuser.compile(path, device="cpu", numerics="fast")
    report = plan.report()
    measure(report, plan, plan.random_feeds(0), 1, kernels="own")
    return Record(report.to_dict())


def test_kernels_of_a_region_have_names_and_groups_of_their_own(record: Record) -> None:
    names = [one.own for one in record.launches]
    assert names == [f"conv_{region}.{part}" for region in (0, 1) for part in (1, 2, 3)]
    found = groups(record)
    assert len({group.name for group in found}) == len(found)
    for group in found:
        assert len({one.own.split(".")[1] for one in group.launches}) == 1, "unlike kernels"
    assert sorted(one.own for group in found for one in group.launches) == names
    pairs = [group.title for group in found if len(group.launches) == 2]
    assert pairs == ["conv_0.2, winograd x 2"]


def test_verdicts_are_of_groups(record: Record) -> None:
    launches: list[dict[str, Any]] = [dict(one) for one in record.data["launches"]]
    for one, time in zip(launches, (1.0, 8.0, 2.0, 3.0, 8.0, 9.0), strict=True):
        one["time_us"] = time
    first = of_record(Record(record.data | {"launches": launches}))[0]
    assert (first.kernel.at, first.kernel.time, first.kernel.count) == (1, 16.0, 2)
    assert first.sentence(31.0).startswith("conv_0.2, winograd x 2, /conv{1,2}/Conv … ")
    assert of_record(Record(record.data | {"target": None})) == []
