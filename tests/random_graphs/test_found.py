"""What random graphs found, each as the smallest graph that showed it, by every route."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from fuser import dtypes
from fuser.graph.ir import Graph, Value
from tests.interpreted import TARGETS
from tests.random_graphs.check import (
    Failure,
    Native,
    check,
    gpu_routes,
    interpreted,
    natives_on_gpu,
    routes_of,
)
from tests.random_graphs.draw import Drawing

Make = Callable[[Drawing], list[Value]]


def data(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def narrow_indices_of_a_long_axis(d: Drawing) -> list[Value]:
    """129 is no number of i8, so that negative indices could not be counted from the end in it."""
    x = d.feed(data(129, 2))
    return [d.emit("gather", x, d.feed(np.array([-1, 5, -100, 127], np.int8)), axis=0)]


def scatter_without_updates(d: Drawing) -> list[Value]:
    x, indices = d.feed(data(7, 5)), d.feed(np.zeros((3, 0), np.int64))
    updates = d.constant(np.zeros((3, 0, 5), np.float32))
    return [d.emit("scatter", x, indices, updates, axis=0, reduction="mul")]


def sorted_dims(d: Drawing) -> list[Value]:
    """What has two results is not folded, and its operand has to be a constant then."""
    sizes = d.emit("dims", values=(3, 1, 2), shape=(3,), dtype=dtypes.i64)
    values = d.emit("sort", sizes, axis=0, descending=True)
    assert values.node is not None
    return list(values.node.outputs)


def large_unsigned_constants(d: Drawing) -> list[Value]:
    """They are no ranges of int64."""
    x = d.constant(np.array([[1], [2**64 - 2], [6]], np.uint64))
    return [d.emit("lt", x, d.feed(np.array([[2], [2**64 - 1], [3]], np.uint64)))]


def multiples_of_two_to_the_63(d: Drawing) -> list[Value]:
    x = d.feed(np.array([1, 2, 2**63], np.uint64))
    return [d.emit("add", x, d.number(2**63, x)), d.emit("mul", x, d.number(2**63, x))]


def output_beside_a_product(d: Drawing) -> list[Value]:
    """A map joins the product's kernel with the map that reads both, and is an output as well."""
    x = d.feed(data(8))
    near = d.emit("reduce_window", x, fn="sum", window=(3,), strides=(1,), padding=((1, 1),),
                  dilation=(1,))  # fmt: skip
    product = d.emit("dot_general", near, d.constant(data(8, 8)), lhs_contract=(0,),
                     rhs_contract=(1,), lhs_batch=(), rhs_batch=())  # fmt: skip
    total = d.emit("add", near, d.emit("add", product, d.constant(data(8))))
    beside = d.emit("max", x, near)
    last = d.emit("argmax", d.emit("floor", total), axis=0, select_last=False)
    return [d.emit("ge", total, beside), last, beside]


def product_of_a_scalar(d: Drawing) -> list[Value]:
    """No axis is contracted, and an operand has none."""
    scalar, x = d.feed(np.asarray(np.float32(1.5))), d.feed(data(3, 5))
    axes: tuple[int, ...] = ()
    return [d.emit("dot_general", scalar, x, lhs_contract=axes, rhs_contract=axes, lhs_batch=axes,
                   rhs_batch=axes)]  # fmt: skip


def products_of_vectors(d: Drawing) -> list[Value]:
    x = d.feed(data(8))
    return [d.emit("dot_general", x, d.feed(data(8, 3)), lhs_contract=(0,), rhs_contract=(0,),
                   lhs_batch=(), rhs_batch=())]  # fmt: skip


def whole_sum_beside_another_shape(d: Drawing) -> list[Value]:
    """All of a space is one row, and what the sum is stretched over has another size."""
    total = d.emit("reduce_sum", d.emit("erf", d.feed(data(2, 3, 5))), axes=(0, 1, 2))
    other = d.emit("pad", d.feed(data(2, 4)), low=(1, 0), high=(0, 3), value=0.5)
    return [d.emit("mul", d.stretch(total, other.shape, ()), other)]


def product_of_broadcasts(d: Drawing) -> list[Value]:
    """Neither operand depends on what is summed, so that no load masks the rest of a block."""
    x = d.feed(np.asarray(np.float32(0.3)).astype(dtypes.bf16.numpy))
    wide = d.stretch(d.emit("mul", x, x), (3,), ())
    return [d.emit("dot_general", wide, wide, lhs_contract=(0,), rhs_contract=(0,), lhs_batch=(),
                   rhs_batch=()), wide]  # fmt: skip


