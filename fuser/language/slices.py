"""Constant indices and slices of tiles.

A tile that is an index expression stays one: coordinates along the axis are replaced. Of other
tiles the elements are gathered; one of a few by a fold in which all others are 0.
"""

from __future__ import annotations

from typing import TypeVar

from fuser.dtypes import i32
from fuser.language import pieces, shapes
from fuser.language.emitter import Emitter
from fuser.language.shapes import lift
from fuser.language.tensors import Bound, Choice, Pointer, Tensor
from fuser.tilegen.index import Atom, Axis, Index, Lookup, axis, lookup, scalar
from fuser.tilegen.value import Value

T = TypeVar("T", bound=Tensor | Pointer | Choice)
FEW = 8
"""Elements of an axis of which one is taken by a fold."""


def cut(e: Emitter, x: T, place: int, at: int | slice) -> T:
    """x at one place of an axis, which goes, or at some places."""
    extent = x.shape[place]
    if isinstance(at, slice):
        try:
            places = range(extent)[at]
        except (TypeError, ValueError) as error:
            e.fail(f"the slice {_text(at)} of a {x.type}: {error}")
        if not places:
            e.fail(
                f"the slice {_text(at)} of an axis of {extent} is empty",
                "tiles have at least one element",
            )
        if len(places) == extent and places.step == 1:
            return x
        chosen = _Cut(place, extent, places.start, places.step, len(places), False)
    else:
        if isinstance(at, bool) or not isinstance(at, int):
            e.fail(f"the index {at!r} of a {x.type}", "an index is a whole number")
        if not -extent <= at < extent:
            e.fail(f"the index {at} of an axis of {extent}")
        chosen = _Cut(place, extent, at % extent, 1, 1, True)
    return lift(x, lambda tile: _cut(e, tile, chosen))


def _text(at: slice) -> str:
    parts = ["" if end is None else str(end) for end in (at.start, at.stop, at.step)]
    return ":".join(parts if at.step is not None else parts[:2])


class _Cut:
    """Of an axis the places start, start + step..; drops: whether the axis goes."""

    def __init__(
        self, place: int, extent: int, start: int, step: int, count: int, drops: bool
    ) -> None:
        self.place, self.extent = place, extent
        self.start, self.step, self.count, self.drops = start, step, count, drops

    def shape(self, old: tuple[int, ...]) -> tuple[int, ...]:
        middle = () if self.drops else (self.count,)
        return (*old[: self.place], *middle, *old[self.place + 1 :])

    def renumbered(self, number: int) -> int:
        return number - (self.drops and number > self.place)

    def coordinate(self) -> Index:
        """The old coordinate along the axis."""
        if self.drops:
            return Index(self.start)
        return axis(self.place, self.count) * self.step + self.start

    def looked_up(self, place: int) -> _Cut:
        """The same cut of a tile that is looked up, which has the axis elsewhere, and loses it
        where one element is left."""
        drops = self.drops or self.count == 1
        return _Cut(place, self.extent, self.start, self.step, self.count, drops)


def _cut(e: Emitter, x: Tensor, chosen: _Cut) -> Tensor:
    shape = chosen.shape(x.shape)
    if x.literal is not None:
        return Tensor(x.dtype, shape, literal=x.literal, index=x.index)
    if x.index is not None:
        return Tensor(x.dtype, shape, index=_replaced(e, x.index, chosen))
    if x.bounds is not None:
        bounds = tuple(
            Bound(_replaced(e, b.below, chosen), _replaced(e, b.limit, chosen)) for b in x.bounds
        )
        rest = None if x.rest is None else _cut(e, x.rest, chosen)
        return Tensor(x.dtype, shape, bounds=bounds, rest=rest)
    if chosen.drops and chosen.extent <= FEW:
        order = [a for a in range(len(x.shape)) if a != chosen.place]
        last = shapes.permute(e, x, [*order, chosen.place])
        return pieces.select_last(e, last, chosen.start)
    return e.tensor(_gathered(e, e.value_of(x), chosen), x.dtype)


def _replaced(e: Emitter, expression: Index, chosen: _Cut) -> Index:
    """An expression over the old coordinates as one over the new."""

    def leaf(atom: Atom) -> Index | None:
        if isinstance(atom, Axis):
            if atom.axis == chosen.place:
                return chosen.coordinate()
            return axis(chosen.renumbered(atom.axis), atom.extent)
        if isinstance(atom, Lookup):
            value, axes = atom.value, list(atom.axes)
            if chosen.place in axes:
                here = axes.index(chosen.place)
                inner = chosen.looked_up(here)
                value = _gathered(e, value, inner)
                if inner.drops:
                    del axes[here]
            return lookup(value, map(chosen.renumbered, axes)) if axes else scalar(value)
        return None

    return expression.replace(leaf)


def _gathered(e: Emitter, value: Value, chosen: _Cut) -> Value:
    kept = tuple(
        chosen.count if number == chosen.place else dim for number, dim in enumerate(value.shape)
    )
    along = axis(chosen.place, chosen.count) * chosen.step + chosen.start
    made = e.builder.gather(value, e.builder.index(along, kept, i32), chosen.place)
    return e.builder.reshape(made, chosen.shape(value.shape)) if chosen.drops else made
