"""The graph passes and their order. A pass is a function from a Graph to a Graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuser.errors import FuserError
from fuser.graph.ir import Graph
from fuser.graph.ops.registry import check_types
from fuser.graph.passes.canonicalise import canonicalise
from fuser.graph.passes.cse import eliminate_common_subexpressions
from fuser.graph.passes.dce import remove_dead_nodes
from fuser.graph.passes.fold_affine import fold_affine
from fuser.graph.passes.fold_constants import fold_constants
from fuser.graph.passes.keep_quantised import keep_quantised


@dataclass(frozen=True)
class Pass:
    """A named pass. `run` may return the graph it was given, changed in place."""

    name: str
    run: Callable[[Graph], Graph]


PASSES: tuple[Pass, ...] = (
    Pass("dce", remove_dead_nodes),
    Pass("keep_quantised", keep_quantised),  # before weights are folded
    Pass("fold_constants", fold_constants),  # first: rules look for constants
    Pass("canonicalise", canonicalise),
    Pass("refold_constants", fold_constants),  # what the rules brought together
    Pass("fold_affine", fold_affine),  # needs scales and shifts as constants, on the right
    Pass("cse", eliminate_common_subexpressions),
    Pass("recanonicalise", canonicalise),  # cse makes operands the same
    Pass("final_fold", fold_constants),
    Pass("final_dce", remove_dead_nodes),
)


def run_passes(graph: Graph, verify: bool = False) -> Graph:
    """The graph after all passes, which change it in place: who needs it as it was copies it. With
    verify, structure and types are checked after each.

    Raises what a pass raises, with its name.
    """
    for step in PASSES:
        try:
            graph = step.run(graph)
            if verify:
                graph.verify()
                check_types(graph)
        except FuserError as error:
            error.add_note(f"in the graph pass {step.name}")
            raise
    return graph


__all__ = ["PASSES", "Pass", "run_passes"]