def products_in_a_row(d: Drawing) -> list[Value]:
    """The second product is of one term, hence a map, and its column is the only one."""
    x, weights = d.feed(data(2, 17)), d.constant(data(17, 1))
    first = d.emit("dot_general", x, weights, lhs_contract=(1,), rhs_contract=(0,), lhs_batch=(),
                   rhs_batch=())  # fmt: skip
    square = d.emit("mul", first, first)
    number = d.constant(np.array([[-2.5]], np.float32))
    second = d.emit("dot_general", square, number, lhs_contract=(1,), rhs_contract=(1,),
                    lhs_batch=(), rhs_batch=())  # fmt: skip
    return [d.emit("max", d.emit("add", second, d.feed(data(2, 1))), square)]


def rows_turned(d: Drawing) -> list[Value]:
    """The sums of one tensor scale the rows of another, and the result is transposed."""
    x, y = d.feed(data(65, 2)), d.feed(data(65, 2) + 3)
    total = d.emit("reduce_sum", y, axes=(1,))
    scaled = d.emit("mul", x, d.stretch(total, (65, 2), (0,)))
    return [d.emit("transpose", scaled, perm=(1, 0))]


def square_rows_turned(d: Drawing) -> list[Value]:
    x, y = d.feed(data(9, 9)), d.feed(data(9, 9) + 3)
    total = d.emit("reduce_sum", y, axes=(1,))
    scaled = d.emit("mul", x, d.stretch(total, (9, 9), (0,)))
    return [d.emit("exp", d.emit("transpose", scaled, perm=(1, 0))), total]


def rows_of_a_turned_operand(d: Drawing) -> list[Value]:
    """The sums go along the columns of what they scale."""
    x, y = d.feed(data(5, 7)), d.feed(data(7, 5))
    total = d.emit("reduce_sum", y, axes=(1,))
    return [d.emit("mul", x, d.stretch(total, (5, 7), (1,)))]


def convolution_of_one_number(d: Drawing) -> list[Value]:
    """A constant that is one number throughout ends where its padding begins, too."""
    x = d.constant(np.full((2, 1, 6, 6), 7, np.float32))
    return [d.emit("conv", x, d.feed(data(2, 1, 3, 1)), strides=(2, 2), padding=((0, 0), (0, 1)),
                   dilation=(1, 1), groups=1)]  # fmt: skip


def convolution_of_a_turned_broadcast(d: Drawing) -> list[Value]:
    """Behind the transposition the last axes are no longer those with padding."""
    x = d.stretch(d.feed(np.asarray(np.float32(7))), (8, 6, 1, 16), ())
    turned = d.emit("transpose", x, perm=(0, 2, 3, 1))
    return [d.emit("conv", turned, d.feed(data(2, 1, 3, 1)), strides=(2, 2),
                   padding=((0, 0), (0, 1)), dilation=(1, 1), groups=1)]  # fmt: skip


def nothing_of_a_slice(d: Drawing) -> list[Value]:
    """A slice of no elements at the end of another, behind the end of what that one reads."""
    x = d.emit("slice", d.feed(data(100)), starts=(33,), limits=(100,), strides=(3,))
    return [x, d.emit("slice", x, starts=(23,), limits=(23,), strides=(2,))]


def bits_and_back(d: Drawing) -> list[Value]:
    x = d.feed(np.array([1.5, -0.25, 3e38, 1e-45], np.float32))
    bits = d.emit("float_bits", x, dtype=dtypes.i32)
    scalar = d.emit("bits_float", d.feed(np.asarray(0x3FF8000000000000)), dtype=dtypes.f64)
    return [bits, d.emit("bits_float", bits, dtype=dtypes.f32), scalar]


def softmax_of_columns_before_a_product(d: Drawing) -> list[Value]:
    """The rows of the softmax are columns of what it is of."""
    q, k = d.feed(data(9, 5, dtype=np.float16)), d.constant(data(33, 5, dtype=np.float16))
    x = d.emit("tanh", d.emit(
        "dot_general", q, k, lhs_contract=(1,), rhs_contract=(1,), lhs_batch=(), rhs_batch=(),
    ))  # fmt: skip
    most = d.emit("broadcast", d.emit("reduce_max", x, axes=(0,)), shape=(9, 33), axes=(1,))
    shares = d.emit("exp", d.emit("sub", x, most))
    total = d.emit("broadcast", d.emit("reduce_sum", shares, axes=(0,)), shape=(9, 33), axes=(1,))
    return [d.emit(
        "dot_general", d.emit("div", shares, total), d.constant(data(33, 9, dtype=np.float16)),
        lhs_contract=(0,), rhs_contract=(1,), lhs_batch=(1,), rhs_batch=(0,),
    )]  # fmt: skip


