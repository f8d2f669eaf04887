"""What the lowering of a kernel knows is changed by its own methods only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from fuser.backend import cpu

FOLDER = Path(cpu.__file__).parent


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that statements assign, also as parts of targets, or delete."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node


def of_a_lowering(node: ast.Attribute) -> bool:
    """Whether it is an attribute of `low`, or of something's `low`."""
    owner = node.value
    name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
    return name == "low"


def test_what_counts_as_an_assignment() -> None:
    source = "low.a = 1\nself.low.b += 1\nx, low.c = y\ndel low.d\nself.e = low.f\nlow.g[0] = 1"
    found = [node.attr for node in assigned(ast.parse(source)) if of_a_lowering(node)]
    assert sorted(found) == ["a", "b", "c", "d"]


def test_no_module_assigns_attributes_of_the_lowering() -> None:
    trees = {path: ast.parse(path.read_text()) for path in FOLDER.rglob("*.py")}
    users = [
        path for path, tree in trees.items()
        if any(isinstance(node, ast.arg) and node.arg == "low" for node in ast.walk(tree))
    ]  # fmt: skip
    assert len(users) > 10
    found = {
        f"{path.relative_to(FOLDER)}:{node.lineno}"
        for path, tree in trees.items()
        for node in assigned(tree)
        if of_a_lowering(node)
    }
    assert not found
