"""Views of a tensor's bytes as another dtype, through PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.compared import compiled  # noqa: E402

pytestmark = pytest.mark.export

FLOATS = {2: [torch.float16, torch.bfloat16], 4: [torch.float32], 8: [torch.float64]}
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def patterns(width: int) -> Any:
    """Bits of every kind of number: both signs, zero, subnormals, ones, infinities, NaN. Sizes are
    multiples of 8 bytes."""
    kinds = {
        1: [0, 1, 127, 128, 255, 3, 200, 77],
        2: [0, 1, -1, 0x7C00, 0x7E01, -0x8000, 0x03FF, 0x0400, 0x3C00, 0x7F80, 0x7FC1, 0x1234,
            -0x4400, 0x0080, 0x7BFF, -0x0400],
        4: [0, 1, -1, 0x7F800000, 0x7FC00001, -0x80000000, 0x007FFFFF, 0x3F800000],
        8: [0, 1, -1, 0x7FF << 52, (0x7FF << 52) + (1 << 51) + 1, -(1 << 63), 0x3FF << 52, 1 << 40],
    }  # fmt: skip
    return torch.tensor(kinds[width], dtype=torch.int64).to(WORDS[width])


def bits(x: Any) -> Any:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("width", WORDS)
def test_every_pair_of_dtypes(width: int) -> None:
    """By their bits: NaN keeps its payload."""
    word = patterns(width)
    sources = [word, *(word.view(dtype) for dtype in FLOATS.get(width, []))]
    targets = [*WORDS.values(), *(dtype for listed in FLOATS.values() for dtype in listed)]

    def views(*given: Any) -> list[Any]:
        return [x.view(dtype) for x in given for dtype in targets]

    for found, wanted in zip(compiled(views, *sources), views(*sources), strict=True):
        assert found.dtype is wanted.dtype
        assert torch.equal(bits(found), bits(wanted))


def test_more_axes_and_computed_operands() -> None:
    def computed(x: Any) -> tuple[Any, ...]:
        y = x * 2
        return (
            y.view(torch.int32),
            y.view(torch.int16),
            y.view(torch.float64),
            (-y).view(torch.uint8),
        )

    for shape in ((3, 4), (2, 1, 2), (0, 2), (1, 6)):
        x = torch.arange(float(torch.Size(shape).numel())).reshape(shape) - 3
        for found, wanted in zip(compiled(computed, x), computed(x), strict=True):
            assert found.shape == wanted.shape
            assert torch.equal(bits(found), bits(wanted))


def test_floats_taken_apart_and_put_together() -> None:
    """The exponent of a float, read from its bits: what people use such views for."""

    def exponent(x: Any) -> tuple[Any, Any]:
        word = x.view(torch.int32)
        cleared = (word & ~(0xFF << 23)) | (127 << 23)
        return ((word >> 23) & 0xFF) - 127, cleared.view(torch.float32)

    x = torch.tensor([1.0, 3.0, -0.75, 1e20, -1e-20])
    for found, wanted in zip(compiled(exponent, x), exponent(x), strict=True):
        assert torch.equal(found, wanted)


def test_truth_values_as_bytes() -> None:
    x = torch.tensor([True, False, True])
    assert torch.equal(compiled(lambda x: x.view(torch.uint8), x), x.view(torch.uint8))
    assert torch.equal(
        compiled(lambda x: x.view(torch.bool), x.view(torch.uint8)), x.view(torch.bool)
    )
