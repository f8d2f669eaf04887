"""A graph that Dynamo captured, as functional ATen operators, for inference.

    %a = linear(%x, %w)                      %a = mm(view(%x), permute(%w)), ...
    index_copy_(%cache, 2, %at, %a)    =>    %cache_1 = index_put(%cache, [None, None, %at], %a)
    %y = cache.sum(1)                        %y = sum(%cache_1)

AOTAutograd does that by running the whole program twice with tensors that hold no values, layer by
layer. Here a call is traced alone, and once: where the same function is called again with the same
numbers on tensors of the same shapes, strides and dtypes, what it became is repeated. The work is
that of the different calls of a program, however many layers they are in.

What it needs to know beyond a single call is which tensors share memory. Where a program changes a
tensor and goes on with another view of it, returns what an argument holds, or does what is not
known from the call alone (random numbers, autocast, subclasses of tensors, open sizes), the answer
is a `Declined`, and AOTAutograd has the program.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fuser.frontends.torch.handed import Functional
from fuser.frontends.torch.tensors import is_tensor, storage_of

_PLAIN = (type(None), bool, int, float, complex, str, type(Ellipsis))
"""Arguments that are compared by type and text."""
_NAMED = ("dtype", "device", "layout", "memory_format")
"""Those of torch, by their text."""
_SEQUENCES = (list, tuple)
_OF_STORAGE = ("aten.as_strided", "aten.set_", "aten.resize_")


@dataclass(frozen=True)
class Declined:
    """Why a program is left to AOTAutograd."""

    reason: str


@dataclass(frozen=True)
class Captured:
    """module: functional operators with the program's arguments; nodes have the meta "val". Its
    first results are the new values of the arguments at the places `changed`, the others those of
    the program. static: the places of arguments that come again: parameters, and buffers."""

    module: Functional
    changed: tuple[int, ...]
    static: tuple[int, ...]


def capture(module: Any, decompositions: Mapping[Any, Callable[..., Any]]) -> Captured | Declined:
    """What a GraphModule with Dynamo's "example_value"s computes where no gradients are wanted."""
    try:
        return _Capture(module, decompositions).run()
    except _Unknown as unknown:
        return Declined(str(unknown))


class _Unknown(Exception):
    """A program that cannot be captured here."""


@dataclass(eq=False)
class _Value:
    """A tensor of the program. node: what computes it now, fake: a tensor like it without values,
    like: what a call can know of it. storage: the memory it lies in, and how often that had changed
    when the value was made."""

    node: Any
    fake: Any
    like: Hashable
    storage: int
    changes: int = 0


@dataclass(frozen=True)
class _Made:
    """A result of a call: the operand that it is, or a node of the template in the memory of an
    operand (None: its own)."""

    node: Any
    operand: int | None
    is_operand: bool


@dataclass(frozen=True)
class _Template:
    """What a call becomes. nodes: functional operators in order; their placeholders: `operands`.
    result: the nest of the results, tensors as `_Made`. changed: operands that it changes, with the
    nodes of their new values."""

    operands: tuple[Any, ...]
    nodes: tuple[Any, ...]
    result: Any
    changed: tuple[tuple[int, Any], ...] = ()


