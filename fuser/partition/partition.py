"""Graph -> Partition: passes, then seed regions at anchors, grow, join maps and reductions, inline,
order."""

from __future__ import annotations

from fuser.base.target import Target
from fuser.graph.ir import Graph
from fuser.graph.ops.families import KERNEL_CALL
from fuser.partition import finish
from fuser.partition.attention import seed_attention
from fuser.partition.cost import without_launches
from fuser.partition.epilogue import append_maps, grow_epilogue, join_parts
from fuser.partition.forced import check_names, check_pins, check_separable, unmet, ways
from fuser.partition.gated import find_gates
from fuser.partition.grouping import Group, Grouping
from fuser.partition.inline import inline_maps, shed_outputs
from fuser.partition.kernel_calls import result_positions, share_memory
from fuser.partition.layout import choose_layouts
from fuser.partition.nodes import ANCHORS, OPAQUE
from fuser.partition.options import Options
from fuser.partition.panels import inline_totals, take_panels
from fuser.partition.passes import Work, run_passes
from fuser.partition.passes.keep_state import rooms_of
from fuser.partition.refuse import refusals
from fuser.partition.region import Partition
from fuser.partition.rows import place
from fuser.partition.siblings import join_siblings
from fuser.partition.statistics import inline_statistics
from fuser.partition.storage import choose_copies


def partition(graph: Graph, target: Target, options: Options | None = None) -> Partition:
    """Cut a concrete graph (every dim an int) into regions that each become one kernel.

    `Partition.graph` is a copy of the live part of `graph`, possibly rewritten; its inputs are the
    same values. Raises UsageError if `options` names a node that does not exist, or a pin or a
    forbidden pair that cannot be.
    """
    options = options or Options()
    if not (options.pin or options.forbid):
        return _partition(graph, target, options)
    check_names(graph, options)
    check_separable(graph, options)
    cuts = []
    for way in ways(options):
        cuts.append(_partition(graph, target, way))
        if unmet(cuts[-1], options) is None:
            break
    check_pins(cuts[-1], options, cuts[0].refusals)
    return cuts[-1]


def _beside(grouping: Grouping, slices: list[Group]) -> list[Group]:
    """The groups of `slices`, and the maps that one of them may join."""
    spaces = {group.space for group in slices}
    return [
        group for group in grouping.groups.values()
        if group.is_elementwise and group.space in spaces and group.positions
    ]  # fmt: skip


def _partition(graph: Graph, target: Target, options: Options) -> Partition:
    work = Work(target, options)
    graph = run_passes(graph, work)
    by_rows = not graph.numerics.batch_invariant
    grouping = Grouping(graph, target if by_rows else without_launches(target), options)
    grouping.kept = work.kept
    _place_all(grouping)
    if not options.no_fusion:
        inline_maps(grouping)
        inline_totals(grouping)
        if options.fold_norms and target.is_cuda and by_rows:
            inline_statistics(grouping)
        append_maps(grouping)
        shed_outputs(grouping)
        join_siblings(grouping)
    slices = finish.own_outputs(grouping)
    if not options.no_fusion:
        join_siblings(grouping, _beside(grouping, slices))
        finish.sink_movement(grouping)
    regions = finish.build_regions(grouping)
    rooms = rooms_of(graph, work.state)
    layouts = choose_layouts(grouping, regions)
    layouts = {value: order for value, order in layouts.items() if value not in rooms}
    copies, narrow = choose_copies(regions, set(graph.outputs), layouts, options.operands)
    refused = refusals(grouping, regions)
    places = share_memory(regions, {*graph.outputs, *rooms, *copies})
    return Partition(graph, regions, refused, layouts, copies, narrow, target, rooms, places)


def _place_all(grouping: Grouping) -> None:
    """Anchors first with their epilogues, in graph order; then what is left."""
    options = grouping.options
    if options.attention and not options.no_fusion and grouping.graph.numerics.allows("order"):
        seed_attention(grouping)
    if not options.no_fusion:
        for matmuls in find_gates(grouping.graph):
            if grouping.forbidden(matmuls[:1], matmuls[1:]) is None:
                grouping.seed_gate(matmuls)
    for node in grouping.graph.nodes:
        if node in grouping.virtual:
            continue
        if node not in grouping.group_of and (node.op in ANCHORS or node.op in OPAQUE):
            group = grouping.seed(node)
            if node.op == KERNEL_CALL:
                group.positions = result_positions(node)
                if not options.no_fusion:
                    grow_epilogue(grouping, group)
        if node.op in ANCHORS and node in grouping.group_of:
            group = grouping.group_of[node]
            if node is group.anchors[-1]:
                grow_epilogue(grouping, group)
                take_panels(grouping, group)
                join_parts(grouping, group)
    for node in grouping.graph.nodes:
        if node not in grouping.virtual and node not in grouping.group_of:
            place(grouping, node)
