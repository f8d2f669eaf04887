"""The passes over tile programs, in the order in which they run.

A pass is a function that changes a kernel in place; the program is valid before and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuser.base.limits import check_time
from fuser.errors import VerifyError
from fuser.tilegen.ir import Kernel
from fuser.tilegen.passes.control import inline_single_iterations
from fuser.tilegen.passes.cse import eliminate_common_values
from fuser.tilegen.passes.dce import remove_dead_values
from fuser.tilegen.passes.fold import fold_constants
from fuser.tilegen.passes.hoist import hoist_loop_invariants
from fuser.tilegen.passes.masks import drop_proven_masks
from fuser.tilegen.passes.movement import merge_movement
from fuser.tilegen.passes.narrow import narrow_comparisons
from fuser.tilegen.passes.unwrap import unwrap_coordinates
from fuser.tilegen.text import renumber
from fuser.tilegen.verify import verify as verify_kernel


@dataclass(frozen=True)
class Pass:
    """A named pass, as `fuser dump --after` and errors call it."""

    name: str
    run: Callable[[Kernel], None]


PASSES: tuple[Pass, ...] = (
    Pass("fold", fold_constants),  # first: it writes index tiles and facts into the addresses
    Pass("control", inline_single_iterations),
    Pass("movement", merge_movement),
    Pass("refold", fold_constants),  # the bodies of former loops now see constants
    Pass("unwrap", unwrap_coordinates),  # addresses are whole by now
    Pass("narrow", narrow_comparisons),
    Pass("cse", eliminate_common_values),
    # before hoist: a load in bounds stays in a loop of no iteration
    Pass("masks", drop_proven_masks),
    Pass("hoist", hoist_loop_invariants),
    Pass("cse-again", eliminate_common_values),  # of two loops that shared an invariant
    Pass("dce", remove_dead_values),
)


def run_passes(
    kernel: Kernel, verify: bool = False, after: Callable[[str, Kernel], None] | None = None
) -> None:
    """Run every pass and number the values anew.

    verify: check the program before the first and after each pass; a VerifyError then names the
    pass. after: called with the name of each pass and the kernel, to print or count.
    """
    if verify:
        _verify_after("emit", kernel)
    for item in PASSES:
        check_time()
        item.run(kernel)
        if verify:
            _verify_after(item.name, kernel)
        if after is not None:
            after(item.name, kernel)
    renumber(kernel)


def _verify_after(name: str, kernel: Kernel) -> None:
    try:
        verify_kernel(kernel)
    except VerifyError as error:
        raise VerifyError(f"after {name}: {error.what}", where=error.where) from None


__all__ = ["PASSES", "Pass", "run_passes"]