@dataclass
class _Capture:
    module: Any
    decompositions: Mapping[Any, Callable[..., Any]]
    templates: dict[Hashable, _Template] = field(default_factory=dict)
    found: dict[Any, Any] = field(default_factory=dict)  # of each node the nest of its values
    changes: dict[int, int] = field(default_factory=dict)  # of each storage

    def run(self) -> Captured:
        import torch

        if torch.is_grad_enabled() or torch._C._is_any_autocast_enabled():
            raise _Unknown("gradients, or autocast")
        self.graph = torch.fx.Graph()
        self.fresh = itertools.count()
        given = self.module.graph.find_nodes(op="placeholder")
        examples = [node.meta.get("example_value") for node in given]
        self.mode: Any = torch._guards.detect_fake_mode(examples)
        if self.mode is None:
            raise _Unknown("no fake tensors")
        inputs: list[_Value] = []
        places: list[Any] = []
        storages: dict[int, int] = {}
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.found[node] = value = self._input(node, storages)
                inputs.append(value)
                places.append(value.node)
            elif node.op in ("call_function", "call_method"):
                if node.target is not torch._C._log_api_usage_once:
                    self.found[node] = self._call(node)
            elif node.op == "output":
                return self._finish(node.args[0], inputs, places)
            else:
                raise _Unknown(f"{node.op} of {node.target}")
        raise _Unknown("no output")

    def _input(self, node: Any, storages: dict[int, int]) -> _Value:
        example = node.meta.get("example_value")
        if not is_tensor(example):
            raise _Unknown(f"argument {node.name} is a {type(example).__name__}")
        made = self.graph.placeholder(node.name)
        made.meta["val"] = example
        storage = storages.setdefault(storage_of(example), next(self.fresh))
        return _Value(made, example, _like(example), storage)

    def _finish(self, results: Any, inputs: list[_Value], places: list[Any]) -> Captured:
        if not isinstance(results, _SEQUENCES):
            raise _Unknown("results that nest")
        returned: list[_Value] = []
        taken = {value.storage for value in inputs}
        for node in results:
            value = self.found.get(node)
            if not isinstance(value, _Value):
                raise _Unknown("a result that is no tensor")
            returned.append(value)
            self._check(value)
            if _lies(value.node.meta["val"]) != _lies(value.fake):
                raise _Unknown("a result whose new value lies otherwise in memory")
            if value.storage in taken:
                raise _Unknown("a result that shares memory with an argument or another result")
            taken.add(value.storage)
        storages = [value.storage for value in inputs]
        changed = []
        for place, value in enumerate(inputs):
            if value.node is not places[place]:
                changed.append(place)
            elif not self.changes.get(value.storage):
                continue
            if value.changes != self.changes[value.storage] or storages.count(value.storage) > 1:
                raise _Unknown("an argument is changed by way of another tensor")
        first = [inputs[place].node for place in changed]
        self.graph.output((*first, *(value.node for value in returned)))
        self.graph.eliminate_dead_code()
        return Captured(Functional(self.graph), tuple(changed), _static(self.module))

    def _check(self, value: _Value) -> None:
        """Raise where the memory of a value was changed by way of another one since it was made."""
        if value.changes != self.changes.get(value.storage, 0):
            raise _Unknown("a tensor is read whose memory was changed by way of another one")

    def _call(self, node: Any) -> Any:
        nest = self._resolve(node.args), self._resolve(node.kwargs)
        met: dict[_Value, int] = {}
        key = node.op, node.target, _key(nest, met)
        operands = list(met)
        for value in operands:
            self._check(value)
        template = self.templates.get(key)
        if template is None:
            template = self.templates[key] = self._trace(node, nest, operands)
        return self._repeat(template, operands)

    def _trace(self, node: Any, nest: Any, operands: Sequence[_Value]) -> _Template:
        call = node.target if node.op == "call_function" else _method(node.target)
        try:
            return _trace(call, nest, operands, self.mode, self.decompositions)
        except _Unknown:
            raise
        except Exception as error:  # AOTAutograd may know better
            raise _Unknown(f"{node.target} alone: {error!r}") from error

    def _resolve(self, nest: Any) -> Any:
        """Arguments, nodes replaced by what they are."""
        kind = type(nest).__name__
        if kind == "Node":
            if nest not in self.found:
                raise _Unknown(f"{nest.name} has no value")
            return self.found[nest]
        if isinstance(nest, _SEQUENCES):
            parts = [self._resolve(part) for part in nest]
            return tuple(parts) if isinstance(nest, tuple) else parts
        if isinstance(nest, dict):
            return {name: self._resolve(part) for name, part in nest.items()}
        if isinstance(nest, slice):
            return slice(*map(self._resolve, (nest.start, nest.stop, nest.step)))
        return nest

    def _repeat(self, template: _Template, operands: Sequence[_Value]) -> Any:
        """The nodes of a template once more, for these operands."""
        made = {
            at: value.node for at, value in zip(template.operands, operands, strict=True)
        }  # fmt: skip
        for node in template.nodes:
            made[node] = copy = self.graph.node_copy(node, made.__getitem__)
            copy.meta = {"val": node.meta.get("val")}
        for place, node in template.changed:
            value = operands[place]
            self._change(value, [other for other in operands if other is not value])
            value.node = made[node]
        return self._results(template.result, operands, made)

    def _change(self, value: _Value, others: Sequence[_Value]) -> None:
        if any(other.storage == value.storage for other in others):
            raise _Unknown("a tensor is changed by what shares its memory")
        value.changes = self.changes[value.storage] = self.changes.get(value.storage, 0) + 1

    def _results(self, nest: Any, operands: Sequence[_Value], made: Mapping[Any, Any]) -> Any:
        if isinstance(nest, _Made):
            if nest.operand is not None and nest.is_operand:
                return operands[nest.operand]
            fake = nest.node.meta["val"]
            storage = next(self.fresh) if nest.operand is None else operands[nest.operand].storage
            changes = self.changes.get(storage, 0)
            return _Value(made[nest.node], fake, _like(fake), storage, changes)
        if isinstance(nest, _SEQUENCES):
            return tuple(self._results(part, operands, made) for part in nest)
        return nest


