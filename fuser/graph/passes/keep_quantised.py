"""Leave weights as the model stores them: codes of a few bits, with scales.

    %c = cast(%codes)                             # u8, f32
    %s = sub(%c, broadcast(%zero))                %w = dequantize(%codes, %scale, %zero)
    %m = mul(%s, broadcast(%scale))        =>     %y = dot_general(%x, %w)
    %w = transpose(reshape(%m))
    %y = dot_general(%x, %w)

Folding would make four to eight times the bytes of them, in memory and in every read of a kernel.
What the codes are is found from numbers, not from spellings: the weights are a product of one
static tensor that fits 4 or 8 bits and one that is the same over blocks, and what is kept gives
exactly the weights. Needs: dequantisation not folded yet. Small weights stay as they are.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from math import gcd

import numpy as np

from fuser.dtypes import BY_NAME, DType, f32
from fuser.errors import FuserError
from fuser.graph.builder import Builder
from fuser.graph.dims import DimExpr
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.primitive import Array
from fuser.graph.ops.quantised import bits_of
from fuser.graph.ops.registry import primitive
from fuser.graph.passes.known_codes import STORE, Codes, Kept, Store, fingerprint
from fuser.graph.passes.rewrite import rewrite

LEAST_ELEMENTS = 1 << 10
"""Elements below which weights are folded: nothing waits for so few."""

LEAST_SAVING = 1.5
"""Bytes of folded weights over those of codes and scales, from which it is worth decoding them."""

THREADS = 4
"""That look at weights at once: NumPy lets go of the interpreter meanwhile. Each has copies."""
AT_ONCE = 1 << 16
"""Numbers that are looked at together, which a cache holds."""

MOVES = frozenset(("reshape", "transpose", "broadcast", "slice"))

WHOLE = (("i4", -8, 7), ("u4", 0, 15), ("i8", -128, 127), ("u8", 0, 255))
FLOATS = ("f4e2m1", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
"""What codes may be, the best first."""


def keep_quantised(graph: Graph) -> Graph:
    """A graph in which contractions read large quantised weights through `dequantize`."""
    weight = _static_bytes(graph)
    candidates = dict.fromkeys(
        value for node in graph.nodes for value in _weights_of(node)
        if value in weight and value.node is not None and value.node.op != "constant"
        and value.type.size >= LEAST_ELEMENTS
    )  # fmt: skip
    if not candidates:
        return graph
    contexts = [copy_context() for _ in candidates]  # symbols mean something in one
    with ThreadPoolExecutor(THREADS) as pool:
        parts = pool.map(lambda c, value: c.run(_known, value, weight), contexts, candidates)
        found = dict(zip(candidates, parts, strict=True))
    if not any(found.values()):
        return graph
    made: dict[Value, Value] = {}

    def rule(b: Builder, node: Node, operands: tuple[Value, ...]) -> Value | None:
        kept = set(_weights_of(node))
        inputs = [
            _emit(b, value, found[value], made) if value in kept and found.get(value) else operand
            for value, operand in zip(node.inputs, operands, strict=True)
        ]
        return None if inputs == list(operands) else b.emit(node.op, *inputs, **node.attrs)

    return rewrite(graph, rule)


def _weights_of(node: Node) -> tuple[Value, ...]:
    """Operands of a contraction that may be weights. Groups have too few elements to wait for."""
    if node.op == "dot_general":
        return node.inputs
    return node.inputs[1:] if node.op == "conv" and node.attrs["groups"] == 1 else ()


def _emit(b: Builder, value: Value, parts: Codes | None, made: dict[Value, Value]) -> Value:
    assert parts is not None
    if value not in made:
        operands = [b.constant(array) for array in (parts.codes, *parts.factors)]
        made[value] = b.emit(
            "dequantize", *operands, numbers=parts.numbers, blocks=parts.blocks, dtype=value.dtype
        )
    return made[value]


def _static_bytes(graph: Graph) -> dict[Value, int]:
    """The bytes of the constants behind each value that depends on no input."""
    weight: dict[Value, int] = {}
    for node in graph.nodes:
        if node.op == "constant":
            array = node.attrs["value"]
            weight[node.output] = array.nbytes if array.size > 1 else 0
        elif node.op != "dims" and all(value in weight for value in node.inputs):
            shapes = (value.type.shape for value in node.outputs)
            if any(isinstance(dim, DimExpr) for shape in shapes for dim in shape):
                continue
            total = sum(weight[value] for value in set(node.inputs))
            weight.update(dict.fromkeys(node.outputs, total))
    return weight


def _known(value: Value, weight: dict[Value, int]) -> Codes | None:
    """`_parts`, unless these weights were looked at before."""
    store: Store | None = STORE.get()
    if store is None:
        return _parts(value, weight)
    key = fingerprint(value)
    if key not in store:
        found = _parts(value, weight)
        store[key] = Kept.of(found) if found else None
        return found
    kept = store[key]
    return kept.codes() if kept else None


def _parts(value: Value, weight: dict[Value, int]) -> Codes | None:
    """Codes, scales and zero points that give exactly a static value; None if there are none."""
    chain, node = _behind(value)
    if node is None or node.op != "mul" or value.dtype.bits > 32 or not value.dtype.is_float:
        return None
    scaled, scale = sorted(node.inputs, key=lambda operand: -weight[operand])
    known: dict[Value, Array] = {}
    try:
        factor = _moved(chain, _evaluate(scale, known))
        best = _centred(chain, scaled, factor, value.dtype, known)
        zero = best is not None and len(best.factors) > 1
        if best is None or _same_steps(chain, node, scaled, value.dtype, zero):
            return best
        weights = _evaluate(value, known)
    except FuserError:
        return None
    attrs = {"numbers": best.numbers, "blocks": best.blocks, "dtype": value.dtype}
    (again,) = primitive("dequantize").evaluate([best.codes, *best.factors], attrs)
    return best if np.array_equal(again, weights) else None


def _same_steps(chain: list[Node], product: Node, scaled: Value, dtype: DType, zero: bool) -> bool:
    """Whether weights are rounded as `dequantize` rounds them, in float32 and then once, so that
    nothing has to be compared: codes and factors are those that were multiplied. In 16 bits, too,
    a product is rounded once, and codes and their differences are exact. dtype: of the weights.
    zero: codes were taken with their zero point still to be subtracted."""
    inner, difference = _behind(scaled)
    steps = [product, difference] if zero and difference is not None else [product]
    values = [value for node in steps for value in (*node.inputs, node.output)]
    casts = [sum(node.op == "cast" for node in moves) for moves in (chain, inner)]
    if zero and casts[1]:
        return False
    if all(v.dtype == f32 for v in values):
        return casts[0] <= 1
    return not casts[0] and dtype.bits == 16 and all(v.dtype == dtype for v in values)


def _centred(
    chain: list[Node], scaled: Value, scale: Array, dtype: DType, known: dict[Value, Array]
) -> Codes | None:
    """The parts of fewest bytes: codes without a zero point, or those that one is taken off."""
    options = [_codes(_moved(chain, _evaluate(scaled, known)), scale, None)]
    inner, node = _behind(scaled)
    narrow = options[0] is not None and bits_of(options[0].numbers) == 4  # there is nothing less
    if node is not None and node.op == "sub" and not narrow:
        both = [_moved(chain, _moved(inner, _evaluate(operand, known))) for operand in node.inputs]
        options.append(_codes(both[0], scale, both[1]))
    fitting = [parts for parts in options if parts is not None]
    best = min(fitting, key=_bytes, default=None)
    if best is None or best.codes.size * dtype.bytes < LEAST_SAVING * _bytes(best):
        return None
    return best


def _bytes(parts: Codes) -> int:
    codes = parts.codes.size * bits_of(parts.numbers) // 8
    return codes + sum(array.nbytes for array in parts.factors)


def _behind(value: Value) -> tuple[list[Node], Node | None]:
    """What moves a value, or changes the width of its floats, and the node before that."""
    chain: list[Node] = []
    node = value.node
    while node is not None and (
        node.op in MOVES
        or (node.op == "cast" and value.dtype.is_float and node.inputs[0].dtype.is_float)
    ):
        chain.append(node)
        value = node.inputs[0]
        node = value.node
    return chain, node


def _moved(chain: list[Node], array: Array) -> Array:
    """An array where the chain takes it, the last node first."""
    for node in reversed(chain):
        if node.op != "cast":
            (array,) = primitive(node.op).evaluate([array], node.attrs)
    return array


def _evaluate(value: Value, arrays: dict[Value, Array]) -> Array:
    """A static value; `arrays` are those known, and gain what is behind it. Raises FuserError (an
    index out of range)."""
    stack = [value]
    while stack:
        node = stack[-1].node
        assert node is not None
        if stack[-1] in arrays:
            stack.pop()
            continue
        missing = [operand for operand in node.inputs if operand not in arrays]
        if missing:
            stack += missing
            continue
        stack.pop()
        operands = [arrays[operand] for operand in node.inputs]
        results = primitive(node.op).evaluate(operands, node.attrs)
        arrays.update(zip(node.outputs, results, strict=True))
    return arrays[value]


def _codes(array: Array, scale: Array, zero: Array | None) -> Codes | None:
    numbers = _numbers(array)
    if numbers is None:
        return None
    full = [factor.astype(np.float32, copy=False) for factor in (scale, zero) if factor is not None]
    if not all(np.isfinite(factor).all() for factor in full):
        return None
    blocks = tuple(_block(full, axis) for axis in range(array.ndim))
    steps = tuple(slice(None, None, block) for block in blocks)
    factors = tuple(np.ascontiguousarray(factor[steps]) for factor in full)
    name, codes = numbers
    return Codes(codes, factors, name, blocks)


def _block(factors: list[Array], axis: int) -> int:
    """The largest number of neighbours along an axis over which all factors stay the same."""
    size = factors[0].shape[axis]
    block = 0
    for factor in factors:
        lines = np.moveaxis(factor, axis, 0)
        others = tuple(range(1, lines.ndim))
        changed = (lines[1:] != lines[:-1]).any(axis=others) if size > 1 else np.zeros(0, bool)
        block = gcd(block, *(np.flatnonzero(changed) + 1).tolist())
    return block or max(size, 1)


def _numbers(array: Array) -> tuple[str, Array] | None:
    """(dtype by name, codes, a byte each) of numbers that fit one of 4 or 8 bits."""
    if not array.size:
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    places = [slice(at, at + AT_ONCE) for at in range(0, flat.size, AT_ONCE)]
    low, high, whole = np.inf, -np.inf, True
    for at in places:
        piece = flat[at].astype(np.float32, copy=False)
        low, high = np.minimum(low, piece.min()), np.maximum(high, piece.max())
        whole = whole and np.array_equal(np.rint(piece), piece)
    if not np.isfinite(low) or not np.isfinite(high):
        return None
    for name, least, most in WHOLE if whole else ():
        if least <= low and high <= most:
            codes = np.empty(array.shape, np.uint8 if name[0] == "u" else np.int8)
            for at in places:
                codes.reshape(-1)[at] = flat[at].astype(np.float32, copy=False)
            return name, codes if bits_of(name) == 8 else codes.view(np.uint8) & np.uint8(15)
    wide = array.astype(np.float32)
    for name in FLOATS:
        dtype = BY_NAME[name].numpy
        with np.errstate(all="ignore"):
            narrow = wide.astype(dtype)
        if np.array_equal(narrow.astype(np.float32), wide):
            return name, np.ascontiguousarray(narrow).view(np.uint8).reshape(array.shape)
    return None
