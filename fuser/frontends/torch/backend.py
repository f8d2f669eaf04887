"""PyTorch programs: `fuser.compile` of modules and exported programs, and `torch.compile`.

    compiled = fuser.compile(module, example_inputs=(x,))     # or an ExportedProgram, a GraphModule
    y = compiled(x)                                           # tensors in, tensors out

    fast = torch.compile(module, backend="fuser")

A plan is compiled for the shapes and dtypes of its inputs; others compile one more, and all are
kept. Sizes that PyTorch left open (torch.export's Dim, torch.compile's dynamic) stay open: kernels
serve ranges of them (pipeline/variants.py). Tensors on a GPU are read where they are, results are
made there, and both in the order of PyTorch's current stream. Parameters and buffers are constants
that share the tensors' memory where a kernel of the CPU reads them as they are; one that is changed
in place becomes an input.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fuser.errors import (
    DeviceError,
    FeedError,
    LimitError,
    UnsupportedError,
    UsageError,
    check_keywords,
)
from fuser.forks import new_lock
from fuser.frontends.torch.decompositions import decompositions
from fuser.frontends.torch.importer import Imported, Input, check_operators, import_fx, tensor_array
from fuser.frontends.torch.importer.registry import dtype_of
from fuser.frontends.torch.saved import Record, save
from fuser.frontends.torch.sizes import open_sizes
from fuser.frontends.torch.tensors import (
    gpu_of,
    is_tensor,
    moved_results,
    run_plan,
    version,
)
from fuser.graph.dims import DimExpr
from fuser.graph.ir import Graph, TensorType
from fuser.graph.passes import run_passes
from fuser.graph.sizes import evaluate
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.devices import Device, check_device
from fuser.pipeline.precision import Precision
from fuser.pipeline.variants import Source, Variant, Variants
from fuser.runtime.plan import Plan
from fuser.runtime.plan_report import PlanReport

MOST_GROUPS = 4
"""Combinations of dtypes and fixed arguments whose kernels for open sizes are kept."""
MOST_PLANS = 64
"""Plans that are kept for one program; the one unused for longest goes first."""


@dataclass(frozen=True)
class Options:
    """How to compile: as for `fuser.compile`. device "auto" is where the tensors are. freeze=False
    makes parameters and buffers inputs: no kernel has them in a layout of its own, but they are
    never copied, on a GPU either."""

    device: Device = "auto"
    threads: int | None = None
    fusion: bool = True
    precision: Precision = "model"
    freeze: bool = True
    tune: bool = False

    def __post_init__(self) -> None:
        check_device(self.device, self.threads)


@dataclass(frozen=True)
class _Compiled:
    imported: Imported
    plan: Plan | None  # None: nothing is computed
    inputs: tuple[tuple[int, str], ...]  # place among the arguments, name


class FxProgram:
    """A GraphModule of functional ATen operators and its plans, one for each combination of shapes,
    dtypes and numbers. static: places of arguments that are constants while they stay unchanged."""

    def __init__(self, module: Any, name: str, static: Iterable[int], options: Options) -> None:
        check_operators(module)
        self.module, self.name, self.options = module, name, options
        self._static = set(static) if options.freeze else set()
        self._placeholders = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        self._plans: OrderedDict[Hashable, _Compiled] = OrderedDict()
        self._variants: OrderedDict[Hashable, Variants] = OrderedDict()
        self._lock = new_lock()
        self._versions: dict[int, Hashable] = {}
        self._moved = moved_results(module)
        self._sizes = open_sizes(module)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """What the module returns, in order; new tensors. Raises what compiling raises."""
        where = gpu_of(arguments)
        return self.run(self.find(arguments, where), arguments, where)

    def run(self, found: _Compiled, arguments: Sequence[Any], where: Any) -> list[Any]:
        """The same by a plan that was found for such arguments."""
        given = [arguments[place] for place, _ in found.inputs]
        outputs = run_plan(found.plan, given, where) if found.plan else []
        results = [
            outputs[entry] if isinstance(entry, int) else entry[1]
            for entry in found.imported.results
        ]
        for place, device in self._moved.items():
            results[place] = results[place].to(device)
        return results

    def find(self, arguments: Sequence[Any], where: Any = None) -> _Compiled:
        """The plan for such arguments, compiled if there is none yet. where: `gpu_of` them."""
        with self._lock:
            self._release_changed(arguments)
            key = (where, *(self._key(place, x) for place, x in enumerate(arguments)))
            found = self._plans.get(key)
            if found is None:
                found = self._plans[key] = self._make(arguments, where)
                if len(self._plans) > MOST_PLANS:
                    self._plans.popitem(last=False)
            self._plans.move_to_end(key)
            return found

    @property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(found.plan for found in self._plans.values() if found.plan)

    def compiled(self, constants: Sequence[Any]) -> list[_Compiled]:
        """What was compiled so far and still holds. constants: the static arguments, by place."""
        with self._lock:
            self._release_changed(constants)
            return list(self._plans.values())

    @property
    def moved(self) -> Mapping[int, Any]:
        """The devices of results that are not where the arguments are, by place."""
        return self._moved

    @property
    def variants(self) -> tuple[Variant, ...]:
        """What was compiled for ranges of sizes."""
        return tuple(v for group in self._variants.values() for v in group.variants)

    def _release_changed(self, arguments: Sequence[Any]) -> None:
        """Static arguments that were changed in place become inputs: they will change again."""
        for place in list(self._static):
            x = arguments[place]
            state = (x.data_ptr(), version(x)) if is_tensor(x) else None
            if self._versions.setdefault(place, state) != state:
                self._static.discard(place)
                self._plans.clear()
                self._variants.clear()

    def _key(self, place: int, x: Any) -> Hashable:
        if not is_tensor(x):
            return type(x), x
        return tuple(x.shape), x.dtype, place in self._static

    def _make(self, arguments: Sequence[Any], where: Any) -> _Compiled:
        """A plan for sizes met for the first time: of kernels that serve them, or of new ones."""
        sizes = self._sizes.at(arguments)
        if sizes is None or not self._computes():
            return self._compile(arguments, where)
        key = (where, *(self._open_key(place, x) for place, x in enumerate(arguments)))
        if key not in self._variants:
            self._variants[key] = self._group(arguments, where)
            if len(self._variants) > MOST_GROUPS:
                self._variants.popitem(last=False)
        self._variants.move_to_end(key)
        variant = self._variants[key].variant(sizes)
        imported: Imported = variant.extra
        results = tuple(
            entry if isinstance(entry, int) else ("=", _size_at(entry[1], sizes))
            for entry in imported.results
        )
        names = {name: place for place, name in enumerate(self._placeholders)}
        plan = variant.plan(sizes)
        inputs = tuple((names[spec.name], spec.name) for spec in plan.inputs)
        return _Compiled(Imported(imported.graph, results), plan, inputs)

    def _open_key(self, place: int, x: Any) -> Hashable:
        """Of what is the same at all sizes."""
        if not is_tensor(x):
            return None if self._sizes.shapes[place] is not None else (type(x), x)
        return x.dtype, place in self._static

    def _computes(self) -> bool:
        """Whether a result is a tensor."""
        returned = list(self.module.graph.nodes)[-1].args[0]
        listed = returned if isinstance(returned, list | tuple) else [returned]
        return any(is_tensor(getattr(node, "meta", {}).get("val")) for node in listed)

    def _group(self, arguments: Sequence[Any], where: Any) -> Variants:
        """Variants for such arguments, whatever the open sizes are."""
        arrays = {p: tensor_array(arguments[p]) for p in self._static if is_tensor(arguments[p])}
        dtypes = [dtype_of(x.dtype) if is_tensor(x) else None for x in arguments]
        numbers = [None if is_tensor(x) else x for x in arguments]

        def read(fixed: Mapping[str, int]) -> tuple[Graph, Imported]:
            given: list[Any] = []
            for place, (name, dtype) in enumerate(zip(self._placeholders, dtypes, strict=True)):
                if place in arrays:
                    given.append(arrays[place])
                elif dtype is not None:
                    given.append(Input(name, TensorType(dtype, self._sizes.given(place, fixed))))
                else:
                    size = self._sizes.given(place, fixed)
                    given.append(numbers[place] if size is None else size)
            imported = import_fx(self.module, given, self.name)
            return run_passes(imported.graph), imported

        options = self.options
        if options.tune:
            raise UsageError(
                "kernels for many sizes are not tuned", hint="export the program at fixed sizes"
            )
        return Variants(
            Source(self.name, self._sizes.symbols, read), device=self._device(where),
            fusion=options.fusion, threads=options.threads, precision=options.precision,
            ordinal=0 if where is None else where.index,
        )  # fmt: skip

    def _device(self, where: Any) -> Device:
        if self.options.device != "auto":
            return self.options.device
        return "cpu" if where is None else "cuda"

    def _compile(self, arguments: Sequence[Any], where: Any) -> _Compiled:
        given: list[Any] = []
        inputs = []
        for place, (name, x) in enumerate(zip(self._placeholders, arguments, strict=True)):
            if not is_tensor(x):
                given.append(x)
            elif place in self._static:
                given.append(tensor_array(x))
            else:
                given.append(Input(name, TensorType(dtype_of(x.dtype), tuple(x.shape))))
                inputs.append((place, name))
        imported = import_fx(self.module, given, self.name)
        if not imported.graph.outputs:
            return _Compiled(imported, None, ())
        options = self.options
        plan = compile_graph(
            run_passes(imported.graph), name=self.name, device=self._device(where),
            threads=options.threads, fusion=options.fusion, precision=options.precision,
            ordinal=0 if where is None else where.index, tune=options.tune,
        )  # fmt: skip
        return _Compiled(imported, plan, tuple(inputs))


def _size_at(result: Any, sizes: Mapping[str, int]) -> Any:
    """A result that is no tensor, at these sizes."""
    return evaluate(result, sizes) if isinstance(result, DimExpr) else result


def _result_shapes(exported: Any) -> list[str]:
    """The shapes of what a program returns, in order: buffers that it changes are not among it."""
    (output,) = (node for node in exported.graph.nodes if node.op == "output")
    count = len(exported.graph_signature.user_outputs)
    values: list[Any] = [getattr(node, "meta", {}).get("val") for node in output.args[0]]
    return [str(list(x.shape)) if is_tensor(x) else "" for x in values[-count:]] if count else []


class CompiledProgram:
    """A `torch.export.ExportedProgram`, callable as the module it was exported from."""

    def __init__(self, exported: Any, options: Options, name: str = "") -> None:
        from torch.export.graph_signature import InputKind, OutputKind

        shapes = _result_shapes(exported)
        self._exported = exported = exported.run_decompositions(decompositions())
        if _result_shapes(exported) != shapes:
            raise UnsupportedError(
                "PyTorch takes this program apart into one with results of other shapes: "
                f"{shapes} becomes {_result_shapes(exported)}",
                hint="another version of PyTorch may do better",
            )
        signature = exported.graph_signature
        self._mutations = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
        known = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT, *self._mutations)
        for spec in signature.output_specs:
            if spec.kind not in known:
                raise UnsupportedError(f"an exported program with an output of kind {spec.kind}")
        self._outputs = [(spec.kind, spec.target) for spec in signature.output_specs]
        # One entry a placeholder: what is checked of a user's input, or the tensor that it is.
        self._places: list[_Expected | Any] = []
        nodes = [node for node in exported.graph.nodes if node.op == "placeholder"]
        for node, item in zip(nodes, signature.input_specs, strict=True):
            user = item.kind is InputKind.USER_INPUT
            self._places.append(_Expected.of(node) if user else self._tensor(item.target))
        changed = [self._tensor(t) for kind, t in self._outputs if kind is self._mutations[0]]
        static = [
            i for i, place in enumerate(self._places)
            if not isinstance(place, _Expected) and not any(place is x for x in changed)
        ]  # fmt: skip
        label = name or type(exported.graph_module).__name__
        self._program = FxProgram(exported.graph_module, label, static, options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result; buffers and inputs that it changes are changed. Raises FeedError."""
        return self.run(self._flatten(args, kwargs))

    def run(self, leaves: Sequence[Any]) -> Any:
        """The same for inputs taken apart, in order."""
        from torch.utils import _pytree

        arguments = self._arguments(leaves)
        outputs = []
        for (kind, target), result in zip(self._outputs, self._program(arguments), strict=True):
            if kind not in self._mutations:
                outputs.append(result)
            elif kind is self._mutations[0]:
                self._tensor(target).copy_(result)
            else:
                place = next(i for i, x in enumerate(self._places)
                             if isinstance(x, _Expected) and x.name == target)  # fmt: skip
                arguments[place].copy_(result)
        return _pytree.tree_unflatten(outputs, self._exported.call_spec.out_spec)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan that serves such inputs. Raises UsageError where nothing is computed."""
        arguments = self._arguments(self._flatten(args, kwargs))
        plan = self._program.find(arguments, gpu_of(arguments)).plan
        if plan is None:
            raise UsageError("this program computes nothing, so it has no plan")
        return plan

    def report(self, *args: Any, **kwargs: Any) -> PlanReport:
        return self.plan(*args, **kwargs).report()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Every plan compiled so far."""
        return self._program.plans

    def save(self, path: Path | str) -> None:
        """Write what was compiled so far to a file for `fuser.load`: native code for this device,
        and the parameters. Raises UsageError."""
        save([self.record()], path)

    def record(self) -> Record:
        """What a file holds of it."""
        kinds = {self._mutations[0]: "state", self._mutations[1]: "input"}
        effects = [
            (kind, self._tensor(target) if kind == "state" else target)
            for kind, target in ((kinds.get(k, "result"), t) for k, t in self._outputs)
        ]
        places = [(x.name, x.value) if isinstance(x, _Expected) else x for x in self._places]
        spec = self._exported.call_spec
        return Record(
            places, effects, spec.in_spec, spec.out_spec, self._program.moved,
            self._program.compiled(self._places),
        )  # fmt: skip

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        from torch.utils import _pytree

        leaves, spec = _pytree.tree_flatten((args, kwargs))
        wanted = self._exported.call_spec.in_spec
        if spec != wanted:
            raise FeedError(
                "the inputs nest otherwise than those the program was exported with",
                hint=f"expected {wanted}",
            )
        return leaves

    def _arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """One argument a placeholder."""
        given = iter(leaves)
        arguments = []
        for place in self._places:
            if isinstance(place, _Expected):
                arguments.append(x := next(given))
                place.check(x)
            else:
                arguments.append(place)
        return arguments

    def _tensor(self, name: str) -> Any:
        exported = self._exported
        found = exported.state_dict.get(name)
        return exported.constants[name] if found is None else found


