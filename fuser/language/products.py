"""dot: products of tiles, in the precision that was asked for."""

from __future__ import annotations

from typing import Any

from fuser.dtypes import f32
from fuser.language import pieces, shapes
from fuser.language.arithmetic import arithmetic, as_tensor, cast
from fuser.language.emitter import Emitter
from fuser.language.tensors import Tensor
from fuser.language.types import ElementType, float32, float64, int32

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
    if len(a.shape) != len(b.shape) or len(a.shape) not in (2, 3):
        e.fail(f"dot of {a.type} and {b.type}", "both must have 2 axes, or both 3")
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        e.fail(
            f"dot of {shapes.show(a.shape)} and {shapes.show(b.shape)}",
            "the last axis of the first must be as long as the one before the last of the second",
        )
    if a.dtype != b.dtype:
        if not (a.dtype.is_fp8() and b.dtype.is_fp8()):
            e.fail(f"dot of {a.dtype} and {b.dtype}", "cast one: both must have one type")
        from fuser.language.types import float16

        a, b = cast(e, a, float16), cast(e, b, float16)
    wide = float64 if a.dtype.is_fp64() else float32 if a.dtype.is_floating() else int32
    result = wide if wide is not float32 else out_dtype
    total = None if acc is None else as_tensor(e, acc)
    if total is not None:
        result = total.dtype
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


def _precision(e: Emitter, dtype: ElementType, asked: str | None, allow_tf32: bool | None) -> str:
    if asked is not None and asked.lower() not in ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"):
        e.fail(f"input_precision {asked!r}", "it is tf32, tf32x3, bf16x3, bf16x6 or ieee")
    rounded = asked.lower() == "tf32" if asked is not None else allow_tf32 is not False
    return "tf32" if rounded and dtype.ir is f32 else "exact"


def _batched(
    e: Emitter, a: Tensor, b: Tensor, acc: Tensor | None, precision: str | None,
    allow_tf32: bool | None, result: ElementType,
) -> Tensor:  # fmt: skip
    """A dot of each item of the first axis; their results are joined again."""
    count = a.shape[0]
    found: Tensor | None = None
    for number in range(count):
        x, y = (_item(e, item, number) for item in (a, b))
        start = None if acc is None else _item(e, acc, number)
        part = dot(e, x, y, start, precision, allow_tf32, out_dtype=result)
        found = part if count == 1 else _placed(e, found, part, number, count)
    assert found is not None
    return shapes.expand_dims(e, found, [0]) if count == 1 else found


def _item(e: Emitter, x: Tensor, number: int) -> Tensor:
    """x[number]."""
    order = [*range(1, len(x.shape)), 0]
    return pieces.select_last(e, shapes.permute(e, x, order), number)


def _placed(e: Emitter, found: Tensor | None, part: Tensor, number: int, count: int) -> Tensor:
    """`found` with item `number` of its first axis replaced."""
    from fuser.language.arithmetic import compare, where
    from fuser.tilegen.index import axis

    shape = (count, *part.shape)
    wide = shapes.broadcast_to(e, shapes.expand_dims(e, part, [0]), shape)
    if found is None:
        return wide
    here = e.whole(axis(0, count), int32, shape)
    there = compare(e, "==", here, e.constant(number, int32, shape))
    return where(e, there, wide, found)  # type: ignore[no-any-return]


__all__ = ["arithmetic", "dot"]
