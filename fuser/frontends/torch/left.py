"""Running in PyTorch what fuser does not compute: a graph, or single nodes between parts of it.

A kernel's results are row-major, where a graph may say otherwise. Before an operator runs that
reads the strides of its operands (`as_strided`, an operator of the user's own), tensors get those
that the graph says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fuser.frontends.torch.handed import Functional
from fuser.frontends.torch.split import Left, Part, Run, Split
from fuser.frontends.torch.tensors import is_tensor


def in_pytorch(module: Any) -> Run:
    """What runs a functional graph in PyTorch. Autocast has done its part in it."""
    import torch

    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        node.target = _without_strides(node.target)
    root = torch.nn.Module() if isinstance(module, Functional) else module
    compute = torch.fx.GraphModule(root, graph)
    placeholders = module.graph.find_nodes(op="placeholder")
    places = [(place, node.meta.get("val")) for place, node in enumerate(placeholders)]
    strided = [(place, value) for place, value in places if _strides(value) is not None]

    def run(arguments: list[Any]) -> Sequence[Any]:
        given = list(arguments)
        for place, value in strided:
            given[place] = as_declared(given[place], value)
        with torch._C._DisableAutocast():
            results: Sequence[Any] = compute.forward(*given)
            return results

    run._boxed_call = True  # type: ignore[attr-defined]  # takes a list
    return run


def as_declared(x: Any, declared: Any) -> Any:
    """A tensor with the strides that a graph says, copied where it has others."""
    strides = _strides(declared)
    if strides is None or not is_tensor(x) or x.shape != declared.shape:
        return x
    if all(a == b or n == 1 for a, b, n in zip(x.stride(), strides, x.shape, strict=True)):
        return x
    import torch

    if 0 in strides or 0 in x.shape:
        return x
    with torch.no_grad():
        made = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)
        return made.copy_(x.detach())


def _strides(value: Any) -> tuple[int, ...] | None:
    """The strides of a strided tensor whose sizes and strides are known; None for others."""
    if not is_tensor(value) or not hasattr(value, "stride") or str(value.layout) != "torch.strided":
        return None
    strides = tuple(value.stride())
    known = all(type(size) is int for size in (*value.shape, *strides))
    return strides if known else None


@dataclass(frozen=True)
class _Step:
    """run: from the values that it reads, by name; frees: the names of values read last."""

    run: Callable[[dict[str, Any]], None]
    frees: tuple[str, ...]


def run_split(found: Split, runs: Sequence[Run]) -> Run:
    """What runs a graph in parts: runs are those of its parts, in order."""
    import torch

    rest = iter(runs)
    made: list[tuple[Callable[[dict[str, Any]], None], set[str]]] = [
        (_part(step, next(rest)), {*step.inputs}) if isinstance(step, Part)
        else (_node(step), {*step.names.values()})
        for step in found.steps
    ]  # fmt: skip
    kept = {*found.fixed, *found.names.values()}
    steps: list[_Step] = []
    for run, reads in reversed(made):
        steps.append(_Step(run, tuple(sorted(reads - kept))))
        kept |= reads
    steps.reverse()

    def call(arguments: list[Any]) -> Sequence[Any]:
        values = {**found.fixed, **dict(zip(found.arguments, arguments, strict=True))}
        with torch._C._DisableAutocast():
            for step in steps:
                step.run(values)
                for name in step.frees:
                    del values[name]
        return [
            values[found.names[x]] if isinstance(x, torch.fx.Node) else x for x in found.results
        ]

    call._boxed_call = True  # type: ignore[attr-defined]  # takes a list
    return call


def _part(part: Part, compute: Run) -> Callable[[dict[str, Any]], None]:
    def run(values: dict[str, Any]) -> None:
        results = compute([values[name] for name in part.inputs])
        values.update(zip(part.outputs, results, strict=True))

    return run


def _node(step: Left) -> Callable[[dict[str, Any]], None]:
    import torch

    node, names, map_arg = step.node, step.names, torch.fx.node.map_arg
    target = _without_strides(node.target)

    def run(values: dict[str, Any]) -> None:
        given = {
            source: as_declared(values[name], source.meta.get("val"))
            for source, name in names.items()
        }  # fmt: skip
        args: Any = map_arg(node.args, given.__getitem__)
        kwargs: Any = map_arg(node.kwargs, given.__getitem__)
        values[step.result] = target(*args, **kwargs)

    return run


def _without_strides(target: Any) -> Any:
    """An operator that is the same for operands of other strides."""
    import torch

    aten = torch.ops.aten
    views = (aten.view.default, aten._unsafe_view.default)
    return aten.reshape.default if target in views else target
