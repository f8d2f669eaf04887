"""What a kernel promises of its numbers: multiple_of and assume."""

from __future__ import annotations

import math
from typing import Any

from fuser.graph.sizes import is_symbolic
from fuser.language.emitter import Emitter
from fuser.language.registry import builtin
from fuser.language.tensors import Tensor, unwrap
from fuser.tilegen.index import Index, Scalar
from fuser.tilegen.value import Value


@builtin("multiple_of")
def _multiple_of(e: Emitter, input: Any, values: Any = 1) -> Any:
    """A promise to the compiler: the number is a multiple of another. The value as it is."""
    number = unwrap(values)
    if isinstance(input, Tensor) and not input.shape and input.index is not None:
        if isinstance(number, int) and number > 0 and input.index.constant == 0:
            _learn(e, input.index, number)
    return input


@builtin("assume")
def _assume(e: Emitter, cond: Any) -> None:
    """A promise to the compiler: of a number, that it is at least so much."""
    if isinstance(cond, Tensor) and not cond.shape:
        for bound in cond.bounds or ():
            _learn(e, bound.limit - bound.below - 1)


def _learn(e: Emitter, known: Index, multiple: int = 0) -> None:
    """Note that an expression is a multiple of a number, or, by default, that it is not negative,
    where it is about one number. One that was computed outside of the branch or loop that the
    promise stands in is left alone: there the promise need not hold."""
    if len(known.terms) != 1 or is_symbolic(known.constant):
        return
    atom, coefficient = known.terms[0]
    if not isinstance(atom, Scalar) or is_symbolic(coefficient) or not _made_here(e, atom.value):
        return
    if not multiple and coefficient > 0:
        atom.value.low = max(atom.value.low, -(known.constant // coefficient))
    elif multiple and coefficient == 1:
        atom.value.multiple = math.lcm(atom.value.multiple, multiple)


def _made_here(e: Emitter, value: Value) -> bool:
    """Whether a value is computed in the block that is being filled."""
    block = e.builder.block
    return value in block.params or any(value in op.results for op in block.ops)
