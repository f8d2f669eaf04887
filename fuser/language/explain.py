"""What a compile of a user's kernel is: grid, arguments, accesses, work, code, guards, as text."""

from __future__ import annotations

from fuser.graph import dims
from fuser.graph.dims import Dim
from fuser.graph.sizes import Sizes, evaluate
from fuser.graph.units import byte_size, duration, operations
from fuser.language.blocks import Block
from fuser.language.compile import Fixed
from fuser.language.layouts import as_written
from fuser.language.reasons import spoken
from fuser.language.stages import Variant
from fuser.tilegen import ops
from fuser.tilegen.index import show_dim
from fuser.tilegen.ir import Op, View
from fuser.tilegen.value import UNBOUNDED
from fuser.tilegen.work import Work, accesses, count, is_gather

VERBS = {ops.Load: "load", ops.Store: "store", ops.Atomic: "atomic", ops.AtomicAdd: "atomic"}


def explain(variant: Variant) -> str:
    """The text. Numbers are those of the launch that it was compiled for."""
    program, kernel = variant.program, variant.program.kernel
    function = variant.function
    place = function.source.place(function.source.tree)
    with Sizes(variant.examples):
        work = count(kernel, lambda dim: _number(variant, dim))
        lines = [f"kernel {kernel.name}, {place}", *_grid(variant), *_arguments(variant)]
        lines += ["accesses:", *(f"  {line}" for line in _accesses(variant))]
        lines += [f"  {_short(note, place)}" for note in dict.fromkeys(program.notes)]
        lines += ["work:", *(f"  {line}" for line in _work(variant, work))]
        lines += ["code:", *(f"  {line}" for line in _code(variant))]
        lines += ["right for all launches with these classes of arguments, and where"]
        facts = [str(fact) for fact in program.facts] + [as_written(str(g)) for g in variant.guards]
        lines += [f"  {fact}" for fact in facts] or ["  (nothing else)"]
    return "\n".join(lines)


def _number(variant: Variant, dim: Dim) -> int:
    return evaluate(dim, variant.examples)


def _grid(variant: Variant) -> list[str]:
    kernel = variant.program.kernel
    extents = [_number(variant, extent) for extent in reversed(kernel.grid)]
    open_axes = sum(isinstance(extent, dims.DimExpr) for extent in kernel.grid)
    total = 1
    for extent in extents:
        total *= extent
    shape = ", ".join(map(str, extents)) + ("," if len(extents) == 1 else "")
    kind = "; any number of them on each axis of 2 and more" if open_axes else ""
    return [f"grid: ({shape}), {total} program{'s' * (total != 1)}{kind}"]


def _arguments(variant: Variant) -> list[str]:
    lines = ["arguments:"]
    for name, kind in variant.classes.items():
        parameter = variant.function.signature.parameters.get(name)
        default = None if parameter is None else parameter.default
        left = isinstance(default, Block) and spoken(kind) == spoken(Fixed(default.default))
        lines.append(f"  {name}: {spoken(kind)}" + (", the default" if left else ""))
    return lines


def _accesses(variant: Variant) -> list[str]:
    found: dict[str, None] = {}
    for op in variant.program.kernel.walk():
        views = accesses(op)
        if views:
            found[_access(op, views[0][0])] = None
    return list(found) or ["(none)"]


def _access(op: Op, view: View) -> str:
    place = op.source.rpartition(":")[2] if op.origin else "?"
    shape = ["inf" if isinstance(d, int) and d >= UNBOUNDED else _dim(d) for d in view.shape]
    strides = ", ".join(map(_dim, view.strides))
    text = f"line {place}: {VERBS[type(op)]} of {view.buffer.name}"
    text += f"[{', '.join(shape)}] strides({strides})" if shape else f"[{_dim(view.offset)}]"
    bounded = [str(d) for d, extent in enumerate(shape) if extent != "inf"]
    if is_gather(op):
        text += ", a gather: addresses element by element"
    elif shape:
        text += ", affine"
    if shape:
        text += f", bounds in dims {', '.join(bounded)}" if bounded else ", no bounds"
    return text + (", under a mask" if getattr(op, "mask", None) is not None else "")


def _dim(dim: Dim) -> str:
    """A dim, with the sizes of arrays as they are written in kernels."""
    return as_written(show_dim(dims.as_int(dim)))


def _work(variant: Variant, work: Work) -> list[str]:
    about = "" if work.exact else "about "
    lines = [
        f"{about}{byte_size(work.moved)} moved, each element once; {about}"
        f"{byte_size(work.accessed)} loaded and stored",
        f"{about}{operations(work.flops, 'FLOP')}",
    ]
    target = variant.target
    seconds = work.moved / target.peak_bandwidth, work.flops / target.peak()
    lines.append(
        f"at least {duration(max(seconds))} on this target: "
        + ("memory" if seconds[0] >= seconds[1] else "float32 arithmetic")
        + " decides"
    )
    return lines


def _code(variant: Variant) -> list[str]:
    code, target = variant.compiled, variant.target
    lines = [
        f"{target.arch}, {byte_size(len(code.code))} of {'PTX' if target.is_cuda else 'object'}"
    ]
    facts = {**code.facts, **(getattr(variant.loaded, "facts", None) or {})}
    if target.is_cuda:
        lines.append(
            f"{code.threads} threads a block, {facts.get('registers', '?')} registers a thread, "
            f"{byte_size(code.shared_bytes)} of shared memory, "
            f"{byte_size(facts.get('spill_bytes', facts.get('local_bytes', 0)))} spilled"
        )
    else:
        lines.append(f"{byte_size(code.scratch_bytes)} of scratch memory a thread")
    schedule = variant.program.kernel.schedule
    if schedule.reason:
        lines.append(schedule.reason)
    return lines


def _short(note: str, place: str) -> str:
    """A note without the name of the kernel's own file."""
    file = place.rpartition(":")[0]
    return note.replace(f"{file}:", "line ")
