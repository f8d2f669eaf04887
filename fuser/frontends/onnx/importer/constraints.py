"""What the ONNX specification asks of attributes and operands, beyond what the checker of the onnx
package looks at: one table, `CONSTRAINTS`, that the reader applies before an importer runs.

A rule is made by a function here and looks at one thing of a node: the range of a number, the
entries of a list, a rank, how two shapes fit. It says nothing where a dim is symbolic or an operand
is not known. Source: the operator pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from fuser import dtypes
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.registry import OnnxNode
from fuser.graph.builder import Builder
from fuser.graph.ir import Value

Rule: TypeAlias = "Callable[[Builder, OnnxNode], None]"


def check_constraints(b: Builder, node: OnnxNode) -> None:
    """Raise InvalidModelError, naming the node, unless what is known of its attributes and operands
    is within the specification."""
    if node.domain:
        return
    for rule in CONSTRAINTS.get(node.op_type, ()):
        rule(b, node)


def _refuse(node: OnnxNode, what: str) -> None:
    raise InvalidModelError(what, where=node.where)


# attributes ---------------------------------------------------------------------------------------


def one_of(name: str, *allowed: str) -> Rule:
    """A string attribute is one of these; an empty one says nothing."""

    def rule(b: Builder, node: OnnxNode) -> None:
        given = node.attr(name, "")
        if given and given not in allowed:
            _refuse(node, f"{name} is {given!r}, not one of {', '.join(allowed)}")

    return rule


def number(name: str, low: float = -math.inf, high: float = math.inf) -> Rule:
    """A number, or each of a list, is finite and within [low, high]."""

    def rule(b: Builder, node: OnnxNode) -> None:
        given = node.attr(name, None)
        if given is not None:
            _check_range(node, name, given if isinstance(given, list) else [given], low, high)

    return rule


def _check_range(
    node: OnnxNode, name: str, numbers: Iterable[Any], low: float, high: float
) -> None:
    for item in numbers:
        if not low <= item <= high or not math.isfinite(item):
            if high == math.inf:
                bound = "finite" if low == -math.inf else f"at least {low}"
            else:
                bound = f"within {low} and {high}"
            _refuse(node, f"{name} has {item}, which is not {bound}")


def above(name: str, low: float = 0) -> Rule:
    """A float attribute is finite and more than low."""

    def rule(b: Builder, node: OnnxNode) -> None:
        given = node.attr(name, None)
        if given is not None and not (low < given < math.inf):
            _refuse(node, f"{name} is {given}, not more than {low}")

    return rule


def entries(name: str, times: int = 1, plus: int = -2) -> Rule:
    """A list attribute has `times` entries for each spatial axis of operand 0."""

    def rule(b: Builder, node: OnnxNode) -> None:
        given, wanted = node.attr(name, None), times * (node.x.type.rank + plus)
        if given and len(given) != wanted:  # exporters write an empty list for none
            _refuse(node, f"{name} has {len(given)} entries, not {wanted}")

    return rule


def distinct(name: str, operand: int | None = None, beyond: bool = False) -> Rule:
    """Axes, of an attribute or an operand, are within the rank of operand 0 and none comes twice.
    beyond: they are axes of the result, which has one more for each."""

    def rule(b: Builder, node: OnnxNode) -> None:
        axes = node.attr(name, None)
        if operand is not None and node.optional(operand) is not None:
            axes = _known(b, node, operand)
        if axes is None:
            return
        rank = node.x.type.rank + (len(axes) if beyond else 0)
        if len({node.axis(int(axis), rank) for axis in axes}) != len(axes):
            _refuse(node, f"{name} {list(map(int, axes))} name an axis twice")

    return rule


def results(name: str) -> Rule:
    """An attribute is the number of the node's results."""

    def rule(b: Builder, node: OnnxNode) -> None:
        given = node.attr(name, None)
        if given is not None and given != len(node.outputs):
            _refuse(node, f"{name} is {given}, the node has {len(node.outputs)} outputs")

    return rule


# operands -----------------------------------------------------------------------------------------


def _known(b: Builder, node: OnnxNode, index: int) -> list[Any] | None:
    """The elements of an operand, None if data decides them."""
    value = node.optional(index)
    array = None if value is None else b.known(value)
    return None if array is None else array.reshape(-1).tolist()


def _plain(items: Iterable[Any]) -> list[Any]:
    """Those that are numbers, not symbolic dims."""
    return [item for item in items if isinstance(item, int | float)]


def operand(index: int, name: str, low: float = -math.inf, high: float = math.inf) -> Rule:
    """Each element of an operand that is known is within [low, high]."""

    def rule(b: Builder, node: OnnxNode) -> None:
        _check_range(node, name, _plain(_known(b, node, index) or ()), low, high)

    return rule


