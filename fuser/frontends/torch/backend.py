"""PyTorch programs: `fuser.compile` of modules and exported programs, and `torch.compile`.

    compiled = fuser.compile(module, example_inputs=(x,))     # or an ExportedProgram, a GraphModule
    y = compiled(x)                                           # tensors in, tensors out

    fast = torch.compile(module, backend="fuser")

A plan is compiled for the shapes and dtypes of its inputs; others compile one more, and all are
kept. Sizes that PyTorch left open (torch.export's Dim, torch.compile's dynamic) stay open: kernels
serve ranges of them (pipeline/variants.py). Tensors on a GPU are read where they are, results are
made there, and both in the order of PyTorch's current stream. Parameters and buffers are constants
that share the tensors' memory where a kernel of the CPU reads them as they are; one that is changed
in place becomes an input. `changes.py` says which changes are noticed; a call that is like one
before costs the same however many parameters there are (`steady.py`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from fuser.base.limits import seldom_collected
from fuser.errors import DeviceError, UnsupportedError, UsageError, check_keywords
from fuser.frontends.torch.capture import Captured, Declined, capture
from fuser.frontends.torch.decompositions import decompositions, training_decompositions
from fuser.frontends.torch.direct import hands_on
from fuser.frontends.torch.exported import CompiledProgram
from fuser.frontends.torch.handed import Asked, Demand, Handed, hand_on
from fuser.frontends.torch.importer import check_operators, failed_node, without_handler
from fuser.frontends.torch.leaving import Leaving, alike, around_nodes, is_told, tell, whole_graph
from fuser.frontends.torch.left import in_pytorch, run_split
from fuser.frontends.torch.module import CompiledModule
from fuser.frontends.torch.program import FxProgram, Options
from fuser.frontends.torch.split import Part, split
from fuser.frontends.torch.views import lift_views
from fuser.frontends.torch.writes import check_writes

if "torch" in sys.modules:  # Dynamo reads a program before it calls the back end
    from fuser.frontends.torch import kernels  # noqa: F401  their launches are recorded

_log = logging.getLogger("fuser.compile")


def is_torch(model: object) -> bool:
    """Whether a model is one of PyTorch's: an ExportedProgram, a GraphModule or an nn.Module."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(model).__mro__}
    kinds = {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"}
    return bool(names & kinds)


def compile_torch(
    model: Any, example_inputs: Sequence[Any] | None, options: Options
) -> CompiledProgram | CompiledModule:
    """Compile a PyTorch model; with example inputs, at once for their shapes."""
    from fuser.frontends.torch import kernels  # noqa: F401  their launches are recorded

    compiled: CompiledProgram | CompiledModule
    if hasattr(model, "graph_signature"):
        compiled = CompiledProgram(model, options)
    else:
        compiled = CompiledModule(model, options)
    if example_inputs is not None:
        compiled.plan(*example_inputs)
    return compiled


# torch.compile ----------------------------------------------------------------------------------


def backend(
    module: Any, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, **_: Any
) -> Any:
    """What `torch.compile(m, backend="fuser")` calls with each graph that it captures.

    options: the fields of `Options`. An operator that cannot be compiled runs in PyTorch, and what
    is around it is compiled in parts; a warning says why: it is not supported, or there is a defect
    of fuser. A graph that writes to elements that share memory (`writes.py`) runs in PyTorch. In
    training the forward and the backward graph are compiled apart.
    """
    import torch

    from fuser.frontends.torch import kernels  # noqa: F401  their launches are recorded
    from fuser.frontends.torch.decompositions import replace_calls

    check_keywords("the backend fuser", options or (), [item.name for item in fields(Options)])
    chosen = Options(**(options or {}))
    with seldom_collected():
        try:
            check_writes(module)
        except UnsupportedError as error:
            tell(whole_graph({}, error), set())
            return module.forward
        replace_calls(module)
        found: Captured | Declined = Declined("gradients may be wanted")
        if not torch.is_grad_enabled():
            found = _captured(module)
        if isinstance(found, Captured):
            return _called(found, chosen)
        _log.info("AOTAutograd takes a graph of PyTorch apart: %s", found.reason)
        return _by_aot_autograd(module, example_inputs, chosen)


def _captured(module: Any) -> Captured | Declined:
    found = capture(module, decompositions())
    if isinstance(found, Captured):
        try:
            check_operators(found.module)
        except UnsupportedError as error:  # AOTAutograd may take them apart
            return Declined(str(error))
    return found


def _by_aot_autograd(module: Any, example_inputs: Sequence[Any], chosen: Options) -> Any:
    """For every program, and for those that train two graphs."""
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config

    from fuser.frontends.torch.draws import drawing_decompositions, number_draws
    from fuser.frontends.torch.partitioning import partition

    # An optimizer changes parameters with every step: in training they are inputs.
    training = replace(chosen, freeze=False)
    differentiated = torch.is_grad_enabled()
    whole: list[Any] = []  # a graph for inference

    def infer(graph: Any, inputs: Sequence[Any]) -> Any:
        number_draws(graph)
        run = _compile_traced(graph, chosen, "forward", compared=True)
        if getattr(run, "is_whole", False) and hands_on(_metadata(), graph, example_inputs):
            whole.append(run)
        return run

    compiler = aot_autograd(
        fw_compiler=lambda gm, inputs: _compile_traced(gm, training, "forward"),
        bw_compiler=lambda gm, inputs: _compile_traced(gm, training, "backward"),
        inference_compiler=infer,
        partition_fn=partition,
        decompositions={
            **(training_decompositions() if differentiated else decompositions()),
            **drawing_decompositions(),
        },
    )
    # A view that is kept would be written beside the tensor that it views. What elementwise
    # functions make of tensors that are kept is made again where a matmul of the backward pass
    # reads it, beside its own gradient.
    with config.patch(recompute_views=True, ban_recompute_materialized_backward=False):
        wrapped = compiler(module, example_inputs)
    return _spread(whole[0]) if whole else wrapped


def _spread(run: Any) -> Any:
    """As Dynamo calls it."""

    program = run.program

    def call(*arguments: Any) -> Any:
        only = program.only
        if only is not None and only[0](arguments):
            return only[1](arguments)
        return run(arguments)

    call.program = program  # type: ignore[attr-defined]
    call.is_direct = True  # type: ignore[attr-defined]
    return call


def _called(captured: Captured, options: Options) -> Any:
    """What runs a captured graph, as Dynamo calls it: arguments that the program changes are."""
    changed = captured.changed
    replaced = dict(enumerate(changed))
    run = _run(
        captured.module, options, "forward", captured.static, replaced, compared=True,
        asked=Asked(
            lambda place: Demand.VALUE if place in replaced else Demand.EXACT, replaced, changed
        ),
    )  # fmt: skip
    if not changed and getattr(run, "is_whole", False):
        return _spread(run)
    count = len(changed)

    def call(*arguments: Any) -> Any:
        results = run(arguments if count == 0 else list(arguments))
        late = [
            (arguments[place], result)
            for place, result in zip(changed, results, strict=False)
            if result is not arguments[place]
        ]
        if len(late) > 1:  # one of them may be what another is to be
            late = [(argument, result.clone()) for argument, result in late]
        for argument, result in late:
            argument.copy_(result)
        return results[count:]

    if hasattr(run, "program"):
        call.program, call.is_direct = run.program, True  # type: ignore[attr-defined]
    return call


def _metadata() -> Any:
    """What AOTAutograd found out about the program that is being compiled."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def _compile_traced(module: Any, options: Options, name: str, compared: bool = False) -> Any:
    """What runs a functional graph of AOTAutograd's. compared: see `_run`."""
    metadata = _metadata()
    if name != "forward" or metadata is None:
        dense = Asked(lambda place: Demand.DENSE)
        return _run(module, options, name, (), {}, compared, asked=dense)
    places = list(metadata.mutated_inp_runtime_indices)
    infos = [metadata.input_info[place] for place in places]
    # What is to get other strides as well is no result that kernels write where the argument is.
    moved = [info.mutates_metadata or info.mutates_storage_metadata for info in infos]
    replaced = {i: place for i, place in enumerate(places) if not moved[i]}
    count = len(places) + len(metadata.output_info) + metadata.num_intermediate_bases

    written = [place for place, info in zip(places, infos, strict=True) if info.mutates_data]

    def demand(place: int) -> Demand:
        return Demand.VALUE if place in replaced or place >= count else Demand.EXACT

    return _run(
        module, options, name, list(metadata.static_input_indices or ()),
        replaced if compared else {}, compared, asked=Asked(demand, replaced, written),
    )  # fmt: skip


def _run(
    module: Any, options: Options, name: str, static: Sequence[int], changed: Mapping[int, int],
    compared: bool, *, asked: Asked | None = None, told: set[str] | None = None,
) -> Any:  # fmt: skip
    """What runs a functional graph: takes a list of arguments, which it does not keep, and returns
    a list of results. static, changed: see `FxProgram`. compared: calls come with arguments of the
    shapes, dtypes and devices that the graph was captured with. asked: see `hand_on`. told: of what
    the user was warned.

    Nodes that cannot be compiled run in PyTorch, and the graph around them is compiled in parts. So
    it is in a forward graph and in its backward graph, whatever becomes of the other one: each
    computes what it says from tensors with the values and strides that it says."""
    told = set() if told is None else told
    try:
        lifted = lift_views(module)
        asked = (asked or Asked()).with_views(lifted)
        handed = hand_on(lifted.module, asked)
    except Exception as error:
        tell(whole_graph({}, error), told)
        return in_pytorch(module)
    instead: Any = None

    def around(left: Mapping[str, Leaving]) -> Any:
        return _around(handed, left, options, name, static, asked, told)

    def leave(error: Exception) -> Any:
        """What runs the graph from now on."""
        nonlocal instead
        nodes = {node.name: node for node in handed.module.graph.nodes}
        blamed = nodes.get(failed_node(error) or "")
        if blamed is None:
            tell(whole_graph({}, error), told)
            instead = in_pytorch(handed.module)
        else:
            among = alike(nodes.values(), blamed)
            instead = around({node.name: Leaving(node, error) for node in among})
        return instead

    program: FxProgram | None = None
    missing = without_handler(handed.module)
    if missing:
        instead = around({node.name: Leaving(node) for node in missing})
    else:
        try:
            program = FxProgram(
                handed.module, name, static, options, compared=compared, changed=changed,
                layouts=handed.layouts,
            )  # fmt: skip
        except _CALLERS:
            raise
        except Exception as error:
            leave(error)

    def run(arguments: Sequence[Any]) -> Any:
        given = lifted.given(arguments)
        if program is None or instead is not None:
            results = instead(given)
        else:
            call = program.steady(given)
            if call is None:
                try:
                    call = program.prepare(given)
                except _CALLERS:
                    raise
                except Exception as error:
                    call = leave(error)
            results = call(given)
        return results if handed.is_whole else handed.complete(results, given)

    if program is not None:
        run.program = program  # type: ignore[attr-defined]  # for tests and the curious
        run.handed = handed  # type: ignore[attr-defined]
        run.is_whole = handed.is_whole and lifted.make is None  # type: ignore[attr-defined]
    run._boxed_call = True  # type: ignore[attr-defined]  # takes a list
    return run


def _around(
    handed: Handed, left: Mapping[str, Leaving], options: Options, name: str,
    static: Sequence[int], asked: Asked, told: set[str],
) -> Any:  # fmt: skip
    """What runs a graph of which PyTorch has these nodes. See `_run`."""
    found = split(handed.module, left)
    if found is None:
        tell(whole_graph(left), told)
        return in_pytorch(handed.module)
    if is_told(left):
        tell(around_nodes(left), told)
    again = {found.arguments[place] for place in static}
    written = {found.arguments[place] for place in asked.written}
    demands: dict[str, Demand] = {}
    for place, node in enumerate(found.results):
        if node in found.names and place < len(handed.layouts):
            is_dense = handed.layouts[place] is None
            demands.setdefault(found.names[node], Demand.DENSE if is_dense else Demand.EXACT)

    def run(part: Part) -> Any:
        def of(names: set[str]) -> list[int]:
            return [place for place, given in enumerate(part.inputs) if given in names]

        wanted = Asked(
            lambda place: demands.get(part.outputs[place], Demand.DENSE), {}, of(written)
        )
        return _run(part.module, options, name, of(again), {}, False, asked=wanted, told=told)

    return run_split(found, [run(part) for part in found.parts])


_CALLERS = (UsageError, DeviceError)
"""What only the caller can mend: wrong options, and a device that is not there."""
