"""The faults: a name, a file of the package, and the text that another replaces.

Each text must stand in its file exactly once, which test_mutations.py checks; where the code moves
on, the fault moves with it, or another of its kind takes its place.

Four faults of the partitioner cannot give wrong numbers: they join what does not fit, and an
emitter computes each value of a region at whatever place it is asked for, or refuses the region.
They are found as the refusal (`TakenApart` of tests/random_graphs/check.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A replacement of source text. file: below fuser/."""

    name: str
    file: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The text with the fault in it. Raises ValueError unless the old text is there once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: the text is {found} times in {self.file}")
        return text.replace(self.old, self.new)


MAPS, MEMORY = "tilegen/emit/maps.py", "tilegen/emit/memory.py"
PRIMITIVES, MAP = "tilegen/emit/primitives.py", "tilegen/emit/map.py"
REDUCE, SPACE = "tilegen/emit/reduce.py", "tilegen/emit/space.py"
PLACEMENT = "tilegen/emit/placement.py"
CONTRACTION, CONV = "tilegen/emit/contraction.py", "tilegen/emit/conv.py"
ATTENTION, MASKS = "tilegen/emit/attention.py", "tilegen/emit/masks.py"

EMITTERS = (
    Fault(
        "a transpose is its inverse", MAPS,
        "result[source] = coords[axis]\n            return tuple(result)",
        "result[axis] = coords[source]\n            return tuple(result)",
    ),
    Fault(
        "a slice's offset is lost", MAPS,
        "coordinate * stride + start\n", "coordinate * stride\n",
    ),
    Fault(
        "a slice's stride is lost", MAPS,
        "coordinate * stride + start\n", "coordinate + start\n",
    ),
    Fault(
        "a turned slice is stored forwards", MAPS,
        "moved = at - start if stride > 0 else index(start) - at", "moved = at - start",
    ),
    Fault(
        "what a slice leaves out is stored", MAPS,
        "if not in_range(moved, dim):\n                    guards.append((moved, dim))", "pass",
    ),
    Fault(
        "dims merge with the stride of the wrong one", MEMORY,
        "merged = a * inner + b", "merged = a * outer + b",
    ),
    Fault(
        "dims merge across a bound", MEMORY,
        "if not same(outer_stride, inner_stride * inner) or not in_range(b, inner):",
        "if not same(outer_stride, inner_stride * inner):",
    ),
    Fault(
        "a concat takes one element too many", PRIMITIVES,
        'em.map("lt", em.index_piece(coords[axis]), limit)',
        'em.map("le", em.index_piece(coords[axis]), limit)',
    ),
    Fault(
        "an operand of a concat begins at 0", PRIMITIVES,
        "at = coords[axis] - start\n", "at = coords[axis]\n",
    ),
    Fault(
        "a pad is 0 whatever its value", PRIMITIVES,
        "return em.read(x, coords, pad=number)", "return em.read(x, coords, pad=0)",
    ),
    Fault(
        "the maximum begins at 0", PRIMITIVES,
        '"max": dtype.lowest, "min"', '"max": 0, "min"',
    ),
    Fault(
        "what hangs over a row is folded as well", PRIMITIVES,
        "return em.select(em.within([(k, total)]), x, "
        "Piece(dtype, splat=identity_of(fn, dtype)))",
        "return x",
    ),
    Fault(
        "the first of equal extremes for the last", PRIMITIVES,
        'em.reduce("max" if last else "min", at, axis)', 'em.reduce("min", at, axis)',
    ),
    Fault(
        "an exclusive running sum from the wrong side", PRIMITIVES,
        "before = k + 1 if reverse else k - 1", "before = k - 1",
    ),
    Fault(
        "a window without its dilation", PRIMITIVES,
        "c * stride + t * dilation - low", "c * stride + t - low",
    ),
    Fault(
        "negative indices count from the start", PRIMITIVES,
        'found = em.map("select", negative, wrapped, found)',
        'found = em.map("abs", found)',
    ),
    Fault(
        "the last update of a scatter is dropped", "tilegen/emit/scatter.py",
        "em.loop(0, indices.type.size, 1, [start], body)",
        "em.loop(0, indices.type.size - 1, 1, [start], body)",
    ),
    Fault(
        "equal keys are sorted backwards", "tilegen/emit/sort.py",
        'earlier = em.map("lt", em.index_piece(j)', 'earlier = em.map("gt", em.index_piece(j)',
    ),
    Fault(
        "half of a tile is stored", MAP,
        "return start + em.axis(block) if name else start",
        "return start + em.axis(-(-block // 2)) if name else start",
    ),
    Fault(
        "a map's rows have no bound", MAP,
        "guards = [(row, rows), (at[last], extents[last])]",
        "guards = [(at[last], extents[last])]",
    ),
    Fault(
        "a row kernel's rows have no bound", REDUCE,
        "guards: list[Guard] = [(row, extents[0]), (column, extents[2])]",
        "guards: list[Guard] = [(column, extents[2])]",
    ),
    Fault(
        "a column cut out of rows keeps its own bounds", REDUCE,
        "kept = [guard for guard in more if not guard[0].axes() & along]", "kept = list(more)",
    ),
    Fault(
        "a store has the bounds of its view alone", SPACE,
        "self.memory.access(value, coords, tuple(dict.fromkeys(guards)), dtype)",
        "self.memory.access(value, coords, (), dtype)",
    ),
    Fault(
        "a wider bound stands for a narrow one", MEMORY,
        "if at == expression and certain(limit - dim):", "if at == expression:",
    ),
    Fault(
        "operands of a map are swapped", PRIMITIVES,
        "em.map(node.op, *(em.tile(operand, coords) for operand in node.inputs))",
        "em.map(node.op, *(em.tile(operand, coords) for operand in node.inputs[::-1]))",
    ),
    Fault(
        "a map keeps the bounds of all its operands", PLACEMENT,
        "# coordinates.\n            places[node.output] = coords, guards",
        "# coordinates.\n            places[node.output] = coords, "
        "[g for v in node.inputs if v in places for g in places[v][1]]",
    ),
    Fault(
        "a product reads past its last k", CONTRACTION,
        "em.load_guards = [] if divides(depth, total) else [(k, total)]", "em.load_guards = []",
    ),
    Fault(
        "a product leaves out the last block of k", CONTRACTION,
        "results = em.loop(0, total, depth, [*inits, *beside], body)",
        "results = em.loop(0, total - 1, depth, [*inits, *beside], body)",
    ),
    Fault(
        "parts of a concat behind a matmul overlap", PLACEMENT,
        "shifted = (*coords[:axis], coords[axis] + start, *coords[axis + 1 :])",
        "shifted = coords",
    ),
    Fault(
        "a convolution without its padding", CONV,
        "o * stride + t * step - low for", "o * stride + t * step for",
    ),
    Fault(
        "groups of a convolution read the first one's channels", CONV,
        "conv.source(pixel, tap, group * conv.channels + c)", "conv.source(pixel, tap, c)",
    ),
    Fault(
        "a causal mask hides the last key", MASKS,
        "minimum(stop, most + 1)", "minimum(stop, most)",
    ),
)  # fmt: skip
PARTITIONER = (
    Fault(
        "a turned tensor is probed by the inverse order", "partition/positions.py",
        'coordinates[node.attrs["perm"].index(axis)]', 'coordinates[node.attrs["perm"][axis]]',
    ),
    Fault(
        "values that do not line up are fused", "partition/grouping.py",
        "if held is not where and (where is None or not np.array_equal(held, where)):",
        "if held is not where and where is None:",
    ),
    Fault(
        "an epilogue may close a cycle", "partition/epilogue.py",
        "if not isinstance(found, Misfit) and grouping.closes_cycle(node, group, more):",
        "if False:",
    ),
    Fault(
        "rows take maps of any size", "partition/rows.py",
        "if not _sizes_fit(rows, maps):", "if False:",
    ),
    Fault(
        "reductions of other rows are joined", "partition/rows.py",
        "if group.base is not None and not np.array_equal(where, group.base):", "if False:",
    ),
    Fault(
        "siblings may depend on each other", "partition/siblings.py",
        "return not other.needs.may_include(a)", "return True",
    ),
    Fault(
        "attention hides scores that are read elsewhere", "partition/attention.py",
        "if node.output in place.outputs or any(user not in inside for user in users):",
        "if False:",
    ),
    Fault(
        "merged products have each other's columns", "partition/passes/merge_matmuls.py",
        "values[branch.result] = _slice(graph, out, start, branch)",
        "values[branch.result] = _slice(graph, out, max(0, start - 1), branch)",
    ),
    Fault(
        "kernels run in the order of the graph", "partition/finish.py",
        "enumerate(ordered(groups, before, key))",
        "enumerate(sorted(groups, key=lambda group: min(map(grouping.position, group.nodes))))",
    ),
    Fault(
        "values of each query are taken for shared ones", "partition/attention.py",
        "if misfit is None and _values_by_query(qk, keys, pv, side, place):", "if False:",
    ),
    Fault(
        "the halves of rotated heads are swapped", "partition/passes/rotate_in_place.py",
        "{(0, half): 0, (half, 2 * half): 1}", "{(0, half): 1, (half, 2 * half): 0}",
    ),
    Fault(
        "of two factors one is lost", "partition/passes/hoist_scales.py",
        "factor *= scalar", "factor = scalar",
    ),
    Fault(
        "parts of a product have the first one's bias", "partition/passes/split_matmuls.py",
        "bias[start:limit]", "bias[: limit - start]",
    ),
)  # fmt: skip
FAULTS = EMITTERS + PARTITIONER
QUICK = (
    "half of a tile is stored", "a slice's offset is lost",
    "a concat takes one element too many",
)  # fmt: skip
"""Those that a test in the suite runs."""
