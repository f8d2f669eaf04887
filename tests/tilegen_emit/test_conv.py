"""Convolutions: strides, dilation, padding, groups, both memory orders, prologue and epilogue."""

from __future__ import annotations

import pytest

from fuser import dtypes
from fuser.base.target import cpu_target
from fuser.tilegen.emit import emit
from fuser.tilegen.rules.cpu.conv import conv_schedule
from fuser.tilegen.rules.cpu.matmul import register_tiles
from fuser.tilegen.schedule import Schedule
from tests.interpreted import TARGETS, check, one_region
from tests.tilegen.problems import image
from tests.tilegen_emit.graphs import Model

ALL = pytest.mark.parametrize("target", TARGETS)
SMALL = Schedule(blocks=(("m", 16), ("n", 16), ("k", 16)))
CASES = {  # batch, channels, outputs, height, width, kernel, stride, pad, dilation, groups
    "few channels": (1, 3, 17, 9, 11, 3, 2, 1, 1, 1),
    "one by one": (2, 16, 24, 7, 7, 1, 1, 0, 1, 1),
    "odd": (1, 33, 20, 8, 5, 3, 1, 1, 1, 1),
    "dilated": (1, 32, 48, 6, 6, 3, 1, 2, 2, 1),
    "depthwise": (1, 20, 20, 7, 9, 3, 1, 1, 1, 20),
    "depthwise, whole vectors": (1, 64, 64, 5, 14, 3, 1, 1, 1, 64),
    "depthwise, parts of rows": (1, 48, 48, 3, 72, 3, 2, 1, 1, 48),
    "depthwise, many taps": (1, 32, 32, 6, 7, 5, 1, 2, 1, 32),
    "two groups": (2, 16, 32, 5, 5, 3, 2, 1, 1, 2),
    "small groups": (1, 12, 24, 5, 5, 3, 1, 1, 1, 6),
    "stem": (1, 3, 8, 14, 14, 7, 2, 3, 1, 1),
    "stem of a padded image": (2, 3, 40, 19, 21, 7, 2, 0, 1, 1),
    "few channels, dilated": (1, 3, 20, 11, 13, 3, 1, 0, 2, 1),
}


@ALL
@pytest.mark.parametrize("schedule", [None, SMALL], ids=["rules", "small"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_conv(target: str, schedule: Schedule | None, channels_last: bool, case: str) -> None:
    n, c, o, h, w, k, s, p, d, g = CASES[case]
    m = Model()
    x = m.input(n, c, h, w)
    y = m.b.emit(
        "conv",
        x,
        m.weight(o, c // g, k, k),
        strides=(s, s),
        padding=((p, p), (p, p)),
        dilation=(d, d),
        groups=g,
    )
    y = m.b.map("max", m.b.map("add", y, m.weight(o, 1, 1)), 0.0)
    m.output(m.b.map("add", y, m.input(*y.shape)))
    nhwc = (0, 2, 3, 1)
    layouts = dict.fromkeys((x, m.graph.outputs[0], m.graph.inputs[1]), nhwc)
    partition = one_region(m.graph, "conv", layouts if channels_last else {})
    check(partition, m.feeds, TARGETS[target], schedule)


@ALL
@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks_with_prologue(target: str, rank: int) -> None:
    m = Model(dtypes.f16)
    x = m.b.emit("exp", m.input(2, 5, *(6, 7, 8)[:rank]))
    m.output(
        m.b.emit(
            "conv",
            x,
            m.weight(7, 5, *(3,) * rank),
            strides=(1,) * rank,
            padding=((1, 1),) * rank,
            dilation=(1,) * rank,
            groups=1,
        )
    )
    check(one_region(m.graph, "conv"), m.feeds, TARGETS[target])


@ALL
def test_weights_that_are_not_constant(target: str) -> None:
    m = Model()
    m.output(
        m.b.emit(
            "conv",
            m.input(1, 8, 5, 5),
            m.input(9, 8, 3, 3),
            strides=(1, 1),
            padding=((0, 0), (0, 0)),
            dilation=(1, 1),
            groups=1,
        )
    )
    check(one_region(m.graph, "conv"), m.feeds, TARGETS[target])


@pytest.mark.parametrize(
    ("channels", "taps", "columns"), [(128, 9, 48), (512, 9, 32), (512, 1, 48), (4096, 9, 48)]
)
def test_two_panels_of_weights_fit_l2(channels: int, taps: int, columns: int) -> None:
    """Where that is possible: else the tile of least work."""
    target = cpu_target("sapphirerapids", "", units=2, vector_bits=512, l2_bytes=2 << 20)
    schedule = conv_schedule(target, image(49, 480, channels, taps, 32))
    assert schedule.block("n") == columns


@pytest.mark.parametrize("ways", [4, 8, 12])
@pytest.mark.parametrize("arch", ["sapphirerapids", "znver4"])
@pytest.mark.parametrize("lines", [1, 16, 31, 32, 48, 63, 64, 65, 96, 128, 1024])
def test_rows_of_a_register_tile_stay_in_l1(arch: str, ways: int, lines: int) -> None:
    """Whatever the distance of two rows, in lines: no set has to hold more of them than it can, and
    rows are as many as without that where their sets differ."""
    target = cpu_target(arch, "", units=2, vector_bits=512, l1_bytes=ways << 12)
    rows = register_tiles(target, image(196, 512, 64, 1, 32, pitch=64 * lines))[0][0]
    sets = [row * lines % 64 for row in range(rows)]
    assert max(map(sets.count, sets)) <= ways
    if lines % 2:
        assert rows == register_tiles(target, image(196, 512, 64, 1, 32))[0][0]


@pytest.mark.parametrize(("channels", "stride", "far"), [(1024, 1, 8), (512, 2, 8), (1040, 1, 14)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_pixels_that_share_a_set(channels: int, stride: int, far: int, channels_last: bool) -> None:
    """Pixels 4 KiB apart are read by few rows at a time, others and pixels along memory are not."""
    target = cpu_target("x86-64-v4", "", units=2, vector_bits=512)
    m = Model()
    x = m.input(1, channels, 14 * stride, 14 * stride)
    m.output(
        m.b.emit(
            "conv", x, m.weight(512, channels, 1, 1), strides=(stride, stride),
            padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1,
        )
    )  # fmt: skip
    layouts = dict.fromkeys((x, m.graph.outputs[0]), (0, 2, 3, 1)) if channels_last else {}
    partition = one_region(m.graph, "conv", layouts)
    (program,) = emit(partition.regions[0], partition, target)
    rows = program.kernel.schedule.block("m")
    assert rows <= far if channels_last else rows == 14