@dataclass(frozen=True)
class _Expected:
    """A user's input: `value` is a tensor whose symbolic sizes are free, or a fixed number."""

    name: str
    value: Any
    sizes: tuple[int | None, ...] = ()

    @classmethod
    def of(cls, node: Any) -> _Expected:
        value = node.meta.get("val")
        if not is_tensor(value):
            return cls(node.name, value)
        sizes = tuple(size if isinstance(size, int) else None for size in value.shape)
        return cls(node.name, value, sizes)

    def check(self, x: Any) -> None:
        """Raise FeedError unless x is what the program was exported for."""
        if not is_tensor(self.value):
            if isinstance(self.value, int | float | bool) and x != self.value:
                raise FeedError(
                    f"input {self.name!r} is {x!r}, but the program is for {self.value!r}",
                    hint="export it anew, or compile the module itself: it adapts",
                )
            return
        fits = is_tensor(x) and x.dtype == self.value.dtype and len(x.shape) == len(self.sizes)
        if fits and all(a is None or a == b for a, b in zip(self.sizes, x.shape, strict=True)):
            return
        came = _shown(x) if is_tensor(x) else f"a {type(x).__name__}"
        raise FeedError(
            f"input {self.name!r} is {_shown(self.value)}, the feed is {came}",
            hint="export with dynamic_shapes, or compile the module itself: it adapts",
        )


