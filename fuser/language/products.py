"""dot: products of tiles, in the precision that was asked for."""

from __future__ import annotations

from typing import Any

from fuser.dtypes import f32
from fuser.language import pieces, shapes
from fuser.language.arithmetic import as_tensor, cast
from fuser.language.emitter import Emitter
from fuser.language.tensors import Tensor
from fuser.language.types import ElementType, float16, float32, float64, int32

CODES = {"fp8e4nv": "f8e4m3fn", "fp8e5": "f8e5m2"}


def dot(
    e: Emitter,
    input: Any,
    other: Any,
    acc: Any = None,
    input_precision: str | None = None,
    allow_tf32: bool | None = None,
    max_num_imprecise_acc: int | None = None,
    out_dtype: ElementType = float32,
) -> Tensor:
    """acc + input @ other of tiles [M, K] and [K, N], or [B, M, K] and [B, K, N].

    input_precision of float32: "tf32" (the default) may round operands to 11 bits, "ieee" and
    "tf32x3" keep them.
    """
    a, b = as_tensor(e, input), as_tensor(e, other)
    if len(a.shape) != len(b.shape) or len(a.shape) < 2:
        e.fail(f"dot of {a.type} and {b.type}", "both must have 2 axes or more, as many")
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        e.fail(
            f"dot of {shapes.show(a.shape)} and {shapes.show(b.shape)}",
            "the last axis of the first must be as long as the one before the last of the second",
        )
    a, b = _operands(e, a, b)
    wide = float64 if a.dtype.is_fp64() else float32 if a.dtype.is_floating() else int32
    result = wide if wide is not float32 else out_dtype
    total = None if acc is None else as_tensor(e, acc)
    if total is not None:
        result = total.dtype
    if len(a.shape) > 3:
        left, right, acc = (
            None if item is None else shapes.reshape(e, item, (-1, *item.shape[-2:]))
            for item in (a, b, total)
        )
        assert left is not None and right is not None
        joined = _batched(e, left, right, acc, input_precision, allow_tf32, result)
        return shapes.reshape(e, joined, (*a.shape[:-2], *joined.shape[-2:]))
    if len(a.shape) == 3:
        return _batched(e, a, b, total, input_precision, allow_tf32, result)
    precision = _precision(e, a.dtype, input_precision, allow_tf32)
    shape = (a.shape[0], b.shape[1])
    if total is None:
        total = e.constant(0, wide, shape)
    if total.shape != shape:
        e.fail(f"acc is {total.type}, the product has {shapes.show(shape)}")
    start = e.value_of(cast(e, total, wide))
    x, y = e.value_of(a), e.value_of(b)
    made = e.builder.dot(x, y, start, precision, CODES.get(a.dtype.name, ""))
    return cast(e, e.tensor(made, wide), result)


def _operands(e: Emitter, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one type that tiles of are multiplied in: codes of 8-bit floats where the target
    multiplies them, else float16, which holds them exactly."""
    for x in (a, b):
        if x.dtype.is_bool() or (x.dtype.is_int() and x.dtype.bits != 8):
            e.fail(f"dot of {x.type}", "of integers, those of 8 bits are multiplied")
    if a.dtype.is_fp8() and b.dtype.is_fp8():
        native = bool(e.options.get("fp8_products")) and a.dtype.name in CODES
        return (
            (a, b) if native and a.dtype == b.dtype else (cast(e, a, float16), cast(e, b, float16))
        )
    if a.dtype != b.dtype:
        e.fail(f"dot of {a.dtype} and {b.dtype}", "cast one: both must have one type")
    return a, b


def _precision(e: Emitter, dtype: ElementType, asked: str | None, allow_tf32: bool | None) -> str:
    if asked is not None and asked.lower() not in ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"):
        e.fail(f"input_precision {asked!r}", "it is tf32, tf32x3, bf16x3, bf16x6 or ieee")
    rounded = asked.lower() == "tf32" if asked is not None else allow_tf32 is not False
    return "tf32" if rounded and dtype.ir is f32 else "exact"


def _batched(
    e: Emitter, a: Tensor, b: Tensor, acc: Tensor | None, precision: str | None,
    allow_tf32: bool | None, result: ElementType,
) -> Tensor:  # fmt: skip
    """A dot of each item of the first axis: of one half of them, and of the other."""
    count = a.shape[0]

    def part(x: Tensor, y: Tensor, start: Tensor | None) -> Tensor:
        return dot(e, x, y, start, precision, allow_tf32, out_dtype=result)

    if count == 1:
        x, y = (shapes.reshape(e, item, item.shape[1:]) for item in (a, b))
        start = None if acc is None else shapes.reshape(e, acc, acc.shape[1:])
        return shapes.expand_dims(e, part(x, y, start), [0])
    given = (a, b) if acc is None else (a, b, acc)
    if count % 2:
        items = []
        for number in range(count):
            own = [_item(e, item, number) for item in given]
            items.append(part(own[0], own[1], own[2] if acc is not None else None))
        stacked = pieces.stack_last(e, items)
        return shapes.permute(e, stacked, (2, 0, 1))
    halves = [_halves(e, x) for x in given]
    left, right = (
        part(halves[0][n], halves[1][n], None if acc is None else halves[2][n]) for n in range(2)
    )
    joined = pieces.join(e, left, right)  # [count / 2, M, N, 2]
    return shapes.reshape(e, shapes.permute(e, joined, (3, 0, 1, 2)), (count, *left.shape[1:]))


def _halves(e: Emitter, x: Tensor) -> tuple[Tensor, Tensor]:
    """The first half of the items of the first axis, and the second."""
    count, *rest = x.shape
    pairs = shapes.reshape(e, x, (2, count // 2, *rest))
    return pieces.split(e, shapes.permute(e, pairs, (1, 2, 3, 0)))


def _item(e: Emitter, x: Tensor, number: int) -> Tensor:
    """x[number]."""
    order = [*range(1, len(x.shape)), 0]
    return pieces.select_last(e, shapes.permute(e, x, order), number)
