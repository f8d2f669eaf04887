"""A `torch.export.ExportedProgram`, compiled."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuser.errors import FeedError, UnsupportedError, UsageError
from fuser.frontends.torch.decompositions import exported_decompositions, triton_ops
from fuser.frontends.torch.importer.registry import dtype_of
from fuser.frontends.torch.program import FxProgram, Options
from fuser.frontends.torch.saved import Record, save
from fuser.frontends.torch.tensors import is_tensor
from fuser.frontends.torch.writes import check_writes
from fuser.runtime.plan import Plan
from fuser.runtime.plan_report import Report


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

        check_writes(exported.graph_module)
        shapes = _result_shapes(exported)
        table = {**exported_decompositions(), **triton_ops(exported.graph.nodes)}
        self._exported = exported = exported.run_decompositions(table)
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
        self._changes = any(kind in self._mutations for kind, _ in self._outputs)
        self._expected: list[_Expected] = []
        self._held: dict[int, tuple[_Expected, str]] = {}
        nodes = [node for node in exported.graph.nodes if node.op == "placeholder"]
        for place, (node, item) in enumerate(zip(nodes, signature.input_specs, strict=True)):
            if item.kind is InputKind.USER_INPUT:
                self._expected.append(_Expected.of(node))
            else:
                self._held[place] = _Expected.of(node), item.target
        held = {place: self._tensor(name) for place, (_, name) in self._held.items()}
        places = {target: place for place, (_, target) in self._held.items()}
        inputs = {node.name: place for place, node in enumerate(nodes)}
        changed = {
            result: (places if kind is OutputKind.BUFFER_MUTATION else inputs)[target]
            for result, (kind, target) in enumerate(self._outputs)
            if kind in self._mutations
        }
        name = name or type(exported.graph_module).__name__
        self._program = FxProgram(exported.graph_module, name, held, options, held, changed=changed)
        self._changed = [self._where(kind, target) for kind, target in self._outputs]
        self._nest = _nester(exported.call_spec.out_spec)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result; buffers and inputs that it changes are changed. Raises FeedError."""
        return self.run(self._flatten(args, kwargs))

    def run(self, leaves: Sequence[Any], known: Hashable = None) -> Any:
        """The same for inputs taken apart, in order. known: their signature."""
        call = self._program.steady(leaves, known)
        if call is None:
            self._check(leaves)
            call = self._program.prepare(leaves)
        results = call(leaves)
        return self._nest(self._write_back(results, leaves) if self._changes else results)

    def _where(self, kind: Any, target: str) -> Any:
        """What a result replaces: a buffer, or the index of an input; None for what is returned."""
        if kind not in self._mutations:
            return None
        if kind is self._mutations[0]:
            return self._tensor(target)
        return [expected.name for expected in self._expected].index(target)

    def _write_back(self, results: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """What is returned. Buffers and inputs that are changed, and that no kernel could write
        where they are, are changed now."""
        outputs = []
        for where, result in zip(self._changed, results, strict=True):
            if where is None:
                outputs.append(result)
                continue
            target = leaves[where] if isinstance(where, int) else where
            if result is not target:
                target.copy_(result)
        return outputs

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan that serves such inputs. Raises UsageError where nothing is computed."""
        leaves = self._flatten(args, kwargs)
        self._check(leaves)
        plan = self._program.find(leaves)
        if plan is None:
            raise UsageError("this program computes nothing, so it has no plan")
        return plan

    def report(self, *args: Any, **kwargs: Any) -> Report:
        return self.plan(*args, **kwargs).report()

    def refresh(self) -> None:
        """Read all parameters and buffers again at the next call: for writes into them that PyTorch
        does not count (into `tensor.data`, by NumPy)."""
        self._program.refresh()

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
        user = iter(self._expected)
        count = len(self._expected) + len(self._held)
        places = [
            self._tensor(self._held[place][1]) if place in self._held
            else ((expected := next(user)).name, expected.value)
            for place in range(count)
        ]  # fmt: skip
        spec = self._exported.call_spec
        return Record(
            places, effects, spec.in_spec, spec.out_spec, self._program.moved,
            self._program.compiled(),
        )  # fmt: skip

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Every plan compiled so far."""
        return self._program.plans

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

    def _check(self, leaves: Sequence[Any]) -> None:
        """Raise FeedError unless inputs, parameters and buffers are what was exported."""
        for expected, x in zip(self._expected, leaves, strict=True):
            expected.check(x)
        for expected, target in self._held.values():
            expected.check(self._tensor(target))

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


def _nester(spec: Any) -> Callable[[list[Any]], Any]:
    """From the results in order to the nest that they come in."""
    from torch.utils import _pytree

    leaves = [object() for _ in range(spec.num_leaves)]
    like = _pytree.tree_unflatten(leaves, spec)
    if leaves and like is leaves[0]:
        return lambda outputs: outputs[0]
    for kind in (tuple, list):
        if type(like) is kind and len(like) == len(leaves):
            if all(a is b for a, b in zip(like, leaves, strict=True)):
                return kind
    return lambda outputs: _pytree.tree_unflatten(outputs, spec)
