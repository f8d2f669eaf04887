"""The passes over a graph before its nodes are grouped, in the order in which they run.

A pass is a function from a graph to a graph; its file shows one before and after. The predicate
beside it says for which target and options it runs. `fuser dump --stage passes` prints the graph
after each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fuser.base.target import Target
from fuser.graph.exact_float_matmuls import to_exact_float_matmuls
from fuser.graph.fp8_matmuls import to_fp8_matmuls
from fuser.graph.int8_matmuls import to_int8_matmuls
from fuser.graph.integer_matmuls import to_integer_matmuls
from fuser.graph.ir import Graph, Value
from fuser.graph.numerics import RuleClass
from fuser.graph.ops.families import CONTRACTIONS
from fuser.graph.precision import quantise_weights, round_operands, store_grids
from fuser.partition.forced import fused_before
from fuser.partition.options import Options
from fuser.partition.passes.align_rows import align_rows
from fuser.partition.passes.append_stacked import append_stacked
from fuser.partition.passes.copy_images import copy_images
from fuser.partition.passes.copy_pinned import copy_pinned
from fuser.partition.passes.cut_patches import cut_patches
from fuser.partition.passes.decode_weights import decode_weights
from fuser.partition.passes.expand_outer_products import expand_outer_products
from fuser.partition.passes.fold_empty import fold_empty
from fuser.partition.passes.fold_norms import fold_norms
from fuser.partition.passes.hoist_scales import hoist_scales
from fuser.partition.passes.keep_state import Kept, keep_state
from fuser.partition.passes.live import with_copied_inputs, without_dead
from fuser.partition.passes.merge_matmuls import merge_matmuls
from fuser.partition.passes.norms_in_epilogues import norms_in_epilogues
from fuser.partition.passes.rotate_in_place import rotate_in_place
from fuser.partition.passes.split_concats import split_concats
from fuser.partition.passes.split_contractions import split_contractions
from fuser.partition.passes.split_k import split_k
from fuser.partition.passes.split_matmuls import split_matmuls
from fuser.partition.passes.split_sums import split_sums

FIRST_FP8 = 89
"""The first compute capability that multiplies 8-bit floats."""
FEW_ROWS = 16
"""Rows of a matmul up to which a CPU waits for its weights."""


@dataclass
class Work:
    """What a graph is partitioned for, and what passes note. kept: copies that stay kernels of
    their own. state: what lies in the memory of inputs."""

    target: Target
    options: Options
    kept: set[Value] = field(default_factory=set)
    state: list[Kept] = field(default_factory=list)


@dataclass(frozen=True)
class Pass:
    """A named pass, and whether it runs for a target and options (and the graph's numerics)."""

    name: str
    run: Callable[[Graph, Work], Graph]
    wanted: Callable[[Target, Options], bool]
    kind: RuleClass = "exact"
    """What it does to numbers."""
    by_rows: bool = False
    """Whether it orders sums by how many rows there are: not where numerics are batch invariant."""


def run_passes(graph: Graph, work: Work) -> Graph:
    """The graph after the passes that its target and options want."""
    return [graph, *(after for _, after in each_pass(graph, work))][-1]


def each_pass(graph: Graph, work: Work) -> Iterator[tuple[Pass, Graph]]:
    """The passes that run, each with the graph after it. One that would make an operation of nodes
    that are to stay apart is left out."""
    for item in PASSES:
        left_out = item.by_rows and graph.numerics.batch_invariant
        wanted = item.wanted(work.target, work.options) and graph.numerics.allows(item.kind)
        if wanted and not left_out:
            kept = set(work.kept)
            after = item.run(graph, work)
            if fused_before(after, work.options.forbid) is None:
                if item.kind != "exact" and (names := _changed(graph, after)):
                    after.note(item.name, item.kind, names)
                graph = after
            else:
                work.kept = kept
            yield item, graph


def _changed(before: Graph, after: Graph) -> tuple[str, ...]:
    """The model's nodes of which a pass has made something else."""

    def forms(graph: Graph) -> Counter[tuple[str, tuple[str, ...], str]]:
        return Counter((n.op, n.origin, str(n.output.type)) for n in graph.nodes if n.outputs)

    if after is before:
        return ()
    made = forms(after) - forms(before)
    return tuple(dict.fromkeys(name for _, origin, _ in made for name in origin))


# predicates ---------------------------------------------------------------------------------------


def always(target: Target, options: Options) -> bool:
    return True


def fuses(target: Target, options: Options) -> bool:
    return not options.no_fusion


def merges(target: Target, options: Options) -> bool:
    return not options.no_fusion and options.merge


def on_gpu(target: Target, options: Options) -> bool:
    return target.is_cuda


def on_cpu(target: Target, options: Options) -> bool:
    return not target.is_cuda


def multiplies_int8(target: Target, options: Options) -> bool:
    return target.is_cuda or target.dot_unit("i8") is not None


def multiplies_fp8(target: Target, options: Options) -> bool:
    return target.sm >= FIRST_FP8


def keeps_operands_on_cpu(target: Target, options: Options) -> bool:
    return not target.is_cuda and options.operands is None


def narrows_weights(target: Target, options: Options) -> bool:
    return options.narrow_weights


def rounds_operands(target: Target, options: Options) -> bool:
    return options.operands is not None


def copies_pinned(target: Target, options: Options) -> bool:
    return options.copy_pinned


def fuses_on_gpu(target: Target, options: Options) -> bool:
    return target.is_cuda and not options.no_fusion


def fuses_on_cpu(target: Target, options: Options) -> bool:
    return not target.is_cuda and not options.no_fusion


def folds_norms(target: Target, options: Options) -> bool:
    return target.is_cuda and options.fold_norms and not options.no_fusion


def has_state(target: Target, options: Options) -> bool:
    return bool(options.state)


# what they run ------------------------------------------------------------------------------------


def _of(function: Callable[[Graph], Graph]) -> Callable[[Graph, Work], Graph]:
    """A pass that asks for nothing but the graph."""
    return lambda graph, work: function(graph)


def _integers(graph: Graph, work: Work) -> Graph:
    return without_dead(to_integer_matmuls(graph, _integer_ops(work.target)))


def _int8(graph: Graph, work: Work) -> Graph:
    return without_dead(to_int8_matmuls(graph, _integer_ops(work.target)))


def _integer_ops(target: Target) -> tuple[str, ...]:
    """Ops that multiply integers of 8 bits on the target."""
    return ("dot_general",) if target.is_cuda else CONTRACTIONS


def _grids(graph: Graph, work: Work) -> Graph:
    return without_dead(store_grids(graph, FEW_ROWS))


def _round(graph: Graph, work: Work) -> Graph:
    assert work.options.operands is not None
    return round_operands(graph, work.options.operands)


def _stacked(graph: Graph, work: Work) -> Graph:
    return append_stacked(graph, work.options.state)


def _keep(graph: Graph, work: Work) -> Graph:
    graph, work.state = keep_state(graph, work.options.state)
    return graph


def _merge(graph: Graph, work: Work) -> Graph:
    target = work.target
    # read and written in the time of a launch
    small = target.is_cuda and not graph.numerics.batch_invariant
    copied = int(target.launch_cost * target.bandwidth / 2) if small else 0
    return merge_matmuls(graph, work.options.forbid, copied)


def _copying(
    function: Callable[[Graph, Target], tuple[Graph, set[Value]]],
) -> Callable[[Graph, Work], Graph]:
    """A pass whose copies stay kernels of their own."""

    def run(graph: Graph, work: Work) -> Graph:
        graph, copies = function(graph, work.target)
        work.kept |= copies
        return graph

    return run


PASSES: tuple[Pass, ...] = (
    Pass("fold_empty", _of(fold_empty), always),
    Pass("copy_inputs", _of(with_copied_inputs), always),  # from here on all is a copy
    Pass("append_stacked", _stacked, has_state),
    Pass("keep_state", _keep, has_state),
    Pass("expand_outer_products", _of(expand_outer_products), always),
    Pass(
        "split_contractions",
        lambda g, work: split_contractions(g, work.target),
        fuses_on_gpu,
        "order",
        by_rows=True,
    ),
    Pass(
        "split_sums",
        lambda g, work: split_sums(g, work.target),
        fuses_on_gpu,
        "order",
        by_rows=True,
    ),
    Pass("split_concats", _of(split_concats), always),
    Pass("integer_matmuls", _integers, multiplies_int8, "order"),  # before weights are decoded
    Pass("decode_weights", _of(decode_weights), on_cpu),
    Pass("hoist_scales", _of(hoist_scales), fuses),  # what is left of an operand may be shared
    Pass("split_matmuls", _of(split_matmuls), merges),  # before others are merged
    # narrow blocks of few rows stream weights that are packed for them, on Hopper
    Pass("rotate_in_place", lambda g, w: rotate_in_place(g, w.target.wgmma), merges),
    Pass("merge_matmuls", _merge, merges),
    Pass(
        "norms_in_epilogues",
        lambda g, w: norms_in_epilogues(g, w.target),
        fuses_on_gpu,
        "order",
        by_rows=True,
    ),
    Pass("split_k", lambda g, work: split_k(g, work.target), fuses_on_gpu, "order", by_rows=True),
    Pass("fold_norms", lambda g, work: fold_norms(g, work.target), folds_norms, by_rows=True),
    Pass("copy_pinned", lambda g, w: copy_pinned(g, w.options.pin), copies_pinned),
    Pass("store_grids", _grids, keeps_operands_on_cpu, "order", by_rows=True),
    Pass("quantise_weights", lambda g, _: without_dead(quantise_weights(g)), narrows_weights),
    Pass("round_operands", _round, rounds_operands),
    Pass("int8_matmuls", _int8, multiplies_int8),  # also of what was just quantised
    Pass("fp8_matmuls", lambda g, _: without_dead(to_fp8_matmuls(g)), multiplies_fp8, "order"),
    Pass("cut_patches", _copying(cut_patches), fuses_on_gpu),
    Pass("align_rows", _copying(align_rows), on_gpu),
    Pass("exact_float_matmuls", lambda g, _: without_dead(to_exact_float_matmuls(g)), on_cpu),
    Pass("copy_images", _copying(copy_images), fuses_on_cpu),
)

__all__ = ["PASSES", "Pass", "Work", "each_pass", "run_passes"]