def _shown(tensor: Any) -> str:
    return f"{dtype_of(tensor.dtype)}[{', '.join(map(str, tensor.shape))}]"


class CompiledModule:
    """An `nn.Module` or `GraphModule`, exported and compiled for each combination of input shapes,
    dtypes and options it is called with."""

    def __init__(self, module: Any, options: Options) -> None:
        self._module, self._options = module, options
        self._programs: OrderedDict[tuple[Any, ...], CompiledProgram] = OrderedDict()
        self._lock = new_lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result. Raises UnsupportedOpError, and what exporting raises."""
        program, leaves = self._find(args, kwargs)
        return program.run(leaves)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan that serves such inputs."""
        return self._find(args, kwargs)[0].plan(*args, **kwargs)

    def report(self, *args: Any, **kwargs: Any) -> PlanReport:
        return self.plan(*args, **kwargs).report()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Every plan compiled so far."""
        return tuple(plan for program in self._programs.values() for plan in program.plans)

    def save(self, path: Path | str) -> None:
        """Write what was compiled so far to a file for `fuser.load`: native code for this device,
        and the parameters. Raises UsageError where nothing was."""
        mode = self._module.training
        save([program.record() for key, program in self._programs.items() if key[1] == mode], path)

    def _find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[CompiledProgram, Sequence[Any]]:
        """The program for such inputs, and the inputs taken apart."""
        import torch
        from torch.utils import _pytree

        leaves: Sequence[Any] = args
        nest = ""
        if kwargs or not all(map(is_tensor, args)):
            leaves, spec = _pytree.tree_flatten((args, kwargs))
            nest = str(spec)
        key = (nest, self._module.training, *(
            (tuple(x.shape), x.dtype) if is_tensor(x) else (type(x), repr(x)) for x in leaves
        ))  # fmt: skip
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                exported = torch.export.export(self._module, args, kwargs or None, strict=False)
                found = CompiledProgram(exported, self._options, type(self._module).__name__)
                self._programs[key] = found
                if len(self._programs) > MOST_PLANS:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
            return found, leaves


def is_torch(model: object) -> bool:
    """Whether a model is one of PyTorch's: an ExportedProgram, a GraphModule or an nn.Module."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(model).__mro__}
    kinds = {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"}
    return bool(names & kinds)


def compile_torch(
    model: Any, example_inputs: Sequence[Any] | None, options: Options
) -> CompiledProgram | CompiledModule:
    """Compile a PyTorch model; with example inputs, at once for their shapes."""
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

    options: the fields of `Options`. A graph that cannot be compiled runs in PyTorch, with a
    warning that says why: an operator that is not supported, or a defect of fuser. In training the
    forward and the backward graph are compiled apart.
    """
    from torch._dynamo.backends.common import aot_autograd

    check_keywords("the backend fuser", options or (), [item.name for item in fields(Options)])
    chosen = Options(**(options or {}))
    table = decompositions()
    compiler = aot_autograd(
        fw_compiler=lambda gm, inputs: _compile_captured(gm, chosen, forward=True),
        bw_compiler=lambda gm, inputs: _compile_captured(gm, chosen, forward=False),
        decompositions=table,
    )
    with _attention_to_differentiate():
        return compiler(module, example_inputs)


def _attention_to_differentiate() -> Any:
    """In training, attention as its pieces: gradients of the fused forms are PyTorch's own."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if torch.is_grad_enabled():
        return sdpa_kernel(SDPBackend.MATH)
    return contextlib.nullcontext()


def _compile_captured(module: Any, options: Options, forward: bool) -> Any:
    from functorch.compile import make_boxed_func
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    static = list(metadata.static_input_indices or ()) if forward and metadata else []
    fallen = False

    def leave(error: Exception) -> None:
        nonlocal fallen
        fallen = True
        _warn(error)

    try:
        program = FxProgram(module, "forward" if forward else "backward", static, options)
    except _CALLERS:
        raise
    except Exception as error:
        leave(error)
        return make_boxed_func(module.forward)

    def run(*arguments: Any) -> Any:
        if not fallen:
            try:
                where = gpu_of(arguments)
                found = program.find(arguments, where)
            except _CALLERS:
                raise
            except Exception as error:
                leave(error)
            else:
                return program.run(found, arguments, where)
        return module.forward(*arguments)

    run.program = program  # type: ignore[attr-defined]  # for tests and the curious
    return make_boxed_func(run)


_CALLERS = (UsageError, DeviceError)
"""What only the caller can mend: wrong options, and a device that is not there."""


def _warn(error: Exception) -> None:
    what = str(error)
    if not isinstance(error, UnsupportedError | LimitError):
        kind = type(error).__name__
        what = f"compiling it failed, a defect of fuser; please report {kind}: {what}"
    warnings.warn(f"fuser leaves a graph to PyTorch: {what}", RuntimeWarning, stacklevel=3)
