"""Which primitives came from which call of a traced program: origins, and the source of a Graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from fuser.graph.builder import Builder
from fuser.graph.ir import SourceKind, SourceNode, Value

_T = TypeVar("_T")
_VIEWS = frozenset(("reshape", "constant"))
_CREATES = frozenset(("constant", "iota", "dims", "broadcast", "reshape"))


class Recorder:
    """Gives every outermost call a name and a `SourceNode`; calls within it belong to it."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._counts: Counter[str] = Counter()
        self._inside = False
        self._fixed: set[Value] = set()
        self._made_by: dict[Value, str] = {}

    def record(
        self,
        op_type: str,
        operands: Iterable[Value],
        call: Callable[[], _T],
        results: Callable[[_T], Iterable[Value]],
        name: str = "",
    ) -> _T:
        """What `call` returns; `results` finds the Values in it. name: `op_type` and a number,
        unless given."""
        if self._inside:
            return call()
        graph, before = self.builder.graph, len(self.builder.graph.nodes)
        if not name:
            self._counts[op_type] += 1
            name = f"{op_type}_{self._counts[op_type]}"
        self.builder.origin, self._inside = (name,), True
        try:
            result = call()
        finally:
            self.builder.origin, self._inside = (), False
        ops = {node.op for node in graph.nodes[before:]}
        read, made = dict.fromkeys(operands), dict.fromkeys(results(result))
        inputs, outputs = (tuple(value.type for value in values) for values in (read, made))
        # What only constants decide is computed once, when the graph is compiled.
        known = all(value.constant is not None or value in self._fixed for value in read)
        fixed = known and (bool(read) or ops <= _CREATES)
        if fixed:
            self._fixed.update(made)
        kind: SourceKind = "compute"
        if ops <= _VIEWS:
            kind = "view"
        elif fixed:
            kind = "constant"
        reads = dict.fromkeys(self._made_by[value] for value in read if value in self._made_by)
        self._made_by |= dict.fromkeys(made, name)
        graph.source.append(
            SourceNode(
                name, op_type, kind, inputs, outputs, tuple(reads),
                tuple(value.name for value in read), tuple(value.name for value in made),
            )
        )  # fmt: skip
        return result
