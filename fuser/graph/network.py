"""Graphs of networkx: what `to_networkx` of graphs, partitions and plans is made with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuser.errors import UsageError

if TYPE_CHECKING:
    import networkx as nx


def new_network(name: str) -> nx.DiGraph[Any]:
    """An empty DiGraph of this name. Raises UsageError where networkx is not installed."""
    try:
        import networkx as nx  # a tenth of a second
    except ModuleNotFoundError:
        raise UsageError(
            "networkx is not installed", hint="pip install networkx; fuser-compiler brings it"
        ) from None
    return nx.DiGraph(name=name)
