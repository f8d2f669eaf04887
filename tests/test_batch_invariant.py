"""batch_invariant=True: the bits of a row are the same alone, in a batch, and for all threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper, parser

import fuser
from fuser.base.target import TARGETS, Target
from fuser.cli.main import main
from fuser.graph.dims import symbol
from fuser.graph.numerics import Numerics, using
from fuser.graph.sizes import Sizes
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.options import CompileOptions
from fuser.tilegen.rules import rules_of
from fuser.tilegen.rules.problem import Problem
from models import TINY, build, example_feeds, save
from tests.tilegen.problems import image
from tests.tilegen_emit.graphs import Model

Arrays = dict[str, np.ndarray]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
BATCHES = (1, 2, 3, 8, 17, 64)
MOST = max(BATCHES)
SEQUENCE = 9
INVARIANT = Numerics(batch_invariant=True)
H200 = TARGETS["sm_90a"]
CPU = TARGETS["avx512"]


def batched(model: onnx.ModelProto) -> tuple[dict[str, int], dict[str, int]]:
    """Of a model's inputs, the axis of the batch; of its other symbols, sizes."""
    axes: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for value in model.graph.input:
        names = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        if "batch" in names:
            axes[value.name] = names.index("batch")
        sizes |= {name: SEQUENCE for name in names if name and name != "batch"}
    return axes, sizes


def part(feeds: Arrays, axes: Mapping[str, int], rows: slice) -> Arrays:
    """Some rows of the feeds."""
    return {
        name: np.ascontiguousarray(array[rows]) if axes.get(name) == 0 else array
        for name, array in feeds.items()
    }


def assert_rows(found: Mapping[str, np.ndarray], whole: Arrays, rows: slice, what: str) -> None:
    for name, array in found.items():
        assert array.tobytes() == whole[name][rows].tobytes(), f"{name} of {what}"


def runs(
    model: onnx.ModelProto, device: str, **options: object
) -> Iterator[tuple[str, int, fuser.Plan | fuser.DynamicPlan]]:
    """(what, batch, plan): one plan of an open batch, and plans of some batches and threads."""
    _, sizes = batched(model)
    options |= {"device": device, "batch_invariant": True}
    plan = fuser.compile(model, dynamic=True, dims=sizes, threads=3, **options)
    yield from (("the open plan", batch, plan) for batch in BATCHES)
    for batch, threads in ((1, 1), (2, 8), (17, 2)):
        one = fuser.compile(model, dims={"batch": batch, **sizes}, threads=threads, **options)
        yield f"{threads} threads", batch, one


def check(model: onnx.ModelProto, device: str, **options: object) -> None:
    """Each batch, from the first row and from a later one, beside all rows at once."""
    axes, sizes = batched(model)
    assert set(axes.values()) == {0}
    feeds = example_feeds(model, {"batch": MOST, **sizes}, seed=3)
    whole = fuser.compile(
        model, device=device, dims={"batch": MOST, **sizes}, batch_invariant=True, **options
    ).run(feeds)
    for what, batch, plan in runs(model, device, **options):
        for first in {0, MOST - batch}:
            rows = slice(first, first + batch)
            assert_rows(plan.run(part(feeds, axes, rows)), whole, rows, f"{batch} rows, {what}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(TINY))
def test_rows_of_models(name: str, device: str) -> None:
    try:
        model = build(name, **TINY[name])
    except FileNotFoundError as error:  # MiniLM's weights are a package of their own
        pytest.skip(str(error))
    check(model, device)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "resnet50"])
def test_rows_of_models_of_halves(name: str, dtype: str) -> None:
    check(build(name, dtype, **TINY[name]), "cuda")


CASES = {
    "deep k": ("y = MatMul(x, w)", "batch,8192", "batch,192", {"w": (8192, 192)}),
    "k along memory": (
        "t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(x, t)",
        "batch,3,128", "batch,3,3", {},
    ),
    "long softmax": ("y = Softmax<axis = -1>(x)", "batch,1001", "batch,1001", {}),
    "short softmax": ("y = Softmax<axis = -1>(x)", "batch,9", "batch,9", {}),
    "norm": (
        "y = LayerNormalization<axis = -1>(x, s, s)", "batch,5000", "batch,5000", {"s": (5000,)},
    ),
    "mean of columns": (
        "a = Constant<value_ints = [1]>() y = ReduceMean<keepdims = 0>(x, a)",
        "batch,33,48", "batch,48", {},
    ),
    "attention": (
        "y = Attention<is_causal = 1, q_num_heads = 2, kv_num_heads = 2>(x, x, x)",
        "batch,150,32", "batch,150,32", {},
    ),
    "convolution": (
        "y = Conv<pads = [1, 1, 1, 1]>(x, w)", "batch,64,8,8", "batch,48,8,8",
        {"w": (48, 64, 3, 3)},
    ),
    "codes": (
        "c = Cast<to = 3>(q) d = DequantizeLinear<axis = 0, block_size = 32>(c, s)"
        " y = MatMul(x, d)",
        "batch,512", "batch,96", {"q": (512, 96), "s": (16, 96)},
    ),
    "a grid": ("y = MatMul(x, g)", "batch,512", "batch,96", {"g": (512, 96)}),
}  # fmt: skip