def values_of_each_head(d: Drawing) -> list[Value]:
    """Heads share their keys, which could make them one block of rows, but not their values."""
    q, k, v = d.feed(data(4, 17, 16)), d.feed(data(33, 16)), d.feed(data(4, 33, 16))
    scores = d.emit("dot_general", q, k, lhs_contract=(2,), rhs_contract=(1,), lhs_batch=(),
                    rhs_batch=())  # fmt: skip
    most = d.stretch(d.emit("reduce_max", scores, axes=(2,)), (4, 17, 33), (0, 1))
    shares = d.emit("exp", d.emit("sub", scores, most))
    total = d.stretch(d.emit("reduce_sum", shares, axes=(2,)), (4, 17, 33), (0, 1))
    return [d.emit("dot_general", d.emit("div", shares, total), v, lhs_contract=(2,),
                   rhs_contract=(1,), lhs_batch=(0,), rhs_batch=(0,))]  # fmt: skip


def gather_at_positions_made_of_what_is_read(d: Drawing) -> list[Value]:
    """The two regions that are joined have sizes of their own: 16 and 80."""
    x = d.emit("gather", d.feed(np.arange(32, dtype=np.int8)), d.feed(np.arange(16) - 5), axis=0)
    turned = d.emit("slice", x, starts=(15,), limits=(-1,), strides=(-1,))
    more = d.feed(np.arange(-16, 16, dtype=np.int8) // 2)
    low = d.emit("bitwise_and", turned, d.number(7, turned))
    places = d.emit("concat", more, more, low, axis=0)
    return [d.emit("gather", turned, places, axis=0)]


def gather_of_columns_by_a_row_of_them(d: Drawing) -> list[Value]:
    """Both join the region of the minimum, where the row is not at the place of what reads it."""
    places = np.array([[-3, 0, 3, -4, -4, -2, 1, 2], [-1, 3, 1, 0, 3, 2, -3, -4],
                       [0, 0, -2, -3, -2, 3, -1, -1]], np.int32)  # fmt: skip
    x = d.emit("gather", d.constant(np.array([0, 6, 7, 2])), d.feed(places), axis=0)
    row = d.emit("gather", x, d.constant(np.asarray(0)), axis=0)
    columns = d.emit("gather", x, row, axis=1)
    least = d.emit("min", columns, x)
    product = d.emit("dot_general", row, d.emit("mod", least, columns), lhs_contract=(0,),
                     rhs_contract=(1,), lhs_batch=(), rhs_batch=())  # fmt: skip
    return [product, d.emit("cumsum", d.emit("abs", least), axis=1, fn="sum", exclusive=False,
                            reverse=False)]  # fmt: skip


def integers_divided_by_zero(d: Drawing) -> list[Value]:
    x = d.feed(np.array([-7, 7, 0, -(2**31), 5], np.int32))
    return [d.emit("div", x, d.feed(np.array([0, 0, 0, -1, -2], np.int32)))]


def casts_of_negative_numbers(d: Drawing) -> list[Value]:
    """-1 is no number of an unsigned type: a constant wraps as a tensor does."""
    x = d.feed(np.array([1, 200], np.uint8))
    minus = d.emit("cast", d.constant(np.asarray(np.int8(-1))), dtype=dtypes.u8)
    wide = d.stretch(minus, x.shape, ())
    return [d.emit("lt", x, wide), d.emit("div", wide, x)]


def rows_chosen_and_turned(d: Drawing) -> list[Value]:
    """A gather joins the region of the argmin that chose its rows, and is stored transposed."""
    chosen = d.emit("argmin", d.feed(data(5, 100)), axis=1, select_last=False)
    rows = d.emit("gather", d.feed(data(100, 100)), d.emit("abs", chosen), axis=0)
    return [d.emit("transpose", rows, perm=(1, 0))]


def square_rows_chosen_and_turned(d: Drawing) -> list[Value]:
    x = d.feed(data(9, 9))
    chosen = d.emit("argmax", x, axis=1, select_last=False)
    rows = d.emit("gather", d.feed(data(9, 9)), chosen, axis=0)
    turned = d.emit("transpose", rows, perm=(1, 0))
    columns = d.emit("gather", d.feed(data(9, 9)), chosen, axis=1)
    return [d.emit("exp", turned), columns, d.emit("add", rows, x)]


def positions_that_a_narrow_float_does_not_hold(d: Drawing) -> list[Value]:
    """An iota is data: rounded where it is made, not where a result is stored."""
    results = []
    for dtype, size in ((dtypes.bf16, 640), (dtypes.f16, 2100)):
        x = d.emit("iota", shape=(size,), axis=0, dtype=dtype)
        results.append(d.emit("sub", x, d.feed(data(size, dtype=dtype.numpy))))
    return results


def positions_that_a_narrow_integer_does_not_hold(d: Drawing) -> list[Value]:
    """They wrap around, also where positions alone are compared."""
    results = []
    for dtype in (dtypes.i8, dtypes.u8, dtypes.i16, dtypes.u32):
        x = d.emit("iota", shape=(300,), axis=0, dtype=dtype)
        less = d.emit("sub", x, d.number(7, x))
        results.append(d.emit("lt", x, d.number(5, x)))
        results.append(d.emit("ge", less, d.stretch(d.number(3, x), x.shape, ())))
    wide = d.emit("iota", shape=(300,), axis=0, dtype=dtypes.i64)
    narrow = d.emit("cast", d.emit("cast", wide, dtype=dtypes.u8), dtype=dtypes.i64)
    return [*results, d.emit("eq", narrow, wide)]


def product_of_remainders(d: Drawing) -> list[Value]:
    """mod(0, 0) and 2 ** 0 are not what padding must add: it is masked behind the prologue."""
    x, y = (d.feed(np.arange(start, start + 51).reshape(3, 17) % 6) for start in (1, 3))
    row = d.feed(np.arange(17) - 4)
    axes = {"lhs_contract": (0,), "rhs_contract": (1,), "lhs_batch": (), "rhs_batch": ()}
    product = d.emit("dot_general", row, d.emit("mod", x, y), **axes)
    near = d.emit("dot_general", d.emit("add", row, d.number(3, row)),
                  d.emit("bitwise_not", x), **axes)  # fmt: skip
    return [d.emit("reduce_sum", product, axes=(0,)), near]


def outer_product_of_a_number(d: Drawing) -> list[Value]:
    """The transpositions in it turn nothing."""
    x = d.feed(np.arange(7, dtype=np.int32) - 3)
    total = d.emit("reduce_sum", d.feed(np.arange(7, dtype=np.int32)), axes=(0,))
    number = d.emit("reduce_prod", x, axes=(0,))
    none: tuple[int, ...] = ()
    return [total, d.emit("dot_general", x, number, lhs_contract=none, rhs_contract=none,
                          lhs_batch=none, rhs_batch=none)]  # fmt: skip


def integers_divided_by_zero_beside_others(d: Drawing) -> list[Value]:
    """A divisor that must not be zero made masks of stores go: what lies behind was overwritten."""
    x = d.feed(np.arange(645, dtype=np.uint32).reshape(129, 1, 5))
    wide = d.stretch(d.constant(np.arange(129, dtype=np.uint32) % 3), x.shape, (0,))
    results = [d.feed(data(1, 100, 5)), d.emit("mod", x, wide), d.emit("fmod", x, wide)]
    for dtype in (np.int64, np.int8):
        y = d.feed(np.arange(-50, 51).astype(dtype))
        z = d.feed((np.arange(101) % 5 - 2).astype(dtype))
        results += [d.emit(op, y, z) for op in ("div", "mod", "fmod")]
    return results


def powers_of_integers(d: Drawing) -> list[Value]:
    """Exponents of more than six bits: they wrap around as products do."""
    signed, steps = np.arange(-20, 20), np.arange(40, dtype=np.uint8)
    wide = d.emit("pow", d.feed(signed), d.feed(np.arange(40) * 3))
    return [wide, d.emit("pow", d.feed(steps), d.feed(steps * 5))]


def tanh_of_tiny_halves(d: Drawing) -> list[Value]:
    """As exact as the dtype near zero too."""
    sizes = np.geomspace(1e-7, 4, 300) * np.where(np.arange(300) % 2, -1, 1)
    return [d.emit("tanh", d.feed(sizes.astype(t.numpy))) for t in (dtypes.f16, dtypes.bf16)]


def attention_of_two_features(d: Drawing) -> list[Value]:
    """A tile register reads 32 features; in keys of 2 that is behind what belongs to them."""
    q, k, v = (d.feed(data(6, 17, 2, dtype=dtypes.bf16.numpy)) for _ in range(3))
    scores = d.emit("dot_general", q, k, lhs_contract=(2,), rhs_contract=(2,), lhs_batch=(0,),
                    rhs_batch=(0,))  # fmt: skip
    most = d.stretch(d.emit("reduce_max", scores, axes=(2,)), (6, 17, 17), (0, 1))
    shares = d.emit("exp", d.emit("sub", scores, most))
    total = d.stretch(d.emit("reduce_sum", shares, axes=(2,)), (6, 17, 17), (0, 1))
    return [d.emit("dot_general", d.emit("div", shares, total), v, lhs_contract=(2,),
                   rhs_contract=(1,), lhs_batch=(0,), rhs_batch=(0,))]  # fmt: skip


def odd_halves_turned(d: Drawing) -> list[Value]:
    """LLVM has no code for some shuffles of bfloat16, as of 9 elements to 16."""
    x = d.stretch(d.feed(data(1, 13, 9, 1, dtype=dtypes.bf16.numpy)), (1, 13, 9, 1, 2),
                  (0, 1, 2, 3))  # fmt: skip
    return [d.emit("transpose", x, perm=(3, 2, 4, 0, 1))]


def narrow_weights_scaled(d: Drawing) -> list[Value]:
    """A scale is not folded into weights that it would round, but 1/8 is."""
    x = d.feed(data(5, 32, dtype=dtypes.bf16.numpy))
    weight = d.constant(data(32, 32, dtype=dtypes.bf16.numpy))
    product = d.emit("dot_general", x, weight, lhs_contract=(1,), rhs_contract=(1,), lhs_batch=(),
                     rhs_batch=())  # fmt: skip
    scale = d.stretch(d.constant(data(32, dtype=dtypes.bf16.numpy)), (5, 32), (1,))
    return [d.emit("mul", product, scale)]


def constant_of_few_numbers_beside_a_constant(d: Drawing) -> list[Value]:
    """The right one could be bytes, but the left one has the few rows and becomes the panel."""
    numbers = np.random.default_rng(1).integers(-1, 2, (257, 257)).astype(np.float32)
    few = d.constant(numbers * np.float32(0.03))
    return [d.emit("dot_general", d.constant(data(3, 257)), few, lhs_contract=(1,),
                   rhs_contract=(0,), lhs_batch=(), rhs_batch=())]  # fmt: skip


def product_of_gathered_rows(d: Drawing) -> list[Value]:
    """No panel can be fetched early whose address is looked up."""
    x, y = d.feed(data(13, 8, 2, dtype=np.float64)), d.feed(data(2, 13, dtype=np.float64))
    rows = d.emit("gather", x, d.constant(np.arange(129, dtype=np.int32) % 8), axis=1)
    return [d.emit("dot_general", y, rows, lhs_contract=(0,), rhs_contract=(2,), lhs_batch=(1,),
                   rhs_batch=(0,))]  # fmt: skip


def parts_of_two_tensors_beside_their_rows(d: Drawing) -> list[Value]:
    """Two kernels of rows that become one: what was cut out of the first one's rows says nothing of
    the frame that the second one's are placed in."""

    def part(x: Value, at: int) -> Value:
        return d.emit("slice", x, starts=(at, 0), limits=(at + 1, 62), strides=(1, 1))

    x, y = (d.feed(data(2, 62)) for _ in range(2))
    one = d.emit("sub", part(x, 1), part(x, 0))
    total = d.emit("reshape", d.emit("reduce_sum", x, axes=(0,)), shape=(1, 62))
    other = d.emit("reshape", d.emit("mul", part(y, 1), part(y, 0)), shape=(62,))
    least = d.emit("reduce_max", y, axes=(0,))
    return [d.emit("mul", total, one), d.emit("min", least, other)]


def parts_of_a_turned_product(d: Drawing) -> list[Value]:
    """Slices of it meet with its rows' sums, beside a sum of all of it."""
    x, y = d.feed(data(5, 3, dtype=np.float16)), d.feed(data(3, 5, dtype=np.float16))
    product = d.emit("dot_general", x, y, lhs_contract=(1,), rhs_contract=(0,), lhs_batch=(),
                     rhs_batch=())  # fmt: skip
    turned = d.emit("transpose", product, perm=(1, 0))
    low, high = (
        d.emit("slice", turned, starts=(0, at), limits=(5, at + 4), strides=(1, 1)) for at in (0, 1)
    )
    parts = d.emit("mul", d.emit("neg", high), d.emit("abs", low))
    total = d.emit("reduce_sum", turned, axes=(1,))
    row = d.stretch(d.emit("reshape", total, shape=(5, 1)), (5, 4), (0, 1))
    return [d.emit("min", row, parts), d.emit("reduce_sum", turned, axes=(0, 1))]


def rows_of_turned_rows(d: Drawing) -> list[Value]:
    """Rows of a tensor meet rows of the same one turned, which are no rows of its kernel."""
    x = d.feed(data(2, 8, 8))
    total = d.emit("reduce_sum", x, axes=(1,))
    turned = d.emit("transpose", d.emit("sub", x, d.stretch(total, x.shape, (0, 2))),
                    perm=(0, 2, 1))  # fmt: skip
    squares = d.emit("reduce_sum", d.emit("mul", turned, turned), axes=(1,))
    return [d.emit("min", total, d.emit("sqrt", squares))]


def maxima_of_negated_integers(d: Drawing) -> list[Value]:
    """ptxas loses the sign of some operands of a chain of max."""
    x = d.feed(np.random.default_rng(0).integers(-8, 9, (33, 5, 4)).astype(np.int32))
    window = {"window": (3, 1, 3), "strides": (2, 1, 1), "dilation": (2, 1, 1)}
    y = d.emit("neg", x)
    return [d.emit("reduce_window", y, fn="max", padding=((1, 0), (0, 0), (0, 0)), **window)]


FOUND: tuple[Make, ...] = (
    maxima_of_negated_integers,
    narrow_indices_of_a_long_axis, scatter_without_updates, sorted_dims, large_unsigned_constants,
    multiples_of_two_to_the_63, output_beside_a_product, product_of_a_scalar, products_of_vectors,
    whole_sum_beside_another_shape, product_of_broadcasts, products_in_a_row,
    rows_turned, square_rows_turned, rows_of_a_turned_operand, convolution_of_one_number,
    convolution_of_a_turned_broadcast,
    nothing_of_a_slice, bits_and_back, integers_divided_by_zero, casts_of_negative_numbers,
    softmax_of_columns_before_a_product, values_of_each_head,
    gather_at_positions_made_of_what_is_read, gather_of_columns_by_a_row_of_them,
    rows_chosen_and_turned, square_rows_chosen_and_turned,
    positions_that_a_narrow_float_does_not_hold, positions_that_a_narrow_integer_does_not_hold,
    product_of_remainders, outer_product_of_a_number, integers_divided_by_zero_beside_others,
    powers_of_integers, tanh_of_tiny_halves, attention_of_two_features, odd_halves_turned,
    narrow_weights_scaled, constant_of_few_numbers_beside_a_constant, product_of_gathered_rows,
    parts_of_two_tensors_beside_their_rows, parts_of_a_turned_product, rows_of_turned_rows,
)  # fmt: skip


def drawn(make: Make) -> Drawing:
    d = Drawing(random.Random(0), Graph(make.__name__))
    d.graph.outputs = make(d)
    d.graph.output_names = [f"y{i}" for i in range(len(d.graph.outputs))]
    d.graph.verify()
    return d


def expect(failures: list[Failure]) -> None:
    assert not failures, "\n".join(f"{f.route}: {f.what}\n{f.trace}" for f in failures)


@pytest.mark.parametrize("make", FOUND, ids=lambda make: make.__name__)
def test_found(make: Make) -> None:
    routes = routes_of(Native(), 0)
    for target in TARGETS:
        for fusion in (True, False):
            name = f"interpreted {target} {fusion}"
            routes[name] = lambda d, t=target, f=fusion: interpreted(d, t, f, every_pass=True)
    expect(check(drawn(make), routes))


@pytest.fixture(scope="module")
def on_gpu() -> tuple[Native, Native]:
    return natives_on_gpu()


@pytest.mark.cuda
@pytest.mark.parametrize("make", FOUND, ids=lambda make: make.__name__)
def test_found_on_a_gpu(make: Make, on_gpu: tuple[Native, Native]) -> None:
    expect(check(drawn(make), gpu_routes(on_gpu, 0) | gpu_routes(on_gpu, 3)))
