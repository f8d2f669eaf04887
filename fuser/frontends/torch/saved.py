"""Compiled PyTorch programs as one file: their plans, and how tensors get in and out.

    compiled = fuser.compile(module, example_inputs=(x,))
    compiled.save("model.fuser")
    again = fuser.load("model.fuser")        # needs PyTorch, and neither the module nor a compiler
    y = again(x)

The container is that of a plan (runtime/container.py), without pickle; trees of inputs and results
are in PyTorch's own text form. A file serves the inputs that were compiled for, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuser.dtypes import BY_NAME
from fuser.errors import FeedError, InvalidModelError, UsageError
from fuser.frontends.torch.importer import tensor_array
from fuser.frontends.torch.importer.registry import dtype_of
from fuser.frontends.torch.steady import WRITTEN, Call, steady_call
from fuser.frontends.torch.tensors import gpu_of, is_tensor, to_tensor
from fuser.graph.units import counted
from fuser.runtime.container import Contents, file_parts, read_file, reading, write_file
from fuser.runtime.memory import aligned_array
from fuser.runtime.plan import Plan
from fuser.runtime.shown import Shown, Summary
from fuser.runtime.store import native_record, program_from_record, program_record, take_native

KIND = "T"
_Leaf = tuple[str, tuple[int, ...] | str]
_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class _Call:
    """What serves inputs of one kind. leaves: of each, a dtype and shape, or "=" and its repr.
    sources: of the plan's inputs, ("leaf" or "state", number). results: ("output", number),
    ("value", x), or ("written", 0) where kernels write it over its place. effects: where each
    result goes, ("result", 0), or over a ("leaf" or "state", number). moved: the devices of results
    by place. out: the tree of the results."""

    nest: str
    leaves: tuple[_Leaf, ...]
    sources: tuple[tuple[str, int], ...]
    results: tuple[tuple[str, Any], ...]
    effects: tuple[tuple[str, int], ...]
    moved: Mapping[int, str]
    out: str
    plan: Plan | None


class SavedModule(Shown):
    """A compiled PyTorch program from a file: tensors in, tensors out, on the device that they are
    on. Buffers that it changes are its own, and begin as they were saved."""

    def __init__(self, calls: Sequence[_Call], state: Sequence[Any]) -> None:
        self._calls = {(call.nest, call.leaves): call for call in calls}
        self._trees = {call.out: _read_tree(call.out) for call in calls}
        self._state = list(state)
        self._ready: dict[Any, Call] = {}

    @property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(call.plan for call in self._calls.values() if call.plan is not None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The program's result. Raises FeedError for inputs that were not compiled for."""
        from torch.utils import _pytree

        leaves, nest = _pytree.tree_flatten((args, kwargs))
        key = (_pytree.treespec_dumps(nest), tuple(map(_key, leaves)))
        call = self._calls.get(key)
        if call is None:
            raise self._misfit(key[1])
        places = {"leaf": leaves, "state": self._state}
        kept = []
        results = self._steady(key, call, leaves)(leaves)
        for result, effect in zip(results, call.effects, strict=True):
            if effect[0] == "result":
                kept.append(result)
            elif result is not (target := places[effect[0]][effect[1]]):
                target.copy_(result)
        return _pytree.tree_unflatten(kept, self._trees[call.out])

    def _summary(self) -> Summary:
        plans = self.plans
        kernels = [counted(plan.launches, "kernel") for plan in plans]
        served = [_shown(leaves) for _, leaves in self._calls]
        where = [plans[0].target.name] if plans else []
        return Summary(
            "", [], [], [("for", text) for text in served] + [("plan", text) for text in kernels],
            [*where, counted(len(served), "set") + " of inputs"],
        )  # fmt: skip

    def _steady(self, key: Any, call: _Call, leaves: Sequence[Any]) -> Call:
        """The call, on the device of these inputs and of the state."""
        places = {"leaf": leaves, "state": self._state}
        where = gpu_of([*leaves, *(places[kind][number] for kind, number in call.sources)])
        found = self._ready.get((key, where))
        if found is None:
            inputs = [self._source(*source) for source in call.sources]
            results = [
                value if kind == "output"
                else (WRITTEN, self._source(*effect)) if kind == WRITTEN else ("=", value)
                for (kind, value), effect in zip(call.results, call.effects, strict=True)
            ]  # fmt: skip
            found = steady_call(call.plan, inputs, results, call.moved, where)
            self._ready[key, where] = found
        return found

    def _source(self, kind: str, number: int) -> int | Any:
        return number if kind == "leaf" else self._state[number]

    def close(self) -> None:
        """Free the memory of every plan."""
        for plan in self.plans:
            plan.close()

    def _misfit(self, leaves: Sequence[Any]) -> FeedError:
        saved = "; ".join(dict.fromkeys(_shown(known) for _, known in self._calls))
        return FeedError(
            f"nothing was saved for inputs {_shown(leaves)}, but for {saved}",
            hint="call the compiled module with such inputs, and save it again",
        )


