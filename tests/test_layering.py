"""The rooms of fuser/ and the imports between them: they run down, and never in a circle."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import networkx as nx

import fuser

ROOT = Path(fuser.__file__).parent
LEVELS = (
    ("errors",), ("dtypes",), ("base",), ("graph",),
    ("partition",), ("tilegen",), ("backend",), ("runtime",), ("report",), ("pipeline",),
    ("language",), ("triton",), ("frontends",), ("serve",), ("ray",), ("cli",),
    ("onnx_backend", "onnxruntime", "__init__", "__main__"),
)  # fmt: skip
"""From the bottom: what a room may import lies below it, in its own level or in itself."""
MOST_ENTRIES = 21
FRONT_ENDS = ("onnx", "torch", "numpy")


def modules() -> dict[str, Path]:
    """Every module by its dotted name without "fuser."."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        found[name] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a module imports, wherever in it: in functions, under TYPE_CHECKING."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            # `from fuser.graph import ir` is an import of fuser.graph.ir
            inner = [name for name in names[1:] if name.removeprefix("fuser.") in known]
            found |= set(inner) if len(inner) == len(names) - 1 else {*inner, node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    found = {name.removeprefix("fuser.") for name in found if name.startswith("fuser.")}
    return {name for name in found if name in known}


@functools.cache
def graph() -> nx.DiGraph[str]:
    known = modules()
    edges: nx.DiGraph[str] = nx.DiGraph()
    edges.add_nodes_from(known)
    for name, path in known.items():
        edges.add_edges_from((name, other) for other in imports(path, known) if other != name)
    return edges


def room(name: str) -> str:
    return name.split(".")[0]


def test_a_listing_shows_the_rooms() -> None:
    entries = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert len(entries) <= MOST_ENTRIES
    rooms = {entry.removesuffix(".py") for entry in entries} - {"py.typed"}
    assert rooms == {name for level in LEVELS for name in level}


def test_imports_run_down() -> None:
    level = {name: number for number, names in enumerate(LEVELS) for name in names}
    up = [
        f"{a} imports {b}"
        for a, b in graph().edges
        if room(a) != room(b) and level[room(b)] >= level[room(a)]
    ]
    assert not up


def test_front_ends_do_not_know_each_other() -> None:
    across = []
    for a, b in graph().edges:
        ends = [n.split(".")[1] for n in (a, b) if room(n) == "frontends" and "." in n]
        if len(ends) == 2 and ends[0] != ends[1] and set(ends) <= set(FRONT_ENDS):
            across.append(f"{a} imports {b}")
    assert not across


def test_no_module_is_in_a_circle() -> None:
    circles = [
        sorted(names) for names in nx.strongly_connected_components(graph()) if len(names) > 1
    ]
    assert not circles
