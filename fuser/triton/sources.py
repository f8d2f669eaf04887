"""What triton.compile compiles: a kernel, the types of its parameters, its constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fuser.errors import UsageError
from fuser.triton.parameters import SHORT_NAMES, short_name

if TYPE_CHECKING:  # the compiler loads where something is compiled
    from fuser.language.arguments import Arguments
    from fuser.language.compile import ArgumentClass

EXAMPLE = 1 << 20
"""An integer for arguments of which the type alone is known."""


class ASTSource:
    """A kernel, the types of its parameters (`{"x": "*fp32", "n": "i32"}`), and its constants.

    attrs: what is known of parameters, by path from their position: `{(2,): [["tt.divisibility",
    16]]}` says that the third is a multiple of 16.
    """

    def __init__(
        self,
        fn: Any,
        signature: Mapping[str, str],
        constexprs: Mapping[Any, Any] | None = None,
        attrs: Mapping[Any, Any] | None = None,
    ) -> None:
        if not all(isinstance(name, str) for name in signature):
            raise TypeError("Signature keys must be string")
        self.fn, self.signature, self.name = fn, dict(signature), fn.__name__
        self.ext = "ttir"
        names = fn.arg_names
        self.constants = {_name_of(key, names): value for key, value in (constexprs or {}).items()}
        self.attrs = dict(attrs or {})

    @classmethod
    def of_launch(cls, fn: Any, classes: Mapping[str, ArgumentClass]) -> ASTSource:
        """What a launch with arguments of these classes is compiled from."""
        from fuser.language.compile import Fixed

        signature = {name: _short(kind) for name, kind in classes.items()}
        values = {n: kind.value for n, kind in classes.items() if isinstance(kind, Fixed)}
        return cls(fn, signature, values)

    def arguments(self) -> Arguments:
        """The arguments of a launch with these types."""
        from fuser.language.arguments import Arguments
        from fuser.language.compile import Fixed

        found = Arguments()
        for param in self.fn.params:
            name, kind = param.name, self.signature.get(param.name, "constexpr")
            if name in self.constants:
                found.classes[name] = Fixed(self.constants[name])
                found.leaves.append(self.constants[name])
            elif kind == "constexpr":
                if not param.has_default:
                    raise UsageError(f"{name} has no type and no value", hint="add it to signature")
                found.classes[name] = Fixed(param.default)
                found.leaves.append(param.default)
            else:
                made, leaf = self._class(name, kind)
                found.classes[name] = made
                found.leaves.append(leaf)
        return found

    def _class(self, name: str, kind: str) -> tuple[ArgumentClass, Any]:
        from fuser.language.compile import ArrayClass, FloatClass, IntegerClass

        short = kind.lstrip("*").removeprefix("k")
        element = SHORT_NAMES.get(short)
        if element is None:
            raise UsageError(
                f"{name} has the type {kind!r}", hint=f"one of {', '.join(SHORT_NAMES)}, or *type"
            )
        if kind.startswith("*"):
            return ArrayClass(element, 16, const=kind.startswith("*k")), None
        if element.is_floating():
            return FloatClass(element), 0.0
        if element.bits < 32 or element.kind == "uint":
            return IntegerClass(element, 0), EXAMPLE
        return IntegerClass(element, 16 if self._is_multiple(name) else 1), EXAMPLE

    def _is_multiple(self, name: str) -> bool:
        """Whether it is said to be a multiple of 16."""
        known = self.attrs.get((self.fn.arg_names.index(name),), ())
        return any(what == "tt.divisibility" and by % 16 == 0 for what, by in known)


def _short(kind: ArgumentClass) -> Any:
    """The short name of the type of a class; of a tuple the names in it."""
    from fuser.language.compile import ArrayClass, Fixed

    if isinstance(kind, tuple):
        return tuple(map(_short, kind))
    if isinstance(kind, Fixed):
        return "constexpr"
    name = short_name(kind.element if isinstance(kind, ArrayClass) else kind.dtype)
    return f"*{'k' if kind.const else ''}{name}" if isinstance(kind, ArrayClass) else name


def _name_of(key: Any, names: list[str]) -> str:
    """A parameter, given by name, by position or by a path that begins with its position."""
    if isinstance(key, str):
        return key
    return names[key[0] if isinstance(key, tuple) else key]
