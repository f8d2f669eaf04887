"""triton.compile: a kernel compiled from types instead of from the arguments of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fuser.errors import UsageError
from fuser.triton.compiled import CompiledKernel
from fuser.triton.driver import driver
from fuser.triton.parameters import SHORT_NAMES
from fuser.triton.targets import GPUTarget

if TYPE_CHECKING:  # the compiler loads where something is compiled
    from fuser.language.arguments import Arguments
    from fuser.language.compile import ArgumentClass

EXAMPLE = 1 << 20
"""An integer for arguments of which the type alone is known."""


class ASTSource:
    """A kernel, the types of its parameters (`{"x": "*fp32", "n": "i32"}`), and its constants."""

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
        plain = element.bits < 32 or element.kind == "uint"
        return IntegerClass(element, 0 if plain else 1), EXAMPLE


def _name_of(key: Any, names: list[str]) -> str:
    """A parameter, given by name, by position or by a path that begins with its position."""
    if isinstance(key, str):
        return key
    return names[key[0] if isinstance(key, tuple) else key]


def compile(src: Any, target: GPUTarget | None = None, options: Any = None) -> CompiledKernel:
    """Compile an ASTSource for a target, the current one by default; options: num_warps and so on.
    Raises LanguageError, and what compiling raises."""
    if not isinstance(src, ASTSource):
        raise UsageError(
            f"a {type(src).__name__} is no source to compile", hint="make an ASTSource of a kernel"
        )
    chosen = target or driver.active.get_current_target()
    fn = src.fn
    fn._check_parameters()
    given = dict(options or {})
    named = {name: None for name in fn.arg_names}
    _, settings = fn.bind((), {**named, **given})
    found = src.arguments()
    found.stand_in = "cuda" if chosen.backend == "cuda" else "cpu"
    variant = fn.variant(found, (1,), settings)
    return CompiledKernel(fn, variant, settings, chosen)