def _trace(
    call: Callable[..., Any], nest: Any, operands: Sequence[_Value], mode: Any,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> _Template:  # fmt: skip
    """One call, traced with tensors of its own, which share no memory."""
    import torch
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx

    with mode:
        fakes = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
            for x in (value.fake for value in operands)
        ]
    results: list[Any] = []

    def function(*tensors: Any) -> Any:
        args, kwargs = _filled(nest, dict(zip(operands, tensors, strict=True)))
        results[:] = [call(*args, **kwargs)]
        return list(_tensors(results[0]))

    def traced(of: Callable[..., Any]) -> list[Any]:
        with mode, enable_python_dispatcher():
            return list(make_fx(of, decomposition_table=dict(decompositions))(*fakes).graph.nodes)

    nodes = traced(function)
    described = _described(results[0], fakes)
    if any(_like(fake) != value.like for fake, value in zip(fakes, operands, strict=True)):
        raise _Unknown(f"{call} changes the shape of its argument")
    if any(_is_changing(node) for node in nodes):
        nodes = traced(torch.func.functionalize(function, remove="mutations"))
    inputs = nodes[: len(operands)]
    inner = nodes[len(operands) : -1]
    changed = {}
    for node in inner:
        if _is_changing(node):
            target, source, *more = node.args
            if str(node.target) != "aten.copy_.default" or target not in inputs or more:
                raise _Unknown(f"{call} changes memory in a way of its own")
            changed[inputs.index(target)] = source
    kept = [node for node in inner if not _is_changing(node)]
    made = _placed(described, iter(nodes[-1].args[0]))
    return _Template(tuple(inputs), tuple(kept), made, tuple(changed.items()))


def _static(module: Any) -> tuple[int, ...]:
    """The places of arguments of which Dynamo says that they come again."""
    notes = [
        node.meta.get("tensor_dict") or {} for node in module.graph.find_nodes(op="placeholder")
    ]
    return tuple(i for i, note in enumerate(notes) if note.get("_dynamo_static_input_type"))


def _is_changing(node: Any) -> bool:
    """Whether an operator writes to an operand. Raises for what may not be repeated."""
    import torch

    if node.op in ("placeholder", "output"):
        return False
    if node.target is operator.getitem:
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        raise _Unknown(f"{node.op} of {node.target}")
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        raise _Unknown(f"{node.target} draws random numbers")
    if str(node.target).startswith(_OF_STORAGE):
        raise _Unknown(f"{node.target} depends on where a tensor begins in its memory")
    return bool(node.target._schema.is_mutable)


def _described(result: Any, fakes: Sequence[Any]) -> Any:
    """The nest of a call's results: `_Made` without nodes in the place of tensors."""
    import torch

    if isinstance(result, torch.Tensor):
        storages = [storage_of(fake) for fake in fakes]
        at = storage_of(result)
        operand = storages.index(at) if at in storages else None
        return _Made(None, operand, operand is not None and _like(result) == _like(fakes[operand]))
    if isinstance(result, _SEQUENCES):
        return tuple(_described(part, fakes) for part in result)
    if not isinstance(result, _PLAIN):
        raise _Unknown(f"a result is a {type(result).__name__}")
    return result


def _placed(nest: Any, nodes: Iterator[Any]) -> Any:
    """The nest with these nodes, in order."""
    if isinstance(nest, _Made):
        return replace(nest, node=next(nodes))
    return tuple(_placed(part, nodes) for part in nest) if isinstance(nest, tuple) else nest


def _method(name: str) -> Callable[..., Any]:
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def _like(x: Any) -> Hashable:
    """What a call can know of a tensor beside its values."""
    import torch

    sizes = (*x.shape, *x.stride())
    if type(x).__name__ != "FakeTensor" or x.layout is not torch.strided:
        raise _Unknown(f"a tensor is a {type(x).__name__}, {x.layout}")
    if not all(type(size) is int for size in sizes) or x.is_conj() or x.is_neg():
        raise _Unknown("a tensor of open sizes, or not as it lies in memory")
    return x.ndim, *sizes, x.dtype, x.device


def _lies(x: Any) -> list[int]:
    """The strides that say where the elements of a tensor are."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1]


def _key(nest: Any, operands: dict[_Value, int]) -> Hashable:
    """Equal for arguments that one template serves. operands: the tensors met so far."""
    if isinstance(nest, _Value):
        number = operands.setdefault(nest, len(operands))
        return number, nest.like
    if isinstance(nest, _PLAIN):
        return type(nest), repr(nest)
    if isinstance(nest, _SEQUENCES):
        return type(nest), *(_key(part, operands) for part in nest)
    if isinstance(nest, dict):
        return dict, *((name, _key(part, operands)) for name, part in nest.items())
    if isinstance(nest, slice):
        return slice, *(_key(part, operands) for part in (nest.start, nest.stop, nest.step))
    if type(nest).__module__ == "torch" and type(nest).__name__ in _NAMED:
        return str(nest)
    raise _Unknown(f"an argument is a {type(nest).__name__}")


def _filled(nest: Any, tensors: Mapping[_Value, Any]) -> Any:
    """The nest with tensors in the place of values."""
    if isinstance(nest, _Value):
        return tensors[nest]
    if isinstance(nest, _SEQUENCES):
        return type(nest)([_filled(part, tensors) for part in nest])
    if isinstance(nest, dict):
        return {name: _filled(part, tensors) for name, part in nest.items()}
    if isinstance(nest, slice):
        return slice(*(_filled(part, tensors) for part in (nest.start, nest.stop, nest.step)))
    return nest


def _tensors(nest: Any) -> Iterator[Any]:
    import torch

    if isinstance(nest, torch.Tensor):
        yield nest
    elif isinstance(nest, _SEQUENCES):
        for part in nest:
            yield from _tensors(part)
