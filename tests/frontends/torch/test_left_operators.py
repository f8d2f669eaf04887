"""Operators that are left to PyTorch: whichever they are, what runs is what the program says."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import (  # noqa: E402
    conv2d,
    cross_entropy,
    gelu,
    interpolate,
    layer_norm,
    max_pool2d,
    scaled_dot_product_attention,
)

from fuser.errors import CompileError, UnsupportedError  # noqa: E402
from fuser.frontends.torch import backend  # noqa: E402
from fuser.frontends.torch.importer import importer  # noqa: E402
from fuser.frontends.torch.importer.registry import ATEN  # noqa: E402
from fuser.frontends.torch.program import Options  # noqa: E402

pytestmark = pytest.mark.export


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(7)
    torch._dynamo.reset()
    yield


# Graphs with operators that are refused ----------------------------------------------------------

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "chain": (lambda x: ((x * 2).sin() + x.exp()).tanh() * x.sigmoid(), ((5, 7),)),
    "matmul": (lambda x, w: gelu(x @ w) @ w.t(), ((6, 5), (5, 4))),
    "norm": (lambda x, w: layer_norm(x, (8,), w).softmax(-1), ((3, 8), (8,))),
    "convolution": (
        lambda x, w: max_pool2d(conv2d(x, w, padding=1).relu(), 2).flatten(1),
        ((2, 3, 8, 6), (4, 3, 3, 3)),
    ),
    "attention": (
        lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True) * 2,
        ((1, 2, 5, 4),) * 3,
    ),
    "loss": (lambda x: cross_entropy(x.abs().log1p(), torch.arange(4)), ((4, 5),)),
    "views": (
        lambda x: torch.cat([x.t()[1:], x.unsqueeze(0).expand(2, 3, 4)[1].t() * 3]).reshape(-1, 3),
        ((3, 4),),
    ),
    "index": (
        lambda x, y: x[torch.tensor([2, 0, 2])].where(y > 0, y.clamp(min=-0.5)).cumsum(0),
        ((3, 4), (3, 4)),
    ),
    "extremes": (
        lambda x: x.amax(-1) - x.min(-1).values + x.sort(-1).values[:, 1] * x.var(-1), ((4, 6),),
    ),
    "resized": (
        lambda x: interpolate(x, scale_factor=2, mode="bilinear").square(), ((1, 2, 3, 4),),
    ),
    "several": (lambda x: sum(y.exp() for y in (x * 2).split(2)) / x.std(), ((6, 3),)),
}  # fmt: skip


@dataclass
class Traced:
    """The two graphs of a training step and what they were called with. places: of each argument
    of the second the result of the first that it is; -1: none."""

    modules: list[Any] = field(default_factory=list)
    arguments: list[list[Any]] = field(default_factory=list)
    results: list[list[Any]] = field(default_factory=list)

    @property
    def places(self) -> list[int]:
        made = [id(x) for x in self.results[0]]
        return [made.index(id(x)) if id(x) in made else -1 for x in self.arguments[1]]

    @property
    def operators(self) -> list[str]:
        """The names of those of the first graph and of the second, each once."""
        return list(dict.fromkeys([*operators(self.modules[0]), *operators(self.modules[1])]))

    def run(self, monkeypatch: pytest.MonkeyPatch, kinds: Sequence[str], name: str) -> Any:
        """The results of both graphs by fuser, the second from those of the first. kinds: how the
        operator of this name is refused in each; "": it is not."""
        found: list[list[Any]] = []
        for module, kind, role in zip(self.modules, kinds, ("forward", "backward"), strict=True):
            given = self.arguments[len(found)]
            if found:
                given = [
                    found[0][place] if place >= 0 else x
                    for place, x in zip(self.places, given, strict=True)
                ]
            with monkeypatch.context() as patch:
                if kind:
                    refuse(patch, name, kind)
                compute = backend._run(module, Options(freeze=False), role, (), {}, False)
                found.append(compute(list(given)))
        return found


def operators(module: Any) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if hasattr(node.target, "_schema")]


def traced(monkeypatch: pytest.MonkeyPatch, f: Any, shapes: Sequence[tuple[int, ...]]) -> Traced:
    found = Traced()

    def noted(module: Any, *_: Any, **__: Any) -> Any:
        def run(arguments: list[Any]) -> Any:
            found.modules.append(module)
            found.arguments.append(list(arguments))
            found.results.append(list(module.forward(*arguments)))
            return found.results[-1]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    with monkeypatch.context() as patch:
        patch.setattr(backend, "_compile_traced", noted)
        leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
        torch.compile(f, backend="fuser")(*leaves).sum().backward()
    return found


def refuse(patch: pytest.MonkeyPatch, operator: str, kind: str) -> None:
    """Let the importer not know an operator, or fail at it."""
    if kind == "unknown":
        known = importer.find
        patch.setattr(importer, "find", lambda op: None if str(op) == operator else known(op))
        return

    def fail(*_: Any, **__: Any) -> Any:
        if kind == "nothing":
            return None
        raise UnsupportedError("refused") if kind == "refused" else KeyError("a defect")

    patch.setitem(ATEN, operator.partition(".")[2], fail)


KINDS = ("unknown", "refused", "defect", "nothing")


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_operator_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused in the forward graph, in the backward graph, or in both: results and what is kept
    between them are those of PyTorch, and the warning names the operator."""
    found = traced(monkeypatch, *PROGRAMS[name])
    for number, operator in enumerate(found.operators):
        has = [operator in operators(module) for module in found.modules]
        kind = KINDS[(number + len(name)) % len(KINDS)]
        places = [(True, True)] if all(has) else [(has[0], has[1])]
        if all(has) and number % 3 == 0:
            places += [(True, False), (False, True)]
        for where in places:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                results = found.run(
                    monkeypatch, [kind if is_in else "" for is_in in where], operator
                )
            for ours, theirs in zip(results, found.results, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
            texts = [str(w.message) for w in told if "fuser leaves" in str(w.message)]
            assert texts and all(operator in text for text in texts), (operator, where, texts)
            if kind != "nothing":
                assert all(("defect of fuser" in text) == (kind == "defect") for text in texts)


@pytest.mark.parametrize("graph", ["forward", "backward"])
def test_a_graph_that_does_not_compile(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that no node is to blame for leaves one of the two graphs as a whole."""
    from fuser.frontends.torch import program

    compile_graph = program.compile_graph

    def fail(made: Any, options: Any, origin: Any) -> Any:
        if origin.name == graph:
            raise CompileError("no code for this")
        return compile_graph(made, options, origin)

    monkeypatch.setattr(program, "compile_graph", fail)
    f, shapes = PROGRAMS["norm"]
    with pytest.warns(RuntimeWarning, match="leaves a graph to PyTorch.*no code for this"):
        compare(f, *(torch.randn(shape) for shape in shapes))


# Programs with operators that are not supported --------------------------------------------------

Tensors = list[Any]


def step(f: Any, given: Sequence[Any], train: bool, seed: int) -> Tensors:
    torch.manual_seed(seed)
    leaves = [x.detach().clone().requires_grad_(train and x.is_floating_point()) for x in given]
    with torch.set_grad_enabled(train):
        found = f(*leaves)
    results = list(found) if isinstance(found, tuple | list) else [found]
    if train:
        sum(x.float().square().sum() for x in results if x.requires_grad).backward()
    return [*results, *(x.grad for x in leaves)]


def compare(f: Any, *given: Any, train: bool = True, steps: int = 2, **options: Any) -> None:
    """Results and gradients are those of PyTorch, with the same random numbers."""
    torch._dynamo.reset()
    fast = torch.compile(f, backend="fuser", fullgraph=True, **options)
    for seed in range(steps):
        ours, theirs = (step(g, given, train, seed) for g in (fast, f))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def route(x: Any) -> Any:
    """What experts of a mixture ask: how many tokens each has."""
    weights, chosen = torch.softmax(x @ x.t() * 0.05, -1).topk(2, -1)
    counts = torch.histc(chosen.float(), bins=8, min=0, max=7)
    return (weights * 2).exp(), (x * counts[:, None]).relu(), counts.cumsum(0)


def experts(x: Any, up: Any, down: Any) -> Any:
    """A mixture of experts: rows by expert, matmuls of groups of rows, and rows as they were."""
    weights, chosen = x[:, : up.shape[0]].softmax(-1).topk(2, -1)
    order = chosen.flatten().argsort(stable=True)
    counts = torch.histc(chosen.flatten().float(), bins=up.shape[0], min=0, max=up.shape[0] - 1)
    ends = counts.cumsum(0).int()
    hidden = torch._grouped_mm(x[order // 2].bfloat16(), up, offs=ends)
    found = torch._grouped_mm(hidden.relu() * 0.5, down, offs=ends).float()
    found = found * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, order // 2, found)


def in_a_row(x: Any) -> Any:
    for _ in range(3):
        x = torch.erfinv((x * 0.1).tanh()) + x
    return x


def of_a_view(x: Any) -> Any:
    """Operators that read strides, of views of what kernels make."""
    y = (x * 2).t()[1:].unsqueeze(1)
    return torch.special.i0e(y).sin().transpose(0, 2), torch.special.i0e(y.expand(-1, 3, -1))


def of_arguments(x: Any, w: Any) -> Any:
    """A weight that is made ready long before it is read."""
    wide = w.double().t()
    return torch.erfinv(x.tanh() * 0.5).double() @ wide, torch.special.i0e(x)


def of_two(x: Any) -> Any:
    values, vectors = torch.linalg.eigh(x @ x.t() + torch.eye(x.shape[0]))
    return values.exp(), vectors.abs() * 2


LEFT: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "route": (route, ((8, 16),)),
    "in a row": (in_a_row, ((5, 6),)),
    "of a view": (of_a_view, ((4, 5),)),
    "of arguments": (of_arguments, ((3, 8), (8, 8))),
    "at the end": (lambda x: torch.special.i0e((x * 2).exp().t()), ((3, 5),)),
    "at the start": (lambda x: torch.special.i0e(x).exp().t() * 2, ((3, 5),)),
    "side by side": (lambda x: torch.special.i0e(x.sin()) + torch.erfinv(x.tanh() * 0.9), ((9,),)),
}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", LEFT)
@pytest.mark.filterwarnings("ignore:fuser leaves operators")
def test_programs_around_operators(name: str, train: bool) -> None:
    f, shapes = LEFT[name]
    compare(f, *(torch.randn(shape) for shape in shapes), train=train)


def test_experts_are_split_at_their_matmuls_alone() -> None:
    up, down = torch.randn(3, 16, 24).bfloat16(), torch.randn(3, 24, 16).bfloat16()
    with pytest.warns(RuntimeWarning) as caught:
        compare(experts, torch.randn(6, 16), up, down, train=False)
    (told,) = [str(one.message) for one in caught if "fuser leaves" in str(one.message)]
    assert told.startswith("fuser leaves operators to PyTorch: aten._grouped_mm.default (2 times)")


@pytest.mark.filterwarnings("ignore:fuser leaves operators")
def test_several_results_of_an_operator() -> None:
    compare(of_two, torch.randn(4, 6), train=False)


@pytest.mark.filterwarnings("ignore:fuser leaves operators")
@pytest.mark.parametrize("train", [True, False])
def test_open_sizes_around_an_operator(train: bool) -> None:
    torch._dynamo.reset()
    fast = torch.compile(route, backend="fuser", dynamic=True)
    for rows in (8, 8, 8):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(step(fast, [x], train, 0), step(route, [x], train, 0))

    def f(x: Any) -> Any:
        y = (x * 2).t()
        return torch.special.i0e(y + y.shape[0]).exp() * x.shape[0]

    fast = torch.compile(f, backend="fuser", dynamic=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(step(fast, [x], train, 0), step(f, [x], train, 0))


def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are compiled from now on."""
    made: list[Any] = []

    class Noted(backend.FxProgram):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(self)

    monkeypatch.setattr(backend, "FxProgram", Noted)
    return made


def test_parts_are_as_few_as_operators_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernels(monkeypatch)
    with pytest.warns(
        RuntimeWarning, match=r"special_i0e.*\(2 times\).*test_left_operators.py:\d+"
    ):
        compare(
            lambda x: torch.special.i0e(x.sin()) + torch.special.i0e(x.cos()).exp() * x,
            torch.randn(5), train=False,
        )  # fmt: skip
    assert [len(program.plans) for program in made] == [1, 1]


def test_views_of_what_is_given_are_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch makes the views that its operators read."""
    made = kernels(monkeypatch)
    seen: list[Any] = []
    with torch.library._scoped_library("left", "DEF") as library:
        library.define("look(Tensor x) -> Tensor")

        def look(x: Any) -> Any:
            seen.append((x.stride(), x.data_ptr()))
            return x.sum(0)

        library.impl("look", look, "CPU")
        library.impl("look", lambda x: x.new_empty(x.shape[1:]), "Meta")
        x = torch.randn(3, 4)
        with torch.no_grad(), pytest.warns(RuntimeWarning, match="left.look"):
            f = torch.compile(lambda x: torch.ops.left.look(x.t()[1:]).exp() * 2, backend="fuser")
            found = f(x)
    assert seen[-1] == ((1, 4), x.data_ptr() + 4)
    torch.testing.assert_close(found, x.t()[1:].sum(0).exp() * 2)
    assert len(made) == 1


def test_little_else_than_such_operators_is_left_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = kernels(monkeypatch)
    with pytest.warns(RuntimeWarning, match="fuser leaves a graph to PyTorch: aten.special_i0e"):
        compare(lambda x: torch.special.i0e(x.t()).unsqueeze(1), torch.randn(3, 4), train=False)
    assert not made


def test_buffers_change_beside_an_operator() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x: Any) -> Any:
            return torch.special.i0e(self.norm(x)).exp()

    nets = [Net(), Net()]
    fast = torch.compile(nets[0], backend="fuser", fullgraph=True)
    with pytest.warns(RuntimeWarning, match="fuser leaves operators"):
        for _ in range(2):
            x = torch.randn(5, 6)
            torch.testing.assert_close(step(fast, [x], True, 0), step(nets[1], [x], True, 0))
    for ours, theirs in zip(nets[0].buffers(), nets[1].buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


# Attention within functions of PyTorch's ----------------------------------------------------------


def padded() -> Any:
    mask = torch.zeros(2, 13, dtype=torch.bool)
    mask[1, 9:] = True
    return mask


def attend(module: Any, **options: Any) -> Any:
    return lambda x: module(x, x, x, need_weights=False, **options)[0]


def attention_cases() -> dict[str, Callable[[], tuple[Any, Any]]]:
    mask = nn.Transformer.generate_square_subsequent_mask(13)
    first = {"batch_first": True}
    layer = {"dropout": 0.0, **first}

    def case(module: Any, **options: Any) -> tuple[Any, Any]:
        return module, attend(module, **options)

    def decoder() -> tuple[Any, Any]:
        module = nn.TransformerDecoderLayer(24, 4, 40, **layer)
        return module, lambda x: module(x, x * 2)

    def encoder(**options: Any) -> tuple[Any, Any]:
        module = nn.TransformerEncoderLayer(24, 4, 40, **layer, **options)
        return module, module

    heads = nn.MultiheadAttention
    return {
        "plain": lambda: case(heads(24, 3, **first)),
        "mask": lambda: case(heads(24, 3, **first), attn_mask=mask),
        "causal": lambda: case(heads(24, 3, **first), attn_mask=mask, is_causal=True),
        "padding": lambda: case(heads(24, 3, **first), key_padding_mask=padded()),
        "length first": lambda: case(heads(24, 4)),
        "zeros": lambda: case(heads(24, 4, bias=False, add_zero_attn=True, **first)),
        "encoder": encoder,
        "norm first": lambda: encoder(norm_first=True),
        "decoder": decoder,
    }


@pytest.mark.parametrize("name", attention_cases())
def test_gradients_of_attention_within_modules(name: str) -> None:
    """Nothing is left to PyTorch, and no matrix of [length, length] is kept."""
    module, f = attention_cases()[name]()
    x = torch.randn(2, 13, 24)
    found = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        for g in (torch.compile(f, backend="fuser", fullgraph=True), f):
            module.zero_grad()
            results = step(g, [x], True, 0)
            found.append([*results, *(p.grad.clone() for p in module.parameters())])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
