"""device_print and device_assert: what a program leaves in memory for the host (reports.py)."""

from __future__ import annotations

import math
import string
from typing import Any

from fuser.dtypes import f64, i32, i64
from fuser.graph.sizes import is_symbolic
from fuser.language import narrow, shapes
from fuser.language.arithmetic import (
    arithmetic,
    as_tensor,
    binary,
    cast,
    compare,
    operands,
    to_bool,
    unary,
)
from fuser.language.emitter import Emitter
from fuser.language.folds import folded
from fuser.language.registry import builtin
from fuser.language.sites import HEADER, MOST_SITES, AssertSite, PrintSite, Reports
from fuser.language.tensors import Tensor
from fuser.language.types import int32, int64, uint64
from fuser.language.wholes import fits, operate_whole, stay_whole
from fuser.tilegen.index import Atom, Index, Lookup, Scalar, axis, scalar
from fuser.tilegen.ir import Buffer
from fuser.tilegen.value import UNBOUNDED, Value


def _reports(e: Emitter) -> Reports:
    if e.reports is None:
        e.reports = Reports()
    if e.reports.count >= MOST_SITES:
        e.fail(f"more than {MOST_SITES} places that print or assert")
    return e.reports


def _own_buffer(e: Emitter, leaf: int, name: str, dtype: Any, size: int) -> Buffer:
    """Memory of the report: made once for each leaf."""
    if leaf not in e.own_buffers:
        taken = {buffer.name for buffer in e.builder.kernel.buffers}
        while name in taken:
            name += "_"
        e.own_buffers[leaf] = e.builder.buffer(name, dtype, size, role="output")
    return e.own_buffers[leaf]


def _counter(e: Emitter, reports: Reports, number: int) -> Any:
    buffer = _own_buffer(e, reports.leaf, "report_counts", i32, MOST_SITES)
    return e.builder.view(buffer, (), (), number)


@builtin("device_print")
def device_print(e: Emitter, prefix: Any, *args: Any, hex: Any = False) -> None:
    """Print values of every program, after the launch: a line for each element."""
    if not isinstance(prefix, str):
        args, prefix = (prefix, *args), ""
    if any(letter not in string.printable for letter in prefix):
        e.fail(f"{prefix!r} is not an ascii string")
    values = [as_tensor(e, item) for item in args]
    if e.trials:
        return
    reports = _reports(e)
    operands = tuple((value.dtype, value.shape) for value in values)
    number, leaf = reports.count, reports.leaf - 1 - len(reports.prints)
    site = PrintSite(number, leaf, _spaced(prefix, bool(values)), operands, bool(hex))
    reports.prints.append(site)
    log = _own_buffer(e, leaf, f"report{number}", i64, site.records * site.words)
    b = e.builder
    one = b.full(1, (), i32)
    slot = scalar(b.atomic("add", _counter(e, reports, number), (), one))
    view = b.view(log, (site.records, site.words))
    for place in range(HEADER):
        own = b.index(e.program(place), (), i64)
        b.store(view, (slot, Index(place)), own)
    start = HEADER
    for value in values:
        size = math.prod(value.shape)
        flat = shapes.reshape(e, value, (size,))
        b.store(view, (slot, axis(0, size) + start), _word(e, flat))
        start += size


def _spaced(prefix: str, values: bool) -> str:
    """The prefix as Triton prints it: a blank before it, a colon and a blank behind."""
    if values:
        prefix = prefix.rstrip(" ")
        prefix = f"{prefix.removesuffix(':')}: "
    return f" {prefix}" if len(prefix) > 2 and not prefix.startswith(" ") else prefix


def _word(e: Emitter, value: Tensor) -> Value:
    """64 bits that hold a number of any type."""
    b = e.builder
    if value.dtype.is_floating():
        return b.bitcast(b.cast(narrow.widened(e, value), f64), i64)
    return b.cast(e.value_of(value), i64)


@builtin("device_assert")
def device_assert(e: Emitter, cond: Any, msg: Any = "", mask: Any = None) -> None:
    """Raise after the launch where a condition does not hold; only in a launch with debug=True."""
    if not e.options.get("debug"):
        return
    failing = unary(e, "not", to_bool(e, as_tensor(e, cond)))
    if mask is not None:
        failing = binary(e, "&", failing, to_bool(e, as_tensor(e, mask)))
    bad = cast(e, as_tensor(e, failing), int32)
    if e.trials:
        return
    reports = _reports(e)
    source, node = e.frames[-1]
    site = AssertSite(
        reports.count, str(msg or ""), source.place(node), source.excerpt(node), source.name
    )
    reports.asserts.append(site)
    any_bad = folded(e, "max", bad) if bad.shape else bad
    x, y = e.extent(0), e.extent(1)
    number = as_tensor(e, e.whole(e.program(0) + 1, int32, ()))
    for place, before in ((1, (x,)), (2, (x, y))):
        if place < len(e.grid):
            part = e.whole(e.program(place), int32, ())
            for extent in before:
                part = binary(e, "*", part, e.whole(extent, int32, ()))
            number = binary(e, "+", number, part)
    told = binary(e, "*", any_bad, number)
    e.builder.atomic("max", _counter(e, reports, site.number), (), e.value_of(as_tensor(e, told)))


WIDEST = 64
"""Bits of integers, from which on no wider one says whether a result fits."""


def checked(e: Emitter, op: str, a: Any, b: Any, found: Any) -> Any:
    """found, which is `a op b`: a launch that asks for it raises where the true number of +, - or *
    does not fit the integer type. What is known to fit, as most of what addresses are made of,
    needs no check; a function of single elements runs where no element asks for it."""
    if not e.options.get("overflow") or e.pointwise or not isinstance(found, Tensor):
        return found
    kind = found.dtype
    if op not in "+-*" or not kind.is_int() or kind.is_bool() or kind.bits >= WIDEST:
        return found
    x, y = operands(e, a, b, op)
    if found.literal is not None or _is_known_to_fit(e, op, x, y):
        return found
    unsigned = op == "*" and kind.is_int_unsigned()
    wide = uint64 if unsigned else int64
    true = arithmetic(e, op, cast(e, x, wide), cast(e, y, wide))
    held = compare(e, "<=", true, kind.get_int_max_value())
    if not unsigned:
        held = binary(e, "&", held, compare(e, ">=", true, kind.get_int_min_value()))
    device_assert(e, held, f"{kind} overflow detected for operation {op}")
    return found


def _is_known_to_fit(e: Emitter, op: str, x: Tensor, y: Tensor) -> bool:
    """Whether a result is an index expression of sizes, program ids and tile axes, or of numbers
    whose ends are known, that fits its type."""
    whole = operate_whole(op, e.index_of(x), e.index_of(y)) if stay_whole(x, y) else None
    return (
        whole is not None
        and all(_has_ends(atom) for atom in whole.leaves())
        and fits(e, whole, x.dtype)
    )


def _has_ends(atom: Atom) -> bool:
    if not isinstance(atom, Scalar | Lookup):
        return True
    return all(is_symbolic(end) or abs(end) < UNBOUNDED for end in atom.value.range)


@builtin("expect_zero")
def expect_zero(e: Emitter, x: Any, mask: Any) -> Any:
    """x, of which 0 is expected where the mask is true: asserted in a launch with debug=True."""
    unmasked = unary(e, "not", to_bool(e, as_tensor(e, mask)))
    held = binary(e, "|", compare(e, "==", as_tensor(e, x), 0), unmasked)
    device_assert(e, held, "expect_zero: not 0 where the mask is true")
    return x