def case(name: str, dtype: str) -> onnx.ModelProto:
    """A model of one case. q are whole numbers, g lie on a grid, s are above 0."""
    body, takes, gives, weights = CASES[name]
    head = '<ir_version: 10, opset_import: ["": 23]>'
    proto = parser.parse_model(
        f"{head} rows ({dtype}[{takes}] x) => ({dtype}[{gives}] y) {{ {body} }}"
    )
    rng = np.random.default_rng(5)
    for key, shape in weights.items():
        array = rng.standard_normal(shape) / np.sqrt(shape[0])
        if key == "q":
            array = rng.integers(-100, 100, shape).astype(np.float64)
        elif key == "g":
            array = rng.integers(-7, 8, shape) / 8
        elif key == "s":
            array = np.abs(array) + 0.1
        kind = {"float": np.float32, "float16": np.float16}[dtype]
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(kind), key))
    return proto


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_rows_of_kernels(name: str, dtype: str, device: str) -> None:
    check(case(name, dtype), device)


@pytest.mark.parametrize("precision", ["bf16", "int8w"])
def test_rows_of_rounded_operands(precision: str) -> None:
    check(build("mlp", **TINY["mlp"]), "cpu", precision=precision)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_a_decoder_with_state(device: str) -> None:
    """A prompt and steps of sequences alone, of two and of eight; then of more threads."""
    proto = build("llama", cache=True, **TINY["llama"])
    rng = np.random.default_rng(2)
    ids = rng.integers(1, 1000, (8, 9))

    def follow(rows: slice, threads: int) -> list[Arrays]:
        plan = fuser.compile(
            proto, state="auto", device=device, threads=threads, batch_invariant=True
        )
        some = ids[rows]
        state = plan.state(batch=len(some), capacity=16)
        parts = [some[:, :5], *(some[:, at : at + 1] for at in range(5, 9))]
        return [dict(state.run({"input_ids": tokens})) for tokens in parts]

    whole = follow(slice(0, 8), 2)
    for rows, threads in ((slice(0, 1), 1), (slice(7, 8), 8), (slice(3, 5), 3)):
        for step, (one, all_) in enumerate(zip(follow(rows, threads), whole, strict=True)):
            assert_rows(one, all_, rows, f"step {step} of {rows}")


def test_a_prompt_is_what_its_steps_are() -> None:
    """Tokens are rows, too: what follows a prompt is the same after it at once and token by
    token."""
    proto = build("llama", cache=True, **TINY["llama"])
    ids = np.random.default_rng(4).integers(1, 1000, (2, 20))
    plan = fuser.compile(proto, state="auto", device="cpu", threads=2, batch_invariant=True)
    last = []
    for lengths in ((20,), (12, 8), (5, *[1] * 15)):
        state, at = plan.state(batch=2, capacity=32), 0
        for length in lengths:
            found = state.run({"input_ids": ids[:, at : at + length]})
            at += length
        last.append(found["logits"][:, -1].tobytes())
    assert last[1:] == last[:-1]


def test_arrays_of_a_traced_function() -> None:
    weights = np.random.default_rng(1).standard_normal((2048, 64)).astype(np.float32)

    @fuser.jit(batch_invariant=True)
    def rows(x: np.ndarray) -> tuple[np.ndarray, ...]:
        y = x @ weights
        shares = np.exp(y - y.max(axis=-1, keepdims=True))
        return shares / shares.sum(axis=-1, keepdims=True), y.mean(axis=-1), np.var(y, axis=-1)

    x = np.random.default_rng(2).standard_normal((MOST, 2048)).astype(np.float32)
    whole = rows(x)
    for batch in BATCHES:
        for one, all_ in zip(rows(x[:batch].copy()), whole, strict=True):
            assert one.tobytes() == all_[:batch].tobytes()


def test_tensors_of_a_module() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = (torch.nn.Linear(512, 300), torch.nn.GELU(), torch.nn.LayerNorm(300))
    module = torch.nn.Sequential(*layers, torch.nn.Linear(300, 70)).eval()
    x = torch.randn(17, 512, generator=torch.Generator().manual_seed(0))
    compiled = fuser.compile(module, batch_invariant=True)
    with torch.no_grad():
        whole = compiled(x)
        for batch in (1, 2, 3, 8):
            assert torch.equal(compiled(x[:batch].clone()), whole[:batch])


def test_without_it_few_rows_have_another_order() -> None:
    """The case that shows what the flag is for: else the rules cut a long k for many rows alone."""
    m = Model()
    m.output(m.dot(m.input(128, 8192), m.weight(8192, 192), (1, 0)))
    (region,) = compile_graph(m.graph, CompileOptions(device="cpu")).report().regions
    assert region.schedule["block_k"] < 8192
    with using(batch_invariant=True):
        m = Model()
        m.output(m.dot(m.input(128, 8192), m.weight(8192, 192), (1, 0)))
        (region,) = compile_graph(m.graph, CompileOptions(device="cpu")).report().regions
    assert region.schedule["block_k"] == 8192


