"""What a depthwise convolution executes. That results are right is for the emitters' tests."""

from __future__ import annotations

import pytest

from fuser.backend.cpu import lower_to_llvm
from fuser.base.target import cpu_target
from fuser.tilegen.emit import emit
from fuser.tilegen.rules.cpu.conv import direct_schedule
from tests.interpreted import one_region
from tests.tilegen_emit.graphs import Model

TARGET = cpu_target("x86-64-v4", "+avx512f,+avx512vl", 2, 512, l2_bytes=1 << 20)
NARROW = cpu_target("x86-64-v3", "+avx2,+fma", 2, 256, l2_bytes=1 << 20)


def kernel_text(m: Model, kind: str) -> str:
    nhwc = (0, 2, 3, 1)
    values = (*m.graph.inputs, *m.graph.outputs)
    layouts = {value: nhwc for value in values if value.type.rank == 4}
    partition = one_region(m.graph, kind, layouts)  # type: ignore[arg-type]
    (program,) = emit(partition.regions[0], partition, TARGET)
    return lower_to_llvm(program.kernel, TARGET)


def test_products_are_rounded_with_their_sum_and_vectors_share_addresses() -> None:
    m = Model()
    options = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 64}
    m.output(m.b.emit("conv", m.input(1, 64, 14, 14), m.weight(64, 1, 3, 3), **options))
    text = kernel_text(m, "conv")
    vectors = 2
    assert text.count("= fmul ") == vectors
    assert text.count("call <16 x float> @llvm.fma.v16f32") == 8 * vectors
    assert "= fadd " not in text
    # the middle tap lies within the image
    assert sum(" = select " in line and "@zeros" in line for line in text.splitlines()) == 8


def test_only_sums_of_products_are_contracted() -> None:
    """x * y + z is two operations of the model, and two roundings."""
    m = Model()
    x, y, z = (m.input(4, 64) for _ in range(3))
    m.output(m.b.map("add", m.b.map("mul", x, y), z))
    assert "fma" not in kernel_text(m, "map")


@pytest.mark.parametrize(
    ("channels", "row", "products", "wanted"),
    [
        (64, 14, 9, (14, 32)),  # a row, two vectors
        (48, 112, 9, (56, 16)),  # half a row, a vector
        (96, 113, 9, (32, 32)),  # no parts of equal size
        (40, 14, 9, (14, 40)),  # no whole vectors
        (64, 14, 25, (14, 64)),  # more weights than registers
    ],
)
def test_block(channels: int, row: int, products: int, wanted: tuple[int, int]) -> None:
    schedule = direct_schedule(TARGET, row * row, channels, row, products)
    assert (schedule.block("m"), schedule.block("n")) == wanted


def test_block_without_registers_for_weights() -> None:
    assert direct_schedule(NARROW, 196, 64, 14, 9).block("n") == 64
