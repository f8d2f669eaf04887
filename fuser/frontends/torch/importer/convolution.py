"""ATen's convolutions and their gradients.

The gradient of what a convolution reads is a transposed convolution: one of the gradient with zeros
between its elements and the window turned round. The gradient of the weights is a matmul for each
place in the window, summed over all images and pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.registry import aten
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.ir import TensorType, Value
from fuser.graph.sizes import same

FEW_CHANNELS = 256
"""Channels at all places of the window together up to which one matmul reads them side by side."""

Ends = Sequence[tuple[int, int]]
"""Padding before and after, one pair an axis of the image; what is negative is cut off."""


def spread(values: Any, rank: int) -> list[int]:
    """One number for every axis of the image, or for each its own."""
    given = list(values) if isinstance(values, list | tuple) else [values]
    return given * rank if len(given) == 1 else given


@aten("convolution", "_convolution")
def convolution(
    b: Builder, x: Value, weight: Value, bias: Value | None, strides: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, *_: Any,
) -> Value:  # fmt: skip
    rank = weight.type.rank - 2
    batched = x.type.rank == weight.type.rank
    x = x if batched else b.unsqueeze(x, [0])
    steps, pads, spacing = (spread(v, rank) for v in (strides, padding, dilation))
    if not transposed and same(x.shape[1], 0):
        # PyTorch's result has no channels either, whatever the weight says.
        reach = [s * (n - 1) + 1 for s, n in zip(spacing, weight.shape[2:], strict=True)]
        places = [
            (size + 2 * pad - k) // step + 1
            for size, pad, k, step in zip(x.shape[2:], pads, reach, steps, strict=True)
        ]
        outer = (x.shape[0], 0) if batched else (0,)
        return b.full(0, TensorType(x.dtype, (*outer, *places)))
    if transposed:
        extra = spread(output_padding, rank)
        result = _transposed(b, x, weight, steps, pads, spacing, extra, groups)
    else:
        result = _plain(b, x, weight, steps, [(p, p) for p in pads], spacing, groups)
    if bias is not None:
        result = b.map("add", result, b.broadcast(bias, result.type.shape, (1,)))
    return result if batched else b.squeeze(result, [0])


def _plain(
    b: Builder, x: Value, weight: Value, steps: Sequence[int], ends: Ends, spacing: Sequence[int],
    groups: int,
) -> Value:  # fmt: skip
    x = extend(b, x, [(min(low, 0), min(high, 0)) for low, high in ends])
    return b.emit(
        "conv", x, weight, strides=tuple(steps), dilation=tuple(spacing), groups=groups,
        padding=tuple((max(low, 0), max(high, 0)) for low, high in ends),
    )  # fmt: skip


def _transposed(
    b: Builder, x: Value, weight: Value, steps: Sequence[int], pads: Sequence[int],
    spacing: Sequence[int], extra: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """weight: [channels of x, channels of the result / groups, window...]."""
    window = weight.shape[2:]
    reach = [(k - 1) * d for k, d in zip(window, spacing, strict=True)]
    ends = [(r - p, r - p + e) for r, p, e in zip(reach, pads, extra, strict=True)]
    one = [1] * len(window)
    turned = _turn(b, weight, groups)
    if not any(reach):  # nothing is multiplied by zeros
        small = _plain(b, x, turned, one, [(0, 0)] * len(window), one, groups)
        return extend(b, stretch(b, small, steps), ends)
    return _plain(b, stretch(b, x, steps), turned, one, ends, spacing, groups)


def extend(b: Builder, x: Value, ends: Ends, value: float = 0) -> Value:
    """An image padded, or cut, along its axes."""
    if not any(map(any, ends)):
        return x
    return b.pad(x, [0, 0, *(low for low, _ in ends)], [0, 0, *(high for _, high in ends)], value)


def stretch(b: Builder, x: Value, steps: Sequence[int]) -> Value:
    """Zeros between neighbours, step - 1 of them: what a strided convolution skips over."""
    for axis, step in enumerate(steps, 2):
        if step > 1:
            shape = x.shape
            high = [0] * (x.type.rank + 1)
            high[axis + 1] = step - 1
            wide = b.pad(b.unsqueeze(x, [axis + 1]), [0] * len(high), high)
            flat = b.reshape(wide, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))
            x = b.slice_axis(flat, axis, 0, shape[axis] * step - (step - 1))
    return x


def _turn(b: Builder, weight: Value, groups: int) -> Value:
    """[C, M/groups, window...] as the kernel [M, C/groups, reversed window...]."""
    channels, made, *window = weight.shape
    rank = len(window)
    flipped = b.slice(
        weight, [0, 0, *(k - 1 for k in window)], [channels, made, *(-1 for _ in window)],
        [1, 1, *(-1 for _ in window)],
    )  # fmt: skip
    apart = b.reshape(flipped, (groups, channels // groups, made, *window))
    swapped = b.transpose(apart, (0, 2, 1, *range(3, 3 + rank)))
    return b.reshape(swapped, (groups * made, channels // groups, *window))


@aten("convolution_backward")
def convolution_backward(
    b: Builder, grad: Value, x: Value, weight: Value, bias: Any, strides: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """The gradients of x, weight and bias, those that are wanted. Raises UnsupportedError for an x
    without a batch."""
    window = weight.shape[2:]
    rank = len(window)
    if x.type.rank != rank + 2:
        raise UnsupportedError("the gradient of a convolution without a batch")
    if any(same(size, 0) for size in grad.shape):  # sums of nothing, whatever the weight says
        shapes = (x.shape, weight.shape, tuple(bias or ()))
        zeros = [b.full(0, TensorType(grad.dtype, shape)) for shape in shapes]
        return tuple(zero if want else None for zero, want in zip(zeros, wanted, strict=True))
    steps, pads, spacing = (spread(v, rank) for v in (strides, padding, dilation))
    found: list[Value | None] = [None, None, None]
    if wanted[0] and transposed:
        image = _plain(b, grad, weight, steps, [(p, p) for p in pads], spacing, groups)
        found[0] = b.slice(image, [0] * (rank + 2), x.shape)  # the output was padded
    elif wanted[0]:
        read = [
            (count - 1) * step - 2 * pad + gap * (width - 1) + 1
            for count, step, pad, gap, width in zip(
                grad.shape[2:], steps, pads, spacing, window, strict=True
            )
        ]
        extra = [n - m for n, m in zip(x.shape[2:], read, strict=True)]
        found[0] = _transposed(b, grad, weight, steps, pads, spacing, extra, groups)
    if wanted[1]:
        small, large = (x, grad) if transposed else (grad, x)
        parts = windows(b, large, small.shape[2:], window, steps, pads, spacing)
        found[1] = b.reshape(_of_weights(b, small, parts, groups), weight.shape)
    if wanted[2]:
        axes = [axis for axis in range(rank + 2) if axis != 1]
        found[2] = b.cast(b.reduce("reduce_sum", compose.stash(b, grad), axes), grad.dtype)
    return tuple(found)


def windows(
    b: Builder, x: Value, counts: Sequence[int], window: Sequence[int], steps: Sequence[int],
    pads: Sequence[int], spacing: Sequence[int], fill: float = 0,
) -> list[Value]:  # fmt: skip
    """For each place of the window, row-major, the pixels that lie there in the windows of an
    image, of which there are `counts`."""
    ends = [
        (pad, (count - 1) * step + (width - 1) * gap + 1 - n - pad)
        for n, count, step, pad, gap, width in zip(
            x.shape[2:], counts, steps, pads, spacing, window, strict=True
        )
    ]
    wide = extend(b, x, ends, fill)
    found = []
    for place in product(*map(range, window)):
        starts = [at * gap for at, gap in zip(place, spacing, strict=True)]
        limits = [
            start + (count - 1) * step + 1
            for start, count, step in zip(starts, counts, steps, strict=True)
        ]
        found.append(b.slice(wide, [0, 0, *starts], [*x.shape[:2], *limits], [1, 1, *steps]))
    return found


def _of_weights(b: Builder, small: Value, parts: Sequence[Value], groups: int) -> Value:
    """[channels of small, channels of a part / groups, parts]: sums of products over images and
    pixels. Matmuls of all pixels, but where a group is a single channel on either side."""
    batch, made, *sizes = small.shape
    channels = parts[0].shape[1] // groups
    axes = [axis for axis in range(small.type.rank) if axis != 1]
    if groups == made and channels == 1:
        left = compose.stash(b, small)
        found = [
            b.reduce("reduce_sum", b.map("mul", left, compose.stash(b, part)), axes)
            for part in parts
        ]
        return b.cast(b.concat([b.reshape(x, (made, 1, 1)) for x in found], 2), small.dtype)
    if groups > 1:
        left = b.reshape(small, (batch, groups, made // groups, *sizes))
        axes = [0, *range(3, left.type.rank)]
        right = [b.reshape(part, (batch, groups, channels, *sizes)) for part in parts]
        found = [b.dot(left, part, (axes, axes), ((1,), (1,))) for part in right]
    elif len(parts) > 1 and channels * len(parts) <= FEW_CHANNELS:
        matrix = b.dot(small, b.concat(parts, 1), (axes, axes))
        return b.transpose(b.reshape(matrix, (made, len(parts), channels)), (0, 2, 1))
    else:
        found = [b.dot(small, part, (axes, axes)) for part in parts]
    return b.concat([b.reshape(x, (made, channels, 1)) for x in found], 2)