# rules --------------------------------------------------------------------------------------------

ROWS = (1, 2, 7, 16, 17, 64, 100, 128, 1000, 4096)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize(("n", "k"), [(64, 64), (768, 3072), (4096, 4096), (50, 300), (32000, 512)])
def test_matmuls_of_a_gpu_differ_in_tiles_alone(n: int, k: int, bits: int) -> None:
    rule = rules_of(H200, INVARIANT).matmul
    orders = set()
    for m in ROWS:
        for batch in (1, 12):
            for streamed in (False, True):
                more = {"batch": batch, "streamed": streamed, "folded": False, "packed": True}
                found = rule(H200, Problem(m, n, k, bits, **more))  # type: ignore[arg-type]
                unit = bits == 32 or (found.block("m") % 64 == 0 and found.warps % 4 == 0)
                orders.add((found.block("k"), found.split_k, found.cluster, found.stream_k, unit))
                assert not (found.tf32x3 or found.late_scales)
    assert len(orders) == 1
    ((_, *shared, unit),) = orders
    assert shared == [1, 1, 0]
    assert unit


@pytest.mark.parametrize("target", [CPU, H200], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("n", "depth"), [(17, 64), (1024, 64), (4096, 128), (130, 32)])
def test_attention_differs_in_rows_alone(n: int, depth: int, target: Target) -> None:
    rule = rules_of(target, INVARIANT).attention
    orders = {
        (found.block("n"), found.split_k, found.cluster)
        for m in ROWS
        for batch in (1, 12, 64)
        for causal in (False, True)
        for found in [rule(target, batch, m, n, depth, depth, 16, causal=causal)]
    }
    assert len(orders) == 1


@pytest.mark.parametrize("target", [CPU, H200], ids=["cpu", "gpu"])
@pytest.mark.parametrize("total", [3, 64, 768, 5000, 16384, 100_000])
def test_reductions_do_not_look_at_rows(total: int, target: Target) -> None:
    rule = rules_of(target, INVARIANT).reduce
    found = [rule(target, rows, total, 1, 2, 2, (1, 2, 2)) for rows in ROWS]
    orders = {(item.block("total"), item.cluster, item.warps) for item in found}
    assert len(orders) == 1
    if target.is_cuda:  # what lies in a block decides which thread adds what
        assert len({item.block("rows") for item in found}) == 1


def test_examples_of_open_sizes_decide_nothing() -> None:
    """A variant that was made for other sizes adds up as the one that was made for these."""
    rules = rules_of(H200, INVARIANT)
    found = set()
    for length in (9, 300, 5000):
        with Sizes({"rows": 2 * length, "length": length}):
            rows, total = symbol("rows"), symbol("length")
            reduced = rules.reduce(H200, rows, total, 1, 2, 2)
            seen = rules.attention(H200, rows, rows, total, 64, 64, 16)
            on_cpu = rules_of(CPU, INVARIANT).attention(CPU, rows, rows, total, 64, 64, 32)
        blocks = (reduced.block("total"), seen.block("n"), on_cpu.block("n"))
        found.add((blocks, reduced.warps, seen.split_k, on_cpu.split_k))
    assert len(found) == 1


@pytest.mark.parametrize("channels", [3, 32, 64, 256])
@pytest.mark.parametrize("bits", [16, 32])
def test_convolutions_of_a_gpu_differ_in_tiles_alone(channels: int, bits: int) -> None:
    rule = rules_of(H200, INVARIANT).conv
    orders = set()
    for m in ROWS:
        found = rule(H200, image(m * 49, 128, channels, 9, bits, streamed=True))
        unit = bits == 32 or (found.block("m") % 64 == 0 and found.warps % 4 == 0)
        orders.add((found.block("k"), found.split_k, found.cluster, found.stream_k, unit))
    assert len(orders) == 1
    assert orders.pop()[-1]


# what is told and kept ----------------------------------------------------------------------------


def test_it_is_told_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    save(build("mlp", **TINY["mlp"]), path)
    plan = fuser.compile(path, device="cpu", batch_invariant=True)
    assert plan.report().numerics == "model, batch invariant"
    plan.save(tmp_path / "mlp.plan")
    again = fuser.load(tmp_path / "mlp.plan")
    assert again.report().numerics == "model, batch invariant"
    told = CliRunner().invoke(main, ["explain", str(path), "--device", "cpu", "--batch-invariant"])
    assert told.exit_code == 0, told.output
    assert "batch invariant" in told.output
    assert "k from the first step to the last" in told.output
    plain = CliRunner().invoke(main, ["explain", str(path), "--device", "cpu"])
    assert "batch invariant" not in plain.output
