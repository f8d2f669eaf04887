"""Nested tuples, lists, dicts and dataclasses of arrays, taken apart and put together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast


@dataclass(frozen=True)
class Tree:
    """The shape of a nest; hashable. kind: "leaf", "none", or the container's type."""

    kind: Hashable
    keys: tuple[Hashable, ...] = ()
    children: tuple[Tree, ...] = ()


_LEAF, _NONE = Tree("leaf"), Tree("none")


def flatten(nest: Any) -> tuple[list[Any], Tree]:
    """The leaves in order, and the tree that `unflatten` puts them into."""
    leaves: list[Any] = []
    return leaves, _flatten(nest, leaves)


def _flatten(nest: Any, leaves: list[Any]) -> Tree:
    if nest is None:
        return _NONE
    if isinstance(nest, dict):
        children = tuple(_flatten(part, leaves) for part in nest.values())
        return Tree(dict, tuple(nest), children)
    if isinstance(nest, tuple | list):
        children = tuple(_flatten(part, leaves) for part in nest)
        return Tree(type(nest), (), children)
    if is_dataclass(nest) and not isinstance(nest, type) and not hasattr(nest, "dtype"):
        parts = {field.name: getattr(nest, field.name) for field in fields(nest)}
        children = tuple(_flatten(part, leaves) for part in parts.values())
        return Tree(type(nest), tuple(parts), children)
    leaves.append(nest)
    return _LEAF


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    return _unflatten(tree, iter(leaves))


def _unflatten(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree.kind == "leaf":
        return next(leaves)
    if tree.kind == "none":
        return None
    parts = [_unflatten(child, leaves) for child in tree.children]
    if tree.kind is dict:
        return dict(zip(tree.keys, parts, strict=True))
    container: Any = tree.kind
    if is_dataclass(container):
        made: Any = object.__new__(cast(type[Any], container))
        for name, part in zip(tree.keys, parts, strict=True):
            object.__setattr__(made, str(name), part)
        return made
    return container(*parts) if hasattr(container, "_fields") else container(parts)


def names(tree: Tree, name: str) -> Iterator[str]:
    """A name for each leaf: its path."""
    if tree.kind == "leaf":
        yield name
        return
    keys = tree.keys or range(len(tree.children))
    for key, child in zip(keys, tree.children, strict=True):
        yield from names(child, f"{name}.{key}")
