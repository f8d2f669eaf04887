"""Objects of libraries, as far as tests need them: lists and their iterators, numbers."""

from __future__ import annotations

from typing import Any

from tests.ort_operators.cases import NotPlain
from tests.ort_operators.scope import Function, Vector, convert


class Opaque:
    """An object whose methods do not matter."""


class ListPlace:
    def __init__(self, items: list[Any], at: int) -> None:
        self.items, self.at = items, at


def list_method(items: list[Any], name: str, arguments: list[Any]) -> Any:
    if name in ("push_back", "emplace_back", "insert") and len(arguments) == 1:
        element = getattr(items, "element", "")
        items.append(convert(arguments[0], element, {}) if element else arguments[0])
        return None
    if name == "insert" and isinstance(arguments[0], ListPlace) and len(arguments) == 3:
        place, first, last = arguments
        items[place.at : place.at] = first.items[first.at : last.at]
        return None
    if name in ("begin", "cbegin", "end", "cend"):
        return ListPlace(items, 0 if "begin" in name else len(items))
    if name in ("resize", "assign"):
        fill = arguments[1] if len(arguments) > 1 else 0
        kept = items[: arguments[0]] if name == "resize" else []
        items[:] = kept + [fill] * (arguments[0] - len(kept))
        return None
    if name == "clear":
        items.clear()
        return None
    known = {"size": lambda: len(items), "empty": lambda: not items, "data": lambda: items,
             "back": lambda: items[-1], "front": lambda: items[0], "reserve": lambda: None,
             "at": lambda: items[arguments[0]]}  # fmt: skip
    if name not in known:
        raise NotPlain(f"the method {name} of a list")
    return known[name]()


def deduced(name: str, function: Function, arguments: list[Any]) -> str:
    """A template parameter from the arguments: the element of a list, or a number's type."""
    for (kind, _, _), value in zip(function.parameters, arguments, strict=False):
        if name in kind.replace("<", " ").replace(">", " ").split():
            if isinstance(value, Vector) and value.element:
                return value.element
            if isinstance(value, float):
                return "float"
            if isinstance(value, bool):
                return "bool"
    raise NotPlain(f"the template parameter {name}")


def number(text: str) -> Any:
    plain = text.rstrip("uUlL")
    if plain.lower().startswith("0x"):
        return int(plain, 16)
    plain = plain.rstrip("fF") if not plain.lower().startswith("0x") else plain
    if any(letter in plain for letter in ".eE") or text[-1] in "fF":
        return float(plain)
    return int(plain, 8) if plain.startswith("0") and plain != "0" else int(plain)
