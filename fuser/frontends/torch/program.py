"""A graph of PyTorch's functional operators, and the plans that it was compiled to."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuser.base.forks import new_lock
from fuser.errors import UsageError
from fuser.frontends.torch.changes import watch_tensors
from fuser.frontends.torch.importer import Imported, Input, check_operators, import_fx, tensor_array
from fuser.frontends.torch.importer.registry import dtype_of
from fuser.frontends.torch.layouts import Layout
from fuser.frontends.torch.sizes import open_sizes
from fuser.frontends.torch.steady import WRITTEN, Call, signature, steady_call
from fuser.frontends.torch.tensors import gpu_of, is_tensor, moved_results, ready, version
from fuser.graph.dims import DimExpr
from fuser.graph.ir import Graph, TensorType
from fuser.graph.numerics import Mode, using
from fuser.graph.passes import run_passes
from fuser.graph.sizes import evaluate
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.devices import Device, check_device, choose_target
from fuser.pipeline.fusion import Fusing
from fuser.pipeline.options import CompileOptions, Origin
from fuser.pipeline.precision import Precision
from fuser.pipeline.variants import Source, Variant, Variants
from fuser.runtime.plan import Plan
from fuser.runtime.watch import Watch

MOST_GROUPS = 4
"""Combinations of dtypes and fixed arguments whose kernels for open sizes are kept."""
MOST_PLANS = 64
"""Plans that are kept for one program; the one unused for longest goes first."""


@dataclass(frozen=True)
class Options:
    """How to compile: as for `fuser.compile`. device "auto" is where the tensors are. freeze=False
    makes parameters and buffers inputs: no kernel has them in a layout of its own, but they are
    never copied, on a GPU either. numerics, batch_invariant: None stands for those in force where
    the options are made."""

    device: Device = "auto"
    threads: int | None = None
    fusion: Fusing = True
    precision: Precision = "model"
    freeze: bool = True
    tune: bool = False
    numerics: Mode | None = None
    batch_invariant: bool | None = None

    def __post_init__(self) -> None:
        with using(self.numerics, self.batch_invariant) as chosen:
            object.__setattr__(self, "numerics", chosen.mode)
            object.__setattr__(self, "batch_invariant", chosen.batch_invariant)
        check_device(self.device, self.threads)


@dataclass(frozen=True)
class _Compiled:
    imported: Imported
    plan: Plan | None  # None: nothing is computed
    inputs: tuple[tuple[int, str], ...]  # place among the arguments, name
    layouts: Mapping[int, Layout] = field(default_factory=dict)  # of outputs, by number


@dataclass(frozen=True)
class _Steady:
    """Calls by the signature of what is given, right as long as nothing watched changes."""

    watch: Watch
    calls: OrderedDict[Hashable, Call]


class FxProgram:
    """A GraphModule of functional ATen operators and its plans, one for each combination of shapes,
    dtypes and numbers.

    static: places of arguments that come again, parameters mostly: they are constants while they
    stay unchanged, but for those in `changed`. held: these arguments, by place, where calls do not
    give them. What calls give is a list of the other arguments then. compared: who calls has
    compared shapes, dtypes and devices with those that the module was captured with. changed: the
    places of arguments that results are to replace, by place; kernels write those where the
    arguments are, if they can: then the argument is the result. layouts: of results that are not
    row-major, by place.
    """

    def __init__(
        self, module: Any, name: str, static: Iterable[int], options: Options,
        held: Mapping[int, Any] | None = None, compared: bool = False,
        changed: Mapping[int, int] | None = None, layouts: Sequence[Layout | None] = (),
    ) -> None:  # fmt: skip
        check_operators(module)
        self.module, self.name, self.options = module, name, options
        self._placeholders = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        self._held = held
        self._again = sorted(set(static))
        free = sorted(set(range(len(self._placeholders))) - set(self._again))
        self._free = range(len(free)) if held is not None else free
        self._given = {place: i for i, place in enumerate(free)} if held is not None else {}
        self._layouts = {i: one for i, one in enumerate(layouts) if one is not None}
        self._orders = [None if one is None else one.order for one in layouts]
        self._changed = dict(changed or {})
        followed = set(self._changed.values())
        self._static = set(self._again) - followed if options.freeze else set()
        self._plans: OrderedDict[Hashable, _Compiled] = OrderedDict()
        self._variants: OrderedDict[Hashable, Variants] = OrderedDict()
        self._lock = new_lock()
        self._versions: dict[int, Hashable] = {}
        self._steady: _Steady | None = None
        self._moved = moved_results(module)
        self._sizes = open_sizes(module)
        self._known: Hashable = compared and _is_settled(module)
        self.only: tuple[Watch, Call] | None = None
        """The call of a program that serves one signature, right as long as the watch says so."""

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """What the module returns, in order; new tensors. Raises what compiling raises."""
        return (self.steady(given) or self.prepare(given))(given)

    def steady(self, given: Sequence[Any], known: Hashable = None) -> Call | None:
        """The call for what is given, if there was one like it and nothing has changed since.
        known: the signature of what is free, if the caller has it."""
        steady = self._steady
        if steady is None or not steady.watch(given):
            return None
        return steady.calls.get(known or self._known or self._signature(given))

    def prepare(self, given: Sequence[Any]) -> Call:
        """The call for what is given; compiles where it must."""
        arguments = self._complete(given)
        where = gpu_of(arguments)
        with self._lock:
            steady = self._steady
            if steady is None or not steady.watch(given):
                # watched before it is read, so that no change falls between
                steady = _Steady(self._watch(arguments), OrderedDict())
                while self._release_changed(arguments):
                    steady = _Steady(self._watch(arguments), OrderedDict())
            found = self._find(arguments, where)
            inputs = [self._source(place, arguments) for place, _ in found.inputs]
            plain = self._plain(given, where) if self._known else ()
            results = [
                (WRITTEN, self._source(entry[1], arguments))
                if isinstance(entry, tuple) and entry[0] == WRITTEN else entry
                for entry in found.imported.results
            ]  # fmt: skip
            call = steady_call(
                found.plan, inputs, results, self._moved, where, plain, found.layouts
            )
            steady.calls[self._known or self._signature(given)] = call
            if len(steady.calls) > MOST_PLANS:
                steady.calls.popitem(last=False)
            self._steady = steady
            self.only = (steady.watch, call) if self._known else None
        return call

    def find(self, given: Sequence[Any]) -> Plan | None:
        """The plan for what is given, compiled if there is none yet; None: nothing is computed."""
        arguments = self._complete(given)
        with self._lock:
            self._release_changed(arguments)
            return self._find(arguments, gpu_of(arguments)).plan

    def refresh(self) -> None:
        """Forget what was compiled: values of parameters are read again."""
        with self._lock:
            self._steady = self.only = None
            self._forget()

    def _signature(self, given: Sequence[Any]) -> Hashable:
        return signature([given[place] for place in self._free])

    def _plain(self, given: Sequence[Any], where: Any) -> set[int]:
        """The indices of what is row-major, and where the plan reads it."""
        return {
            place
            for place in self._free
            if is_tensor(given[place]) and ready(given[place], 1, where)
        }

    def _complete(self, given: Sequence[Any]) -> Sequence[Any]:
        """One argument a placeholder."""
        if self._held is None:
            return given
        count = len(self._placeholders)
        return [
            self._held[place] if place in self._held else given[self._given[place]]
            for place in range(count)
        ]

    def _source(self, place: int, arguments: Sequence[Any]) -> int | Any:
        """Where a steady call has an input of the plan from."""
        x = arguments[place]
        if place in self._again and is_tensor(x):
            return x
        return self._given.get(place, place)

    def _watch(self, arguments: Sequence[Any]) -> Watch:
        again = [(place, arguments[place]) for place in self._again]
        tensors = [(place, x) for place, x in again if is_tensor(x)]
        constant = [x for place, x in tensors if place in self._static]
        followed = [x for place, x in tensors if place not in self._static]
        objects = again if self._held is None else []
        return watch_tensors(constant, followed, objects, len(arguments))

    def _find(self, arguments: Sequence[Any], where: Any) -> _Compiled:
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

    def compiled(self) -> list[_Compiled]:
        """What was compiled so far and still holds; for a program that holds its parameters."""
        with self._lock:
            self._release_changed(self._held or {})
            return list(self._plans.values())

    @property
    def moved(self) -> Mapping[int, Any]:
        """The devices of results that are not where the arguments are, by place."""
        return self._moved

    @property
    def variants(self) -> tuple[Variant, ...]:
        """What was compiled for ranges of sizes."""
        return tuple(v for group in self._variants.values() for v in group.variants)

    def _release_changed(self, arguments: Sequence[Any] | Mapping[int, Any]) -> bool:
        """Static arguments that were changed in place become inputs: they will change again.
        Whether there are any."""
        released = False
        for place in list(self._static):
            x = arguments[place]
            state = (x.data_ptr(), version(x)) if is_tensor(x) else None
            if self._versions.setdefault(place, state) != state:
                self._static.discard(place)
                self._forget()
                released = True
        return released

    def _forget(self) -> None:
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
        names = {name: place for place, name in enumerate(self._placeholders)}
        plan = variant.plan(sizes)
        results = tuple(
            entry if isinstance(entry, int) or entry[0] == WRITTEN
            else ("=", _size_at(entry[1], sizes))
            for entry in self._results(imported, plan)
        )  # fmt: skip
        inputs = tuple((names[spec.name], spec.name) for spec in plan.inputs)
        layouts = self._layouts_of(results, sizes)
        return _Compiled(Imported(imported.graph, results), plan, inputs, layouts)

    def _open_key(self, place: int, x: Any) -> Hashable:
        """A key of what an argument has in common at all sizes."""
        if not is_tensor(x):
            return None if self._sizes.shapes[place] is not None else (type(x), x)
        return x.dtype, place in self._static

    def _computes(self) -> bool:
        """Whether a result is a tensor."""
        values = (getattr(node, "meta", {}).get("val") for node in _returned(self.module))
        return any(map(is_tensor, values))

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
            imported = self._import(given)
            return run_passes(imported.graph), imported

        if self.options.tune:
            raise UsageError(
                "kernels for many sizes are not tuned", hint="export the program at fixed sizes"
            )
        return Variants(
            Source(self.name, self._sizes.symbols, read),
            self._how(where).but(state=self._pairs(arguments, where)),
        )

    def _pairs(self, arguments: Sequence[Any], where: Any) -> tuple[tuple[str, str], ...]:
        """The names of arguments that kernels may write, and of the outputs that they become: those
        on the plan's device whose memory no other argument has."""
        if choose_target(self._device(where)).is_cuda != (where is not None):
            return ()
        tensors = [x for x in arguments if is_tensor(x)] if self._changed else []
        storages = Counter(x.untyped_storage().data_ptr() for x in tensors)
        pairs: list[tuple[str, str]] = []
        number = 0
        for result, entry in enumerate(_returned(self.module)):
            if entry is None:
                continue
            place = self._changed.get(result)
            if place is None:  # what comes first are tensors; what follows may be numbers
                break
            if (
                result not in self._layouts
                and storages[arguments[place].untyped_storage().data_ptr()] == 1
            ):
                pairs.append((self._placeholders[place], f"output{number}"))
            number += 1
        return tuple(pairs)

    def _import(self, given: Sequence[Any]) -> Imported:
        with using(self.options.numerics, self.options.batch_invariant):
            return import_fx(self.module, given, self.name, self._orders)

    def _results(self, imported: Imported, plan: Plan) -> list[Any]:
        """Where results come from: the number of an output of the plan, (WRITTEN, the place of the
        argument), or ("=", value)."""
        names = imported.graph.output_names
        made = {spec.name: number for number, spec in enumerate(plan.outputs)}
        return [
            made.get(names[entry], (WRITTEN, self._changed.get(result, -1)))
            if isinstance(entry, int) else entry
            for result, entry in enumerate(imported.results)
        ]  # fmt: skip

    def _device(self, where: Any) -> Device:
        if self.options.device != "auto":
            return self.options.device
        return "cpu" if where is None else "cuda"

    def _how(self, where: Any) -> CompileOptions:
        """The options of a compile for a GPU, or for the host (None)."""
        options = self.options
        return CompileOptions(
            device=self._device(where), ordinal=0 if where is None else where.index,
            threads=options.threads, fusion=options.fusion, precision=options.precision,
        )  # fmt: skip

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
        imported = self._import(given)
        if not imported.graph.outputs:
            return _Compiled(imported, None, ())
        options = self._how(where).but(tune=self.options.tune, state=self._pairs(arguments, where))
        plan = compile_graph(run_passes(imported.graph), options, Origin(name=self.name))
        results = tuple(self._results(imported, plan))
        sizes = self._sizes.at(arguments) or {}
        layouts = self._layouts_of(results, sizes)
        return _Compiled(Imported(imported.graph, results), plan, tuple(inputs), layouts)

    def _layouts_of(self, results: Sequence[Any], sizes: Mapping[str, int]) -> dict[int, Layout]:
        """Layouts of outputs of the plan, by number."""
        return {
            entry: self._layouts[place].at(sizes)
            for place, entry in enumerate(results)
            if place in self._layouts and isinstance(entry, int)
        }


def _returned(module: Any) -> Sequence[Any]:
    """What a GraphModule returns, in order: nodes, and what is no node."""
    returned: Any = list(module.graph.nodes)[-1].args[0]
    return returned if isinstance(returned, list | tuple) else [returned]


def _is_settled(module: Any) -> bool:
    """Whether every argument is a tensor of fixed sizes and strides."""
    values = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    return all(
        is_tensor(x) and all(type(size) is int for size in (*x.shape, *x.stride())) for x in values
    )


def _size_at(result: Any, sizes: Mapping[str, int]) -> Any:
    """A result that is no tensor, at these sizes."""
    return evaluate(result, sizes) if isinstance(result, DimExpr) else result
