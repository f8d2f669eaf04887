"""The layout of the graph on a page: boxes apart, edges down, few crossings."""

from __future__ import annotations

import itertools
import random

import pytest

from fuser.report.layout import Layout, place, spread


def drawn(seed: int) -> tuple[dict[str, tuple[float, float]], list[tuple[str, str]], Layout]:
    draw = random.Random(seed)
    sizes = {f"n{at}": (draw.uniform(10, 90), draw.uniform(10, 60)) for at in range(40)}
    names = list(sizes)
    edges = [(names[a], names[b]) for a, b in itertools.combinations(range(40), 2)
             if draw.random() < 0.05]  # fmt: skip
    return sizes, edges, place(sizes, edges, gap=7, row_gap=11)


@pytest.mark.parametrize("seed", range(8))
def test_boxes_are_apart_and_edges_lead_down(seed: int) -> None:
    _, edges, layout = drawn(seed)
    boxes = list(layout.boxes.values())
    for box in boxes:
        assert box.x >= -1e-6 and box.x + box.width <= layout.width + 1e-6
        assert box.y >= 0 and box.y + box.height <= layout.height + 1e-6
    for a, b in itertools.combinations(boxes, 2):
        beside = a.x + a.width + 6.99 < b.x or b.x + b.width + 6.99 < a.x
        over = a.y + a.height + 10.99 < b.y or b.y + b.height + 10.99 < a.y
        assert beside or over
    assert set(layout.routes) == set(edges)
    for (a, b), points in layout.routes.items():
        start, end = layout.boxes[a], layout.boxes[b]
        assert points[0] == pytest.approx((start.x + start.width / 2, start.y + start.height))
        assert points[-1] == pytest.approx((end.x + end.width / 2, end.y))
        for (_, y), (_, below) in itertools.pairwise(points):
            assert below >= y
        for x, y in points[1:-1]:  # a line that passes a box touches none
            assert not [
                box for box in boxes
                if box.x < x < box.x + box.width and box.y <= y <= box.y + box.height
            ]  # fmt: skip


def test_the_same_graph_has_the_same_layout() -> None:
    assert drawn(3)[2] == drawn(3)[2]


def test_two_chains_do_not_cross() -> None:
    sizes = {name: (20.0, 10.0) for name in ("a", "b", "d", "c")}
    layout = place(sizes, [("a", "c"), ("b", "d")])
    assert (layout.boxes["a"].x < layout.boxes["b"].x) == (
        layout.boxes["c"].x < layout.boxes["d"].x
    )


def test_a_chain_with_a_shortcut_is_straight() -> None:
    sizes = {str(at): (30.0, 10.0) for at in range(30)}
    edges = [(str(at), str(at + 1)) for at in range(29)]
    edges += [(str(at), str(at + 3)) for at in range(0, 26, 3)]
    layout = place(sizes, edges)
    places = [layout.boxes[name].x for name in sizes]
    assert max(places) - min(places) < 15


def test_edges_that_lead_nowhere_or_back_are_left_out() -> None:
    layout = place({"a": (5, 5), "b": (5, 5)}, [("a", "b"), ("b", "a"), ("a", "a"), ("x", "b")])
    assert set(layout.routes) == {("a", "b")}
    assert place({}, []) == Layout({}, {}, 0.0, 0.0)


def test_spread_is_the_nearest_that_is_apart() -> None:
    assert spread([5, 1, 9], [1, 1, 1], [2, 2]) == [2, 4, 9]
    assert spread([0, 0], [3, 1], [4]) == [-1, 3]
