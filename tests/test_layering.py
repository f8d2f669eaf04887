"""The rooms of fuser/ and the imports between them: they run down, and never in a circle."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
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
GPU = "backend.nvptx."
MAX_ATTRIBUTES = 20


@functools.cache
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


# what functions of the GPU back end are passed ----------------------------------------------------


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


@functools.cache
def scope(name: str) -> dict[str, tuple[str, str]]:
    """The classes that a module names, its own and imported ones, as (module, class)."""
    found = {
        alias.asname or alias.name: (node.module.removeprefix("fuser."), alias.name)
        for node in ast.walk(tree(name))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    own = [node.name for node in tree(name).body if isinstance(node, ast.ClassDef)]
    return found | {each: (name, each) for each in own}


def class_of(name: str, at: ast.expr) -> tuple[str, str] | None:
    """The class that an expression of a module names, with the module that defines it."""
    match at:
        case ast.Name(id=known):
            return scope(name).get(known)
        case ast.Attribute(value=ast.Name(id=module), attr=known):
            above, within = scope(name).get(module, ("", ""))
            return f"{above}.{within}", known
        case ast.Subscript(value=generic):
            return class_of(name, generic)
    return None


def declared(node: ast.ClassDef) -> set[str]:
    """Fields, properties, and what methods assign to `self`."""
    fields = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    properties = {
        item.name
        for item in methods
        if {"property", "cached_property"} & {ast.unparse(by) for by in item.decorator_list}
    }
    assigned = {at.attr for item in methods for at in stores(item) if is_self(at.value)}
    return fields | properties | assigned


def attributes(module: str, name: str) -> set[str]:
    """The public attributes of a class, those of its bases included; methods do not count."""
    if module not in modules():
        return set()
    nodes = [node for node in tree(module).body if isinstance(node, ast.ClassDef)]
    node = next((node for node in nodes if node.name == name), None)
    if node is None:
        return set()
    found = declared(node)
    for base in node.bases:
        known = class_of(module, base)
        found |= attributes(*known) if known is not None else set()
    return {each for each in found if not each.startswith("_")}


def stores(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that code assigns, `setattr` included."""
    for at in ast.walk(node):
        match at:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield at
            case ast.Call(func=ast.Name(id="setattr"), args=[of, *_]):
                yield ast.copy_location(ast.Attribute(of, "setattr", ast.Store()), at)


def is_self(at: ast.expr) -> bool:
    return isinstance(at, ast.Name) and at.id in ("self", "cls")


def annotated(node: ast.AST) -> Iterator[ast.expr]:
    """What annotates the parameters of functions, and what is inside of that."""
    for at in ast.walk(node):
        if isinstance(at, ast.arg) and at.annotation is not None:
            yield from (part for part in ast.walk(at.annotation) if isinstance(part, ast.expr))


def test_functions_of_the_gpu_back_end_take_small_objects() -> None:
    """No parameter is of a class with more than 20 public attributes: fields, properties and what
    methods assign to `self`, inherited ones included. Methods do not count."""
    gpu = [name for name in modules() if name.startswith(GPU)]
    named = {class_of(name, at) for name in gpu for at in annotated(tree(name))}
    passed = {found for found in named if found is not None and found[0].startswith(GPU)}
    sizes = {found: len(attributes(*found)) for found in passed}
    assert sizes["backend.nvptx.lowering.builder", "Builder"] > 10
    assert not {found: size for found, size in sizes.items() if size > MAX_ATTRIBUTES}


def test_attributes_are_assigned_where_their_class_is() -> None:
    """In the GPU back end, only the module of a class assigns attributes of its objects. `self` has
    its class there; another object is a local name, and its class, in the same module, is told by
    the attribute."""
    foreign = []
    for name in modules():
        if name.startswith(GPU):
            classes = [node for node in ast.walk(tree(name)) if isinstance(node, ast.ClassDef)]
            own = set().union(*map(declared, classes))
            foreign += [
                f"{name}:{at.lineno}: {ast.unparse(at)}"
                for at in stores(tree(name))
                if not is_self(at.value) and not (isinstance(at.value, ast.Name) and at.attr in own)
            ]
    assert not foreign
