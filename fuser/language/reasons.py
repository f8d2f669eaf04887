"""Why a kernel is compiled again: what differs between the arguments of two launches, in words."""

from __future__ import annotations

from collections.abc import Mapping

from fuser.language.compile import ArgumentClass, ArrayClass, Fixed, FloatClass, IntegerClass


def spoken(kind: ArgumentClass) -> str:
    """A class of arguments."""
    match kind:
        case ArrayClass():
            text = f"an array of {kind.element} at a multiple of {kind.align} bytes"
            text += ", of more than 2^31 bytes" if kind.large else ""
            text += f", which may overlap others (group {kind.alias})" if kind.alias else ""
            return text + (", read only" if kind.const else "")
        case IntegerClass():
            if not kind.by:
                return f"an {kind.dtype} of any value"
            if kind.by == 1:
                return f"an {kind.dtype} of 2 and more, no multiple of 16 from 32 on"
            return f"an {kind.dtype} that is a multiple of {kind.by}, from {2 * kind.by} on"
        case FloatClass():
            return f"an {kind.dtype}"
        case Fixed():
            return f"{kind.value!r}, compiled in"
        case tuple():
            return f"({', '.join(map(spoken, kind))})"
    return str(kind)


def changes(old: Mapping[str, ArgumentClass], new: Mapping[str, ArgumentClass]) -> list[str]:
    """What of each argument differs."""
    found = []
    for name, kind in new.items():
        before = old.get(name)
        if before is not None and before != kind:
            found.append(f"{name} is {_difference(before, kind)}")
    return found


def _difference(old: ArgumentClass, new: ArgumentClass) -> str:
    """What the new class is, and what the old one was, where they differ."""
    if isinstance(old, ArrayClass) and isinstance(new, ArrayClass):
        parts: list[tuple[str, str]] = []
        if old.element != new.element:
            parts.append((f"an array of {new.element}", f"of {old.element}"))
        if old.align != new.align:
            parts.append((f"at a multiple of {new.align} bytes", f"of {old.align}"))
        if old.large != new.large:
            sizes = {True: "of more than 2^31 bytes", False: "of less than 2^31 bytes"}
            parts.append((sizes[new.large], sizes[old.large]))
        if old.alias != new.alias:
            overlap = {True: "in memory that others share", False: "in memory of its own"}
            parts.append((overlap[bool(new.alias)], overlap[bool(old.alias)]))
        return ", ".join(f"{now} (was {before})" for now, before in parts) or spoken(new)
    return f"{spoken(new)} (was {spoken(old)})"
