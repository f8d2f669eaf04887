"""Graph -> Partition: seed regions at anchors, grow, join maps and reductions, inline, order."""

from __future__ import annotations

from fuser.graph.exact_float_matmuls import to_exact_float_matmuls
from fuser.graph.fp8_matmuls import to_fp8_matmuls
from fuser.graph.int8_matmuls import to_int8_matmuls
from fuser.graph.integer_matmuls import to_integer_matmuls
from fuser.graph.ir import Graph
from fuser.graph.precision import CONTRACTIONS, quantise_weights, round_operands, store_grids
from fuser.partition import finish
from fuser.partition.aligned import align_rows
from fuser.partition.attention import seed_attention
from fuser.partition.concats import part_concats
from fuser.partition.decode import unpack_weights
from fuser.partition.empty import fold_empty
from fuser.partition.epilogue import append_maps, grow_epilogue, join_parts
from fuser.partition.gated import find_gates
from fuser.partition.grouping import Grouping
from fuser.partition.images import copy_images
from fuser.partition.inline import inline_maps, shed_outputs
from fuser.partition.layout import choose_layouts
from fuser.partition.merge import merge_products
from fuser.partition.nodes import ANCHORS, OPAQUE
from fuser.partition.options import Options
from fuser.partition.outer import expand_outer_products
from fuser.partition.refuse import refusals
from fuser.partition.region import Partition
from fuser.partition.rotary import rotate_in_place
from fuser.partition.rows import place
from fuser.partition.scales import hoist_scales
from fuser.partition.siblings import join_siblings
from fuser.partition.split import split_products
from fuser.partition.storage import choose_copies
from fuser.target import Target

FIRST_CODES = 89
"""The first compute capability that multiplies 8-bit floats."""
FEW_ROWS = 16
"""Rows of a product up to which a CPU waits for its weights."""


def partition(graph: Graph, target: Target, options: Options | None = None) -> Partition:
    """Cut a concrete graph (every dim an int) into regions that each become one kernel.

    `Partition.graph` is a copy of the live part of `graph`, possibly rewritten; its inputs are the
    same values. Raises UsageError if `options` names a node that does not exist.
    """
    options = options or Options()
    graph = finish.with_copied_inputs(fold_empty(graph))
    graph = part_concats(expand_outer_products(graph))
    if target.is_cuda or target.dot_unit("i8") is not None:
        ops = ("dot_general",) if target.is_cuda else CONTRACTIONS
        graph = finish.without_dead(to_integer_matmuls(graph, ops))
    graph = unpack_weights(graph, target)
    if not options.no_fusion:
        graph = hoist_scales(graph)
        if options.merge:
            graph = merge_products(rotate_in_place(split_products(graph)))
    if not target.is_cuda and options.operands is None:
        graph = finish.without_dead(store_grids(graph, FEW_ROWS))
    if options.narrow_weights:
        graph = finish.without_dead(quantise_weights(graph))
    if options.operands is not None:
        graph = round_operands(graph, options.operands)
    if target.is_cuda or target.dot_unit("i8") is not None:
        ops = ("dot_general",) if target.is_cuda else CONTRACTIONS
        graph = finish.without_dead(to_int8_matmuls(graph, ops))
    if target.sm >= FIRST_CODES:
        graph = finish.without_dead(to_fp8_matmuls(graph))
    graph, kept = align_rows(graph, target)
    if not target.is_cuda:
        graph = finish.without_dead(to_exact_float_matmuls(graph))
        if not options.no_fusion:
            graph, kept = copy_images(graph, target)
    grouping = Grouping(graph, target, options)
    grouping.kept = kept
    _place_all(grouping)
    if not options.no_fusion:
        inline_maps(grouping)
        append_maps(grouping)
        shed_outputs(grouping)
        join_siblings(grouping)
    slices = finish.own_outputs(grouping)
    if not options.no_fusion:
        join_siblings(grouping, slices)
        finish.sink_movement(grouping)
    regions = finish.build_regions(grouping)
    layouts = choose_layouts(grouping, regions)
    copies, narrow = choose_copies(regions, set(graph.outputs), layouts, options.operands)
    return Partition(graph, regions, refusals(grouping, regions), layouts, copies, narrow)


def _place_all(grouping: Grouping) -> None:
    """Anchors first with their epilogues, in graph order; then what is left."""
    options = grouping.options
    if options.attention and not options.no_fusion:
        seed_attention(grouping)
    if not options.no_fusion:
        for products in find_gates(grouping.graph):
            grouping.seed_gate(products)
    for node in grouping.graph.nodes:
        if node in grouping.virtual:
            continue
        if node not in grouping.group_of and (node.op in ANCHORS or node.op in OPAQUE):
            grouping.seed(node)
        if node.op in ANCHORS and node in grouping.group_of:
            group = grouping.group_of[node]
            if node is group.anchors[-1]:
                grow_epilogue(grouping, group)
                join_parts(grouping, group)
    for node in grouping.graph.nodes:
        if node not in grouping.virtual and node not in grouping.group_of:
            place(grouping, node)
