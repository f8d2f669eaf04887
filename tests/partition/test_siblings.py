"""Regions that do not read each other share a launch; looking for them takes linear time."""

from __future__ import annotations

import pytest

from fuser.partition import Partition, partition, siblings
from fuser.partition.siblings import MOST_PARTNERS, MOST_VALUES
from tests.partition.support import CPU, Net, check


def slices(count: int) -> tuple[Net, Partition]:
    net = Net()
    x = net.input("x", 4 * count)
    cuts = [net.named(f"cut{i}").slice_axis(x, 0, 4 * i, 4 * i + 4) for i in range(count)]
    return net, partition(net.finish(*cuts), CPU)


def test_slices_of_one_tensor_are_written_together() -> None:
    net, cut = slices(40)
    check(net.graph, cut)
    together = MOST_VALUES - 1  # and the tensor that they read
    assert [len(region.outputs) for region in cut.regions] == [together] * 3 + [40 - 3 * together]


def test_comparisons_are_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large regions without a common input, none of which may join another."""
    compared = 0
    may_join = siblings._may_join

    def counted(*args: object) -> bool:
        nonlocal compared
        compared += 1
        return may_join(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(siblings, "_may_join", counted)
    net, count = Net(), 3 * MOST_PARTNERS
    graph = net.finish(
        *(net.named(f"f{i}").map("sin", net.input(f"x{i}", 1 << 20)) for i in range(count))
    )
    assert len(partition(graph, CPU).regions) == count
    assert compared <= count * MOST_PARTNERS


def test_a_moved_input_stays_apart_from_slices() -> None:
    """Its kernel has no elements that others could be told to share."""
    net = Net()
    x, z = net.input("x", 2, 3), net.input("z", 5, 2)
    cut = net.b.slice_axis(z, 0, 1, 4)
    graph = net.finish(net.b.transpose(x, (1, 0)), cut, net.b.map("neg", cut))
    split = partition(graph, CPU)
    check(graph, split)
    assert sorted(len(region.outputs) for region in split.regions) == [1, 2]
