"""Nested tuples, lists and dicts of arrays, taken apart and put together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


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
    leaves.append(nest)
    return _LEAF


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    return _unflatten(tree, iter(leaves))


def _unflatten(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree == _LEAF:
        return next(leaves)
    if tree == _NONE:
        return None
    parts = [_unflatten(child, leaves) for child in tree.children]
    if tree.kind is dict:
        return dict(zip(tree.keys, parts, strict=True))
    container: Any = tree.kind
    return container(*parts) if hasattr(container, "_fields") else container(parts)


def names(tree: Tree, name: str) -> Iterator[str]:
    """A name for each leaf: its path."""
    if tree == _LEAF:
        yield name
    keys = tree.keys or range(len(tree.children))
    for key, child in zip(keys, tree.children, strict=True):
        yield from names(child, f"{name}.{key}")