def positive(index: int, name: str) -> Rule:
    """Each element of an operand that is known is finite and more than 0."""

    def rule(b: Builder, node: OnnxNode) -> None:
        for item in _plain(_known(b, node, index) or ()):
            if not 0 < item < math.inf:
                _refuse(node, f"{name} has {item}, which is not more than 0")

    return rule


def single(index: int, name: str) -> Rule:
    """An operand has one element."""

    def rule(b: Builder, node: OnnxNode) -> None:
        value = node.optional(index)
        if value is not None and any(dim != 1 for dim in _sizes(value)):
            _refuse(node, f"{name} is {value.type}, not one number")

    return rule


def count(index: int, name: str, times: int = 1, plus: int = 0, axes: str = "axes") -> Rule:
    """An operand has `times` elements for each axis of operand 0, or each of those that the
    attribute `axes` lists."""

    def rule(b: Builder, node: OnnxNode) -> None:
        value, given = node.optional(index), node.attr(axes, None)
        if value is None or value.type.rank != 1:
            return
        wanted = times * ((node.x.type.rank if given is None else len(given)) + plus)
        found = value.type.shape[0]
        if isinstance(found, int) and found not in (0, wanted):
            _refuse(node, f"{name} has {found} numbers, not {wanted}")

    return rule


# shapes -------------------------------------------------------------------------------------------


def _sizes(value: Value) -> list[int]:
    """The dims that are numbers."""
    return [dim for dim in value.type.shape if isinstance(dim, int)]


def _dim(value: Value | None, axis: int) -> int | None:
    """A dim that is there and is a number."""
    if value is None or not -value.type.rank <= axis < value.type.rank:
        return None
    dim = value.type.shape[axis]
    return dim if isinstance(dim, int) else None


def rank(index: int, low: int, high: int | None = None) -> Rule:
    """An operand has from low to high axes (None: or more)."""

    def rule(b: Builder, node: OnnxNode) -> None:
        value = node.optional(index)
        if value is None:
            return
        if value.type.rank < low or (high is not None and value.type.rank > high):
            wanted = str(low) if high == low else f"{low} or more"
            if high not in (None, low):
                wanted = f"{low} to {high}"
            _refuse(node, f"operand {index} is {value.type}, which does not have {wanted} axes")

    return rule


def same_rank(index: int, other: int = 0) -> Rule:
    """Two operands have as many axes."""

    def rule(b: Builder, node: OnnxNode) -> None:
        one, two = node.optional(index), node.optional(other)
        if one is not None and two is not None and one.type.rank != two.type.rank:
            _refuse(node, f"operands {index} and {other} differ in rank: {one.type}, {two.type}")

    return rule


def vector(index: int, axis: int = 1, of: int = 0, times: int = 1) -> Rule:
    """An operand is a vector with an element for each along an axis of another operand."""

    def rule(b: Builder, node: OnnxNode) -> None:
        value, size = node.optional(index), _dim(node.optional(of), axis)
        if value is None or size is None:
            return
        if value.type.rank != 1 or _dim(value, 0) not in (None, times * size):
            _refuse(node, f"operand {index} is {value.type}, not a vector of {times * size}")

    return rule


def dim(index: int, axis: int, *sizes: int) -> Rule:
    """An axis of an operand has one of these sizes."""

    def rule(b: Builder, node: OnnxNode) -> None:
        value = node.optional(index)
        found = _dim(value, axis)
        if value is not None and found is not None and found not in sizes:
            wanted = " or ".join(map(str, sizes))
            _refuse(node, f"axis {axis} of operand {index}, {value.type}, is not {wanted}")

    return rule


def same_dim(index: int, axis: int, other: int, other_axis: int) -> Rule:
    """Axes of two operands have one size."""

    def rule(b: Builder, node: OnnxNode) -> None:
        one, two = node.optional(index), node.optional(other)
        sizes = _dim(one, axis), _dim(two, other_axis)
        if one is not None and two is not None and None not in sizes and sizes[0] != sizes[1]:
            _refuse(
                node,
                f"axis {axis} of {one.type} and axis {other_axis} of {two.type} differ in size",
            )

    return rule


def shaped(index: int, like: int = 0) -> Rule:
    """An operand has the shape of another."""

    def rule(b: Builder, node: OnnxNode) -> None:
        one, two = node.optional(index), node.optional(like)
        if one is None or two is None:
            return
        if not _may_agree(one.type.shape, two.type.shape):
            _refuse(node, f"operand {index} is {one.type}, operand {like} {two.type}")

    return rule


def _may_agree(one: Sequence[Any], two: Sequence[Any]) -> bool:
    """Whether two shapes are the same, as far as their dims are numbers."""
    return len(one) == len(two) and all(
        p == q for p, q in zip(one, two, strict=True) if isinstance(p, int) and isinstance(q, int)
    )


def onto(index: int, other: int = 0) -> Rule:
    """An operand stretches to the shape of another, and not the other way round."""

    def rule(b: Builder, node: OnnxNode) -> None:
        one, two = node.optional(index), node.optional(other)
        if one is not None and two is not None:
            _check_onto(node, index, one, two.type.shape)

    return rule


