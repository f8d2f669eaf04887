"""The arguments of a call, taken apart."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from fuser.errors import UsageError
from fuser.frontends.numpy.objects import Reads, is_object, is_proxy
from fuser.frontends.numpy.specs import spec_of
from fuser.frontends.numpy.trace import ArraySpec, TracedArray
from fuser.frontends.numpy.trace import tree as trees


class Arguments:
    """The arguments of a call, taken apart: arrays by name, and what stays as it is."""

    def __init__(
        self, signature: inspect.Signature, static: frozenset[str],
        args: tuple[Any, ...], kwargs: dict[str, Any], method: bool = False,
    ) -> None:  # fmt: skip
        """method: the first argument is the object that the function is a method of."""
        try:
            self.bound = _bound(signature, args, kwargs)
        except TypeError as error:
            raise UsageError(f"the arguments do not fit {signature}: {error}") from None
        self.static: dict[str, Any] = {}
        self.objects: dict[str, Any] = {}
        self.reads: Reads | None = None
        dynamic: dict[str, Any] = {}
        first = next(iter(self.bound.arguments), None) if method else None
        for name, value in self.bound.arguments.items():
            if name in static:
                self.static[name] = value
            elif name == first or (type(value) is not np.ndarray and is_object(value)):
                self.objects[name] = value
            else:
                dynamic[name] = value
        self.leaves, self.tree = trees.flatten(dynamic)
        self.names = [
            label
            for key, child in zip(self.tree.keys, self.tree.children, strict=True)
            for label in trees.names(child, str(key))
        ]

    def specs(self) -> dict[str, ArraySpec]:
        return {
            name: spec_of(name, leaf) for name, leaf in zip(self.names, self.leaves, strict=True)
        }

    def key(self, specs: Mapping[str, ArraySpec] | None = None) -> Hashable:
        """What plans are kept by. specs: instead of those of the arguments."""
        try:
            # 1, 1.0 and True are equal, but not the same number.
            fixed = tuple((name, type(value), value) for name, value in self.static.items())
            hash(fixed)
        except TypeError as error:
            raise UsageError(f"static arguments must be hashable: {error}") from None
        specs = self.specs() if specs is None else specs
        return self.tree, tuple(specs.values()), fixed, tuple(self.objects)

    def arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """args and kwargs of the function, with other leaves in place of the arrays. What it reads
        of objects is noted in `reads`."""
        self.reads = Reads(self.objects)
        given = {
            **self.static,
            **trees.unflatten(self.tree, leaves),
            **{name: self.reads.proxy(name) for name in self.objects},
        }
        self.bound.arguments = {name: given[name] for name in self.bound.arguments}
        return self.bound.args, self.bound.kwargs

    def is_traced(self) -> bool:
        """Whether a recording calls: something is a traced array, or an object of one."""
        return any(isinstance(leaf, TracedArray) for leaf in self.leaves) or any(
            map(is_proxy, self.objects.values())
        )


def _bound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """`signature.bind`, which takes a while, only where not all arguments are given by position.
    Raises TypeError."""
    parameters = signature.parameters
    if not kwargs and len(args) == len(parameters):
        if all(p.kind <= p.POSITIONAL_OR_KEYWORD for p in parameters.values()):
            return inspect.BoundArguments(
                signature, OrderedDict(zip(parameters, args, strict=True))
            )
    return signature.bind(*args, **kwargs)