def _key(leaf: Any) -> _Leaf:
    return (str(dtype_of(leaf.dtype)), tuple(leaf.shape)) if is_tensor(leaf) else ("=", repr(leaf))


def _shown(leaves: Sequence[_Leaf]) -> str:
    return ", ".join(f"{a}{list(b)}" if a != "=" else str(b) for a, b in leaves) or "none"


# writing ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """A program to be written. places: of each placeholder, (name, example) of an input or the
    tensor that it is. effects: of each result ("result", _), ("input", name) or ("state", tensor).
    nest, out: the trees of inputs and results. compiled: plans, with `inputs` and `imported`."""

    places: Sequence[Any]
    effects: Sequence[tuple[str, Any]]
    nest: Any
    out: Any
    moved: Mapping[int, Any]
    compiled: Sequence[Any]


def save(programs: Sequence[Record], path: Path | str) -> None:
    """Write what was compiled so far. Raises UsageError where nothing was, for inputs and results
    that cannot be written, and where the file cannot."""
    contents = Contents()
    codes: list[bytes] = []
    state: dict[int, tuple[int, Any]] = {}

    def number(tensor: Any) -> int:
        return state.setdefault(id(tensor), (len(state), tensor))[0]

    calls = []
    for program in programs:
        frame = _frame(program, number)
        for compiled in program.compiled:
            calls.append(frame | _served(program, compiled, number, contents))
            if compiled.plan is not None:
                codes += [launch.kernel.code for launch in compiled.plan.program.launches]
    if not calls:
        raise UsageError("nothing is compiled that could be saved", hint="call it once, then save")
    held = [
        {"array": contents.array(tensor_array(tensor)), "device": tensor.device.type}
        for _, tensor in state.values()
    ]
    manifest = {"calls": calls, "state": held, **native_record(codes, contents)}
    write_file(path, file_parts(KIND, manifest, contents))


def _leaves(program: Record) -> dict[int, tuple[str, Any]]:
    """The inputs by place, in order."""
    return {i: entry for i, entry in enumerate(program.places) if isinstance(entry, tuple)}


def _frame(program: Record, number: Callable[[Any], int]) -> dict[str, Any]:
    """What all calls of a program have in common."""
    names = [name for name, _ in _leaves(program).values()]
    effects: list[list[Any]] = []
    for kind, target in program.effects:
        if kind == "state":
            effects.append([kind, number(target)])
        else:
            effects.append(["leaf", names.index(target)] if kind == "input" else [kind, 0])
    return {
        "nest": _write_tree(program.nest),
        "out": _write_tree(program.out),
        "effects": effects,
        "moved": [[place, str(device)] for place, device in program.moved.items()],
    }


def _served(
    program: Record, compiled: Any, number: Callable[[Any], int], contents: Contents
) -> dict[str, Any]:
    """One plan, and the inputs that it serves."""
    plan: Plan | None = compiled.plan
    inputs = _leaves(program)
    order = list(inputs)
    places = [place for place, _ in compiled.inputs]
    specs = dict(zip(places, plan.inputs, strict=True)) if plan is not None else {}
    leaves: list[list[Any]] = []
    for place, (name, example) in inputs.items():
        if place in specs:
            leaves.append([specs[place].dtype.name, list(specs[place].shape)])
        elif is_tensor(example):
            leaves.append([str(dtype_of(example.dtype)), list(map(int, example.shape))])
        else:
            leaves.append(["=", repr(_plain(example, f"input {name!r}"))])
    return {
        "leaves": leaves,
        "sources": [
            ["leaf", order.index(place)] if place in inputs
            else ["state", number(program.places[place])]
            for place in places
        ],
        "results": [
            ["output", entry] if isinstance(entry, int)
            else [WRITTEN, 0] if entry[0] == WRITTEN else ["value", _plain(entry[1], "a result")]
            for entry in compiled.imported.results
        ],
        "program": program_record(plan.program, contents.blob) if plan is not None else None,
        "constants": [contents.array(a) for a in plan.program.constants] if plan else [],
    }  # fmt: skip


def _write_tree(tree: Any) -> str:
    from torch.utils import _pytree

    try:
        return str(_pytree.treespec_dumps(tree))
    except Exception as error:  # PyTorch raises several, of types that it cannot write
        raise UsageError(
            f"the inputs or results nest in a way that has no text: {error}"
        ) from error


def _read_tree(text: str) -> Any:
    from torch.utils import _pytree

    try:
        return _pytree.treespec_loads(text)
    except Exception as error:
        raise InvalidModelError(
            f"the tree of the results cannot be read: {error}",
            hint="import the library whose types the module returns, then load",
        ) from error


def _plain(value: Any, what: str) -> Any:
    if not isinstance(value, _PLAIN):
        raise UsageError(f"{what} is a {type(value).__name__}, which a saved program cannot hold")
    return value


# reading ----------------------------------------------------------------------------------------


def load(path: Path | str, *, threads: int | None = None, device: int = 0) -> SavedModule:
    """What `save` wrote, ready to run on a device of the same kind; trust it as you trust a
    program. device: which GPU. Raises UsageError, InvalidModelError or DeviceError."""
    opened = read_file(path, KIND)
    with reading(path):
        manifest, arrays = opened.manifest, opened.arrays
        take_native(opened)
        state = [
            to_tensor(_own(arrays[item["array"]])).to(
                f"cuda:{device}" if item["device"] == "cuda" else "cpu"
            )
            for item in manifest["state"]
        ]

        def plan_of(record: Mapping[str, Any]) -> Plan | None:
            if record["program"] is None:
                return None
            constants: list[np.ndarray] = [arrays[number] for number in record["constants"]]
            program = program_from_record(record["program"], opened.blob, constants)
            return Plan(program, threads=threads, device=device)

        calls = [_call(record, plan_of(record)) for record in manifest["calls"]]
        for call in calls:
            _check(call, len(state))
        return SavedModule(calls, state)


def _own(array: np.ndarray) -> np.ndarray:
    """A copy, where kernels may write."""
    found = aligned_array(array.shape, array.dtype)
    found[...] = array
    return found


def _call(record: Mapping[str, Any], plan: Plan | None) -> _Call:
    def pairs(name: str) -> tuple[tuple[str, Any], ...]:
        return tuple((str(kind), value) for kind, value in record[name])

    leaves = tuple((k, str(v) if k == "=" else tuple(v)) for k, v in pairs("leaves"))
    moved = {int(place): str(device) for place, device in record["moved"]}
    return _Call(
        str(record["nest"]), leaves, pairs("sources"), pairs("results"), pairs("effects"), moved,
        str(record["out"]), plan,
    )  # fmt: skip


def _check(call: _Call, state: int) -> None:
    """Raise ValueError for what refers to nothing."""
    counts = {
        "leaf": len(call.leaves), "state": state, "result": 1, WRITTEN: 1,
        "output": len(call.plan.outputs) if call.plan else 0,
    }  # fmt: skip
    for kind, number in (*call.sources, *call.results, *call.effects):
        if kind != "value" and not 0 <= number < counts[kind]:
            raise ValueError(f"{kind} {number} is not there")
    if len(call.sources) != (len(call.plan.inputs) if call.plan else 0):
        raise ValueError("the plan has other inputs")
    if len(call.effects) != len(call.results):
        raise ValueError("the results do not fit")
    ends = zip(call.results, call.effects, strict=True)
    if any(result[0] == WRITTEN and effect[0] == "result" for result, effect in ends):
        raise ValueError("a result is written nowhere")
    if any(kind != "=" and kind not in BY_NAME for kind, _ in call.leaves):
        raise ValueError("an input of an unknown type")