def _check_onto(node: OnnxNode, index: int, value: Value, shape: Sequence[Any]) -> None:
    own = value.type.shape
    fits = len(own) <= len(shape) and all(
        p == 1 or not (isinstance(p, int) and isinstance(q, int)) or p == q
        for p, q in zip(own[::-1], shape[::-1], strict=False)
    )
    if not fits:
        shown = ", ".join(map(str, shape))
        _refuse(node, f"operand {index}, {value.type}, does not stretch to [{shown}]")


def divides(name: str, index: int = 0, axis: int = 1, default: int = 1) -> Rule:
    """An attribute is 1 or more and divides an axis of an operand."""

    def rule(b: Builder, node: OnnxNode) -> None:
        given, size = node.attr(name, default), _dim(node.optional(index), axis)
        if given < 1:
            _refuse(node, f"{name} is {given}")
        if size is not None and size % given:
            _refuse(node, f"{name} is {given}, which does not divide the {size} of axis {axis}")

    return rule


# rules of one operator ----------------------------------------------------------------------------


def _conv(b: Builder, node: OnnxNode) -> None:
    """The channels of the weight are those of a group, and groups share the results evenly."""
    x, w = node.operand(0), node.operand(3 if node.op_type == "QLinearConv" else 1)
    groups = node.attr("group", 1)
    channels, made, own = _dim(x, 1), _dim(w, 0), _dim(w, 1)
    if x.type.rank != w.type.rank:
        _refuse(node, f"the input is {x.type}, the weight {w.type}")
    if node.op_type == "ConvTranspose":
        if channels is not None and made is not None and channels != made:
            _refuse(node, f"the input {x.type} and the weight {w.type} differ in channels")
        return
    if channels is not None and own is not None and own * groups != channels:
        _refuse(node, f"{groups} groups of the weight {w.type} do not read {channels} channels")
    if made is not None and made % groups:
        _refuse(node, f"{groups} groups do not divide the {made} results of the weight {w.type}")


def _kernel(b: Builder, node: OnnxNode) -> None:
    """kernel_shape, where it is given, is that of the weight."""
    w = node.operand(3 if node.op_type == "QLinearConv" else 1)
    given = node.attr("kernel_shape", None)
    if given and any(
        isinstance(size, int) and size != wanted
        for size, wanted in zip(w.type.shape[2:], given, strict=False)
    ):
        _refuse(node, f"kernel_shape is {given}, the weight {w.type}")


def _quantised(b: Builder, node: OnnxNode) -> None:
    """Scales are one number, one for each along an axis, or one for each block of it."""
    x, scale, zero = node.operand(0), node.operand(1), node.optional(2)
    block = node.attr("block_size", 0)
    if zero is not None and not _may_agree(_trimmed(zero), _trimmed(scale)):
        _refuse(node, f"the zero point is {zero.type}, the scale {scale.type}")
    if scale.type.rank == 0 or (scale.type.shape == (1,) and not block):
        return
    axis = node.axis(node.attr("axis", 1), x.type.rank)
    size = _dim(x, axis)
    if not block and scale.type.rank == 1:
        if size is not None and _dim(scale, 0) not in (None, size):
            _refuse(node, f"the scale is {scale.type}, the axis has {size}")
        return
    if scale.type.rank != x.type.rank:
        _refuse(node, f"the scale {scale.type} does not fit {x.type}")
    for i in range(x.type.rank):
        own, wanted = _dim(scale, i), _dim(x, i)
        if wanted is None or own is None or (i == axis and not block):
            continue
        if i == axis:
            wanted = -(-wanted // block)
        if own != wanted:
            _refuse(node, f"axis {i} of the scale {scale.type} is not {wanted}")


def _trimmed(value: Value) -> Sequence[Any]:
    """A shape, where one element is a scalar."""
    return () if value.type.shape == (1,) else value.type.shape


def _split(b: Builder, node: OnnxNode) -> None:
    """The parts are as many as results, none is negative, and together they are the axis."""
    sizes: list[Any] | None = node.attr("split", None)
    if node.optional(1) is not None:
        sizes = _known(b, node, 1)
        if "num_outputs" in node.attrs:
            _refuse(node, "split and num_outputs are two ways to say one thing")
    size = _dim(node.x, node.axis(node.attr("axis", 0), node.x.type.rank))
    if sizes is None:
        parts = len(node.outputs)
        own = node.optional(1) is None and size is not None
        if own and node.opset < 18 and size is not None and size % max(parts, 1):
            _refuse(node, f"{size} elements do not make {parts} equal parts")
        return
    numbers = _plain(sizes)
    if len(sizes) != len(node.outputs):
        _refuse(node, f"there are {len(sizes)} parts, and {len(node.outputs)} outputs")
    if any(item < 0 for item in numbers):
        _refuse(node, f"the parts {numbers} have a negative size")
    if len(numbers) == len(sizes) and size is not None and sum(numbers) != size:
        _refuse(node, f"the parts {numbers} are not the {size} elements of the axis")


def _top_k(b: Builder, node: OnnxNode) -> None:
    """No more elements are wanted than the axis has."""
    given = node.attr("k", None)
    wanted = [given] if given is not None else _known(b, node, 1) or []
    size = _dim(node.x, node.axis(node.attr("axis", -1), node.x.type.rank))
    for item in _plain(wanted):
        if item < 0 or (size is not None and item > size):
            _refuse(node, f"k is {item}, the axis has {size}")


def _square(b: Builder, node: OnnxNode) -> None:
    rows, columns = _dim(node.x, -2), _dim(node.x, -1)
    if None not in (rows, columns) and rows != columns:
        _refuse(node, f"{node.x.type} is not square")


def _block(b: Builder, node: OnnxNode) -> None:
    """blocksize divides what becomes blocks."""
    block = node.required("blocksize")
    if block < 1:
        _refuse(node, f"blocksize is {block}")
    deep = node.op_type == "DepthToSpace"
    for axis in (1,) if deep else (2, 3):
        size, by = _dim(node.x, axis), block * block if deep else block
        if size is not None and size % by:
            _refuse(node, f"blocks of {block} do not divide axis {axis} of {node.x.type}")


def _dft(b: Builder, node: OnnxNode) -> None:
    """The axis is not the last, which holds real and imaginary parts."""
    given = _known(b, node, 2) if node.opset >= 20 else [node.attr("axis", 1)]
    for item in _plain(given or ()):
        if node.axis(int(item), node.x.type.rank) == node.x.type.rank - 1:
            _refuse(node, f"axis {item} holds the real and imaginary parts")


def _stft(b: Builder, node: OnnxNode) -> None:
    """A frame lies within the signal, and the window is one frame."""
    signal, window = node.operand(0), node.optional(2)
    if node.optional(3) is not None:
        found = _plain(_known(b, node, 3) or ())
    else:
        own = _dim(window, 0)
        found = [] if own is None else [own]
    size = _dim(signal, 1)
    for length in found:
        if size is not None and length > size:
            _refuse(node, f"a frame has {length} elements, the signal {size}")
        if _dim(window, 0) not in (None, length):
            _refuse(node, f"a frame has {length} elements, the window {_dim(window, 0)}")


def _mod(b: Builder, node: OnnxNode) -> None:
    """Opset 28 gave floats a remainder with the sign of the divisor."""
    if node.opset < 28 and node.x.dtype.is_float and not node.attr("fmod", 0):
        _refuse(node, f"fmod is 0 for {node.x.type}")


def _gemm(b: Builder, node: OnnxNode) -> None:
    """C stretches to the product."""
    lhs, rhs, bias = node.operand(0), node.operand(1), node.optional(2)
    if bias is not None:
        rows = lhs.type.shape[1 if node.attr("transA", 0) else 0]
        columns = rhs.type.shape[0 if node.attr("transB", 0) else 1]
        _check_onto(node, 2, bias, (rows, columns))


def _resize(b: Builder, node: OnnxNode) -> None:
    """Scales or sizes, for each axis; regions where they are needed."""
    given = [
        value
        for value in (node.optional(2), node.optional(3))
        if value is not None and _dim(value, 0) != 0
    ]
    if node.opset >= 11 and len(given) == 2:
        _refuse(node, "both scales and sizes are given")
    if node.attr("keep_aspect_ratio_policy", "stretch") != "stretch" and not _sizes(node.x):
        return
    for axis in node.attr("axes", None) or range(node.x.type.rank):
        if _dim(node.x, axis) == 0 and node.optional(3) is not None and len(given):
            _refuse(node, f"axis {axis} of {node.x.type} has nothing to resize")


def _scales(b: Builder, node: OnnxNode) -> None:
    scales = node.attr("scales", None) or _known(b, node, 1) or ()
    _check_range(node, "scales", _plain(scales), 1, math.inf)
    if len(scales) not in (0, node.x.type.rank):
        _refuse(node, f"there are {len(scales)} scales for {node.x.type}")


def _sequence(b: Builder, node: OnnxNode) -> None:
    """Time and batch are the first two axes; a length is within its row."""
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    if {time, batch} != {0, 1}:
        _refuse(node, f"time_axis is {time}, batch_axis {batch}: they are 0 and 1")
    lengths, size = _plain(_known(b, node, 1) or ()), _dim(node.x, time)
    if size is not None and any(not 0 <= length <= size for length in lengths):
        _refuse(node, f"the lengths {lengths} are not all within 0 and {size}")
    if _dim(node.optional(1), 0) not in (None, _dim(node.x, batch) or _dim(node.optional(1), 0)):
        _refuse(node, f"{node.operand(1).type} are not the lengths of {node.x.type}")


def _scatter(b: Builder, node: OnnxNode) -> None:
    """Updates have the shape that the indices and the data say."""
    data, index, updates = (node.operand(i) for i in range(3))
    depth = _dim(index, -1)
    if depth is None:
        return
    if depth > data.type.rank:
        _refuse(node, f"indices {index.type} do not fit {data.type}")
    wanted = (*index.type.shape[:-1], *data.type.shape[depth:])
    if not _may_agree(updates.type.shape, wanted):
        _refuse(node, f"updates {updates.type} are not [{', '.join(map(str, wanted))}]")


def _elements(b: Builder, node: OnnxNode) -> None:
    """Indices reach over no more than the data, along other axes than the one indexed."""
    data, index = node.operand(0), node.operand(1)
    axis = node.axis(node.attr("axis", 0), data.type.rank)
    if data.type.rank != index.type.rank:
        _refuse(node, f"indices {index.type} and data {data.type} differ in rank")
    for i in range(data.type.rank):
        size, own = _dim(data, i), _dim(index, i)
        if i != axis and size is not None and own is not None and own > size:
            _refuse(node, f"axis {i} of the indices {index.type} is longer than in {data.type}")


def _recurrent(b: Builder, node: OnnxNode) -> None:
    """Weights, biases and states have the shapes that the page of the operator lists."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[node.op_type]
    ways = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    first = bool(node.attr("layout", 0))
    x, recurrence = node.operand(0), node.operand(2)
    hidden = node.attr("hidden_size", None) or _dim(recurrence, -1)
    batch, steps, size = _dim(x, 0 if first else 1), _dim(x, 1 if first else 0), _dim(x, 2)
    state = (batch, ways, hidden) if first else (ways, batch, hidden)
    if hidden is None:
        return
    if hidden < 1:
        _refuse(node, f"hidden_size is {hidden}")
    wanted: dict[int, tuple[int | None, ...]] = {
        1: (ways, gates * hidden, size),
        2: (ways, gates * hidden, hidden),
        3: (ways, 2 * gates * hidden),
        4: (batch,),
        5: state,
        6: state,
        7: (ways, 3 * hidden),
    }
    for index, sizes in wanted.items():
        value = node.optional(index)
        if value is None:
            continue
        if not _may_agree(value.type.shape, sizes):
            shown = ", ".join("?" if size is None else str(size) for size in sizes)
            _refuse(node, f"operand {index} is {value.type}, not [{shown}]")
    lengths = _plain(_known(b, node, 4) or ())
    if steps is not None and any(not 0 <= length <= steps for length in lengths):
        _refuse(node, f"the lengths {lengths} are not all within 0 and {steps}")
    functions = node.attr("activations", None) or ()
    if len(functions) not in (0, ways * {"RNN": 1, "GRU": 2, "LSTM": 3}[node.op_type]):
        _refuse(node, f"there are {len(functions)} activations")


def _heads(b: Builder, node: OnnxNode) -> None:
    """Numbers of heads divide each other and what is split into them; of three axes both are
    given, of four axes the shapes tell them."""
    q, k = node.operand(0), node.operand(1)
    groups, heads = node.attr("kv_num_heads", None), node.attr("q_num_heads", None)
    if q.type.rank == 3:
        for name, given, value in (("q_num_heads", heads, q), ("kv_num_heads", groups, k)):
            if given is None:
                _refuse(node, f"the attribute {name} is missing")
            size = _dim(value, 2)
            if given < 1 or (size is not None and size % given):
                _refuse(node, f"{name} is {given}, which does not divide the {size} of axis 2")
    else:
        heads, groups = _dim(q, 1), _dim(k, 1)
    if heads is not None and groups is not None and (groups < 1 or heads % groups):
        _refuse(node, f"{heads} query heads do not share {groups} key heads")


def _deformed(b: Builder, node: OnnxNode) -> None:
    """There are two offsets, and one mask, for each tap of each group of offsets."""
    w, offset, mask = node.operand(1), node.operand(2), node.optional(4)
    sizes = [_dim(w, axis) for axis in range(2, w.type.rank)]
    taps = math.prod(size for size in sizes if size is not None)
    spans = node.attr("offset_group", 1)
    if None in sizes:
        return
    for index, value, times in ((2, offset, len(sizes)), (4, mask, 1)):
        wanted = spans * taps * times
        if value is not None and _dim(value, 1) not in (None, wanted):
            _refuse(node, f"axis 1 of operand {index}, {value.type}, is not {wanted}")


def _loop(b: Builder, node: OnnxNode) -> None:
    """The body has the inputs and outputs that the node feeds and reads."""
    body, carried = node.required("body"), max(len(node.inputs) - 2, 0)
    if len(body.input) != 2 + carried:
        _refuse(node, f"the body has {len(body.input)} inputs, not {2 + carried}")
    if len(body.output) < 1 + carried or len(node.outputs) > len(body.output) - 1:
        _refuse(
            node, f"the body has {len(body.output)} outputs, which do not fit the node's"
            f" {carried} carried values and {len(node.outputs)} outputs",
        )  # fmt: skip


def _scan(b: Builder, node: OnnxNode) -> None:
    """The body has an input for each state and each scanned input; lists have as many entries."""
    body, scanned = node.required("body"), node.required("num_scan_inputs")
    operands = len(node.inputs) - (node.opset < 9)
    if not 1 <= scanned <= operands:
        _refuse(node, f"num_scan_inputs is {scanned}, the node has {operands} inputs")
    states = operands - scanned
    if len(body.input) != operands:
        _refuse(node, f"the body has {len(body.input)} inputs, the node {operands}")
    if len(body.output) < states or len(node.outputs) > len(body.output):
        _refuse(node, f"the body has {len(body.output)} outputs, the node {len(node.outputs)}")
    made = len(body.output) - states
    for name, wanted in (
        ("scan_input_axes", scanned), ("scan_input_directions", scanned), ("directions", scanned),
        ("scan_output_axes", made), ("scan_output_directions", made),
    ):  # fmt: skip
        given = node.attr(name, None)
        if given and len(given) != wanted:
            _refuse(node, f"{name} has {len(given)} entries, not {wanted}")
        if given and "directions" in name and not set(given) <= {0, 1}:
            _refuse(node, f"{name} is {given}, not of 0 and 1")


def _reshape(b: Builder, node: OnnxNode) -> None:
    """Sizes are -1, at most once, 0 or more."""
    wanted = node.attr("shape", None) if node.optional(1) is None else _known(b, node, 1)
    numbers = _plain(wanted or ())
    if any(number < -1 for number in numbers) or numbers.count(-1) > 1:
        _refuse(node, f"the shape is {numbers}")
    if node.attr("allowzero", 0) and 0 in numbers and -1 in numbers:
        _refuse(node, f"the shape {numbers} has a 0 beside the size to be found")


def _one_element(b: Builder, node: OnnxNode) -> None:
    value = node.attr("value", None)
    if value is not None and value.size != 1:
        _refuse(node, f"value has {value.size} elements, not one")


def _nonzero(b: Builder, node: OnnxNode) -> None:
    """An axis that is searched has an element."""
    size = _dim(node.x, node.axis(node.attr("axis", 0), node.x.type.rank))
    if size == 0:
        _refuse(node, f"{node.x.type} has no element along the axis")


def _mel(b: Builder, node: OnnxNode) -> None:
    """The bands lie between the edges."""
    low, high = _plain(_known(b, node, 3) or ()), _plain(_known(b, node, 4) or ())
    if low and high and not 0 <= low[0] < high[0] < math.inf:
        _refuse(node, f"the bands lie between {low[0]} and {high[0]}")


def _axis_operand(b: Builder, node: OnnxNode) -> None:
    for item in _plain(_known(b, node, 1) or ()):
        node.axis(int(item), node.x.type.rank)


def _matrix_zeros(b: Builder, node: OnnxNode) -> None:
    """Zero points are one number, one a row of the left operand, one a column of the right."""
    for index, of, axis in ((2, 0, -2), (3, 1, -1)):
        zero, value = node.optional(index), node.operand(of)
        if zero is None or zero.type.rank != 1:
            continue
        own, size = _dim(zero, 0), _dim(value, axis)
        if own is not None and size is not None and own not in (1, size):
            _refuse(node, f"operand {index} is {zero.type}, operand {of} {value.type}")


def _boolean(index: int, name: str) -> Rule:
    def rule(b: Builder, node: OnnxNode) -> None:
        value = node.optional(index)
        if value is not None and value.dtype is not dtypes.bool_:
            _refuse(node, f"{name} is {value.type}, not bool")

    return rule


# the table ----------------------------------------------------------------------------------------

_AUTO_PAD = one_of("auto_pad", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
_WINDOW: tuple[Rule, ...] = (
    rank(0, 3),
    _AUTO_PAD,
    number("kernel_shape", 1), entries("kernel_shape"),
    number("strides", 1), entries("strides"),
    number("dilations", 1), entries("dilations"),
    number("pads", 0), entries("pads", 2),
)  # fmt: skip
_POOL = (*_WINDOW, number("ceil_mode", 0, 1), number("storage_order", 0, 1))
_CONV = (*_WINDOW, divides("group"), _conv, _kernel)
_SIZE = (single(0, "size"), operand(0, "size", 0))
_REDUCE: tuple[Rule, ...] = (distinct("axes", 1),)
_CHANNELS = (rank(0, 2), vector(1), vector(2))
_RECURRENT: tuple[Rule, ...] = (
    rank(0, 3, 3), rank(1, 3, 3), rank(2, 3, 3),
    one_of("direction", "forward", "reverse", "bidirectional"),
    number("layout", 0, 1), number("clip", 0), _recurrent,
)  # fmt: skip
_QUANTISE: tuple[Rule, ...] = (number("block_size", 0), _quantised)
_LOSS = (rank(0, 2), one_of("reduction", "none", "mean", "sum"), vector(2))
_REDUCTION = one_of("reduction", "none", "add", "mul", "max", "min")
_RANDOM: tuple[Rule, ...] = (number("shape", 0), number("scale"), number("mean"))

CONSTRAINTS: dict[str, tuple[Rule, ...]] = {
    "AffineGrid": (rank(0, 3, 3), rank(1, 1, 1), operand(1, "size", 0)),
    "ArgMax": (_nonzero,),
    "ArgMin": (_nonzero,),
    "Attention": (
        rank(0, 3, 4), same_rank(1), same_rank(2), _heads, number("softcap", 0), number("scale"),
        number("qk_matmul_output_mode", 0, 3), same_dim(0, 0, 1, 0), same_dim(0, 0, 2, 0),
        rank(4, 4, 4), rank(5, 4, 4), same_dim(1, -2, 2, -2), vector(6, 0),
    ),
    "AveragePool": _POOL,
    "BatchNormalization": (rank(0, 2), vector(1), vector(2), vector(3), vector(4)),
    "BitShift": (one_of("direction", "LEFT", "RIGHT"),),
    "BlackmanWindow": _SIZE,
    "Cast": (one_of("round_mode", "up", "down", "nearest"),),
    "CastLike": (one_of("round_mode", "up", "down", "nearest"),),
    "CenterCropPad": (distinct("axes"), rank(1, 1, 1), operand(1, "shape", 0), count(1, "shape")),
    "Clip": (single(1, "min"), single(2, "max")),
    "Col2Im": (
        rank(0, 3, 3), rank(1, 1, 1), rank(2, 1, 1), operand(1, "image_shape", 1),
        operand(2, "block_shape", 1), number("strides", 1), number("dilations", 1),
        number("pads", 0), same_dim(1, 0, 2, 0),
    ),
    "ConstantOfShape": (rank(0, 1, 1), operand(0, "the shape", 0), _one_element),
    "Conv": (*_CONV, vector(2, 0, of=1)),
    "ConvInteger": _CONV,
    "ConvTranspose": (
        *_CONV, number("output_padding", 0), entries("output_padding"), number("output_shape", 1),
    ),
    "CumProd": (single(1, "axis"), _axis_operand),
    "CumSum": (single(1, "axis"), _axis_operand),
    "DFT": (
        rank(0, 2), dim(0, -1, 1, 2), single(1, "dft_length"), operand(1, "dft_length", 1),
        single(2, "axis"), _dft,
    ),
    "DeformConv": (
        *_CONV, same_rank(1), same_rank(2), same_rank(4), vector(3, 0, of=1),
        divides("offset_group"), _deformed, same_dim(0, 0, 2, 0), same_dim(0, 0, 4, 0),
    ),
    "DepthToSpace": (rank(0, 4, 4), one_of("mode", "DCR", "CRD"), _block),
    "DequantizeLinear": _QUANTISE,
    "Det": (rank(0, 2), _square),
    "Dropout": (single(1, "ratio"), operand(1, "ratio", 0, 1), number("ratio", 0, 1)),
    "Expand": (rank(1, 1, 1),),
    "EyeLike": (rank(0, 2, 2),),
    "GRU": _RECURRENT,
    "GatherElements": (_elements,),
    "GatherND": (rank(0, 1), rank(1, 1), number("batch_dims", 0)),
    "Gelu": (one_of("approximate", "none", "tanh"),),
    "Gemm": (rank(0, 2, 2), rank(1, 2, 2), _gemm),
    "GlobalAveragePool": (rank(0, 3),),
    "GlobalLpPool": (rank(0, 3), number("p", 1)),
    "GlobalMaxPool": (rank(0, 3),),
    "GridSample": (
        rank(0, 3), same_rank(1), same_dim(0, 0, 1, 0),
        one_of("mode", "linear", "nearest", "cubic", "bilinear", "bicubic"),
        one_of("padding_mode", "zeros", "border", "reflection"),
    ),
    "GroupNormalization": (rank(0, 3), divides("num_groups"), rank(1, 1, 1), rank(2, 1, 1)),
    "HammingWindow": _SIZE,
    "HannWindow": _SIZE,
    "InstanceNormalization": (rank(0, 3), vector(1), vector(2)),
    "LRN": (rank(0, 3), number("size", 1)),
    "LSTM": _RECURRENT,
    "LayerNormalization": (onto(1), onto(2), number("epsilon", 0)),
    "Loop": (single(0, "the trip count"), single(1, "the condition"),
             _boolean(1, "the condition"), _loop),
    "LpNormalization": (number("p", 1, 2),),
    "LpPool": (*_POOL, number("p", 1)),
    "MatMulInteger": (_matrix_zeros,),
    "MaxPool": _POOL,
    "MaxRoiPool": (
        rank(0, 4, 4), rank(1, 2, 2), dim(1, 1, 5), number("pooled_shape", 1),
        above("spatial_scale"),
    ),
    "MaxUnpool": (*_WINDOW, shaped(1), operand(2, "output_shape", 0), count(2, "output_shape")),
    "MeanVarianceNormalization": (distinct("axes"),),
    "MelWeightMatrix": (
        *(single(i, "an operand") for i in range(5)), operand(0, "num_mel_bins", 1),
        operand(1, "dft_length", 1), operand(2, "sample_rate", 1), _mel,
    ),
    "Mod": (_mod,),
    "Multinomial": (rank(0, 2, 2), number("sample_size", 1)),
    "NegativeLogLikelihoodLoss": _LOSS,
    "NonMaxSuppression": (
        rank(0, 3, 3), dim(0, 2, 4), rank(1, 3, 3), number("center_point_box", 0, 1),
        operand(3, "iou_threshold", 0, 1), same_dim(0, 0, 1, 0), same_dim(0, 1, 1, 2),
    ),
    "OneHot": (single(1, "depth"), positive(1, "depth"), rank(2, 1, 1), dim(2, 0, 2)),
    "PRelu": (onto(1),),
    "Pad": (one_of("mode", "constant", "reflect", "edge", "wrap"), rank(1, 1, 2),
            distinct("axes", 3), single(2, "the fill")),
    "QLinearConv": _CONV,
    "QuantizeLinear": _QUANTISE,
    "RMSNormalization": (onto(1), number("epsilon", 0)),
    "RNN": _RECURRENT,
    "RandomNormal": _RANDOM,
    "RandomNormalLike": _RANDOM,
    "RandomUniform": (number("shape", 0), number("low"), number("high")),
    "RandomUniformLike": (number("low"), number("high")),
    "Range": tuple(single(i, "a bound") for i in range(3)),
    "ReduceL1": _REDUCE, "ReduceL2": _REDUCE, "ReduceLogSum": _REDUCE,
    "ReduceLogSumExp": _REDUCE, "ReduceMax": _REDUCE, "ReduceMean": _REDUCE,
    "ReduceMin": _REDUCE, "ReduceProd": _REDUCE, "ReduceSum": _REDUCE,
    "ReduceSumSquare": _REDUCE,
    "Reshape": (rank(1, 1, 1), _reshape),
    "Resize": (
        one_of("mode", "nearest", "linear", "cubic"),
        one_of("coordinate_transformation_mode", "half_pixel", "half_pixel_symmetric",
               "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
               "tf_half_pixel_for_nn"),
        one_of("nearest_mode", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
        one_of("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller"),
        distinct("axes"), number("cubic_coeff_a"),
        _resize, positive(2, "scales"), count(2, "scales"), operand(3, "sizes", 0),
        count(3, "sizes"),
    ),
    "ReverseSequence": (rank(0, 2), rank(1, 1, 1), _sequence),
    "RoiAlign": (
        rank(0, 4, 4), rank(1, 2, 2), dim(1, 1, 4), rank(2, 1, 1), same_dim(1, 0, 2, 0),
        number("output_height", 1), number("output_width", 1), number("sampling_ratio", 0),
        above("spatial_scale"), one_of("mode", "avg", "max"),
        one_of("coordinate_transformation_mode", "half_pixel", "output_half_pixel"),
    ),
    "RotaryEmbedding": (
        rank(0, 3, 4), number("num_heads", 0), number("rotary_embedding_dim", 0),
        number("interleaved", 0, 1),
    ),
    "STFT": (
        rank(0, 2, 3), single(1, "frame_step"), operand(1, "frame_step", 1), rank(2, 1, 1),
        single(3, "frame_length"), operand(3, "frame_length", 1), _stft,
    ),
    "Scan": (_scan,),
    "Scatter": (_elements, shaped(2, 1)),
    "ScatterElements": (_REDUCTION, _elements, shaped(2, 1)),
    "ScatterND": (rank(0, 1), rank(1, 1), _REDUCTION, _scatter),
    "SoftmaxCrossEntropyLoss": _LOSS,
    "SpaceToDepth": (rank(0, 4, 4), one_of("mode", "DCR", "CRD"), _block),
    "Split": (number("split", 0), number("num_outputs", 1), results("num_outputs"), _split),
    "Squeeze": (distinct("axes", 1),),
    "TensorScatter": (one_of("mode", "linear", "circular"), same_rank(1)),
    "Tile": (rank(1, 1, 1), operand(1, "repeats", 0)),
    "TopK": (single(1, "k"), _top_k),
    "Trilu": (rank(0, 2), single(1, "k")),
    "Unique": (number("sorted", 0, 1),),
    "Unsqueeze": (distinct("axes", 1, beyond=True),),
    "Upsample": (one_of("mode", "nearest", "linear"), _scales),
}  # fmt: skip
"""Operator of the standard domain -> its rules."""
