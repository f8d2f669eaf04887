"""Transformers on two, three and four ranks are the transformers: `fuser shard` finds what to
divide, and a layer takes two all-reduces."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import fuser
from fuser import dtypes
from fuser.cli.main import run
from fuser.errors import DeviceError, KeywordError, UnsupportedError, UsageError
from fuser.frontends.onnx.model import open_model, random_feeds
from fuser.frontends.onnx.sharding.compile import divided
from fuser.frontends.onnx.sharding.write import annotate
from fuser.graph.builder import Builder
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.passes import run_passes
from fuser.graph.sharding.layout import Layout, Split, join, normal, part, whole
from fuser.graph.sharding.shard import collectives, shard
from fuser.graph.sharding.wishes import Marks
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.options import CompileOptions
from fuser.runtime.collectives import Threads
from models.bert import bert
from models.gpt2 import gpt2
from models.llama import llama
from models.vit import vit
from tests.numerics import assert_close
from tests.sharding.ranks import evaluate_ranks

SIZES = {"batch": 2, "hidden": 48, "heads": 12}
WORDS = {**SIZES, "sequence": 8}
LAYERS = 2
MODELS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "bert": lambda n: bert(**WORDS, layers=n, vocabulary=64, positions=16),
    "gpt2": lambda n: gpt2(**WORDS, layers=n, vocabulary=60, positions=16),
    "llama": lambda n: llama(**WORDS, layers=n, kv_heads=4, intermediate=96, vocabulary=60),
    "llama of opset 23": lambda n: llama(
        **WORDS, layers=n, kv_heads=4, intermediate=96, vocabulary=60, modern=True
    ),
    "vit": lambda n: vit(**SIZES, layers=n, image=16, patch=8, classes=24),
}


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_compute_the_model(name: str, ranks: int) -> None:
    model, division = annotate(MODELS[name](LAYERS), ranks)
    undivided = 2 * LAYERS if name.startswith("llama") and ranks == 3 else 0
    assert division.whole == undivided  # K and V of four heads
    count, sharded, _, graph = divided(open_model(model), ranks, {})
    found = [sharded(rank) for rank in range(count)]
    for one in found:
        met = [(node.op, node.attrs["groups"]) for node in collectives(one.graph)]
        assert met == [("all_reduce", (tuple(range(ranks)),))] * 2 * LAYERS
    feeds = random_feeds(open_model(model))
    expected = evaluate(graph, feeds, float64=True)
    for name, array in evaluate_ranks(found, feeds).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-12, atol=1e-12)


def test_ranks_keep_their_heads_of_a_cache() -> None:
    sizes = {**WORDS, "sequence": 1, "layers": LAYERS}
    model, _ = annotate(llama(**sizes, kv_heads=4, vocabulary=60, cache=True), 2)
    count, sharded, _, graph = divided(open_model(model), 2, {"past": 5})
    found = [sharded(rank) for rank in range(count)]
    assert len(list(collectives(found[0].graph))) == 2 * LAYERS
    parts = {**found[0].inputs, **found[0].outputs}
    assert parts["past_key_values.1.key"].local == (2, 2, 5, 4)
    assert parts["present.0.value"].local == (2, 2, 6, 4)
    feeds = random_feeds(open_model(model), {"past": 5})
    expected = evaluate(graph, feeds, float64=True)
    for name, array in evaluate_ranks(found, feeds).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "ranks"), [("gpt2", 3)])
def test_plans_of_ranks_compute_the_model(name: str, ranks: int) -> None:
    """float32, on threads; bits are the same in every run."""
    model, _ = annotate(MODELS[name](1), ranks)
    _, sharded, _, graph = divided(open_model(model), ranks, {})
    found = [sharded(rank) for rank in range(ranks)]
    feeds = random_feeds(open_model(model))
    expected = evaluate(graph, feeds, float64=True)
    plans = [
        compile_graph(run_passes(one.graph), CompileOptions(device="cpu", threads=1))
        for one in found
    ]
    with pytest.raises(UsageError, match="one rank's part"):
        plans[0].run({k: part(a, found[0].inputs[k], 0) for k, a in feeds.items()})

    def work(comm: object) -> list[dict[str, np.ndarray]]:
        rank = comm.rank  # type: ignore[attr-defined]
        own = {k: part(a, found[rank].inputs[k], rank) for k, a in feeds.items()}
        plan = plans[rank].join(comm)  # type: ignore[arg-type]
        return [plan.run(own) for _ in range(3)]

    outputs = Threads(ranks).run(work)
    for output, layout in found[0].outputs.items():
        runs = [join([o[i][output] for o in outputs], layout) for i in range(3)]
        assert_close(runs[0], expected[output], dtypes.f32, SIZES["hidden"])
        for again in runs[1:]:
            np.testing.assert_array_equal(again, runs[0])
    named = [region.kind for region in plans[0].report().regions]
    assert named.count("collective") == 2


@pytest.fixture(scope="module")
def bert_plan() -> Iterator[fuser.ShardedPlan]:
    with fuser.compile(MODELS["bert"](1), devices=2, device="cpu") as plan:
        yield plan


def test_a_process_a_rank(bert_plan: fuser.ShardedPlan, tmp_path: Path) -> None:
    model = open_model(MODELS["bert"](1))
    feeds = bert_plan.random_feeds(seed=3)
    expected = evaluate(model.graph({}), feeds, float64=True)
    outputs = bert_plan.run(feeds)
    for name, array in outputs.items():
        assert_close(array, expected[name], dtypes.f32, SIZES["hidden"])
    assert [c.kind for c in bert_plan.collectives] == ["all_reduce"] * 2
    assert len(bert_plan.profile_kernels(feeds, iterations=2)) == bert_plan.launches
    assert bert_plan.profile(feeds, iterations=2).iterations == 2
    kinds = [launch.kind for launch in bert_plan.report().launches]
    assert kinds.count("collective") == 2
    bert_plan.save(tmp_path / "bert.plan")
    loaded = fuser.load(tmp_path / "bert.plan")
    assert isinstance(loaded, fuser.ShardedPlan)
    with loaded:
        for name, array in loaded.run(feeds).items():
            np.testing.assert_array_equal(array, outputs[name])
        with pytest.raises(UsageError, match="feeds for 1 of 2"):
            loaded.run_ranks([feeds])
        os.kill(loaded.pids[1], signal.SIGKILL)
        with pytest.raises(DeviceError, match="gone"):
            loaded.run(feeds)
        with pytest.raises(DeviceError, match="ended"):
            loaded.run(feeds)
    one = fuser.load(tmp_path / "bert.plan" / "rank1.plan")
    assert isinstance(one, fuser.Plan)
    assert one.program.launches == bert_plan.programs[1].launches
    note = tmp_path / "bert.plan" / "sharding.json"
    note.write_text(note.read_text().replace('"ranks": 2', '"ranks": 1'))
    with pytest.raises(fuser.FuserError, match=r"malformed|ranks"):
        fuser.load(tmp_path / "bert.plan")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, noted = tmp_path / "bert.onnx", tmp_path / "bert2.onnx"
    onnx.save(MODELS["bert"](1), path)
    assert run(["shard", str(path), "--devices", "2", "-o", str(noted)]) == 0
    assert "2 all_reduce" in capsys.readouterr().out
    assert onnx.load(noted).configuration[0].num_devices == 2
    onnx.checker.check_model(onnx.load(noted), full_check=True)
    arguments = ["run", str(noted), "--devices", "2", "--device", "cpu", "--iterations", "1"]
    assert run([*arguments, "--compare", "reference"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 all_reduce, each rank gives" in shown and "compare ok" in shown
    assert run([*arguments[:2], "--devices", "5", "--device", "cpu"]) == 2
    assert "no device configuration for 5" in capsys.readouterr().err


def test_what_cannot_be_divided_says_so() -> None:
    with pytest.raises(UnsupportedError, match="no matmuls of the model divide over 5"):
        annotate(MODELS["gpt2"](1), 5)
    with pytest.raises(KeywordError, match="tune"):
        fuser.compile(MODELS["gpt2"](1), devices=2, tune=True)


def test_movement_in_front_of_a_collective_is_written() -> None:
    """Parts of a middle axis: ranks exchange the outermost, so something is transposed before."""
    graph = Graph("g")
    x = graph.add_input("x", TensorType(dtypes.f32, (3, 4, 5)))
    b = Builder(graph, ("node",))
    rng = np.random.default_rng(0)
    w = b.constant(rng.standard_normal((5, 6)).astype(np.float32))
    y = b.matmul(x, w)
    z = b.reshape(b.map("exp", y), (12, 6))
    graph.outputs, graph.output_names = [y, z], ["y", "z"]
    halves = Split(2, (1, 0))
    assert y.node is not None
    marks = Marks(2)
    axes = whole(y.shape).axes
    marks.uses[y.node, x] = Layout((*whole(x.shape).axes[:2], normal([(5, None)])))
    marks.results[y] = Layout((axes[0], normal([(4, halves)]), axes[2]))
    marks.results[z] = whole(z.shape)
    other = graph.add_input("other", TensorType(dtypes.f32, (6, 4)))
    v = b.matmul(z, other)
    assert v.node is not None
    marks.uses[v.node, z] = Layout((normal([(12, None)]), normal([(6, halves)])))
    marks.results[v] = Layout((normal([(3, None), (4, halves)]), normal([(4, None)])))
    graph.outputs.append(v)
    graph.output_names.append("v")
    ranks = [shard(graph, marks, rank) for rank in range(2)]
    kinds = [node.op for node in collectives(ranks[0].graph)]
    assert "reduce_scatter" in kinds and "all_gather" in kinds
    feeds = {
        value.name: rng.standard_normal(value.shape).astype(np.float32) for value in graph.inputs
    }
    expected = evaluate(graph, feeds, float64=True)
    plans = [
        compile_graph(run_passes(one.graph), CompileOptions(device="cpu", threads=1))
        for one in ranks
    ]
    outputs = Threads(2).run(
        lambda comm: plans[comm.rank].join(comm).run(
            {k: part(a, ranks[0].inputs[k], comm.rank) for k, a in feeds.items()}
        )
    )  # fmt: skip
    for name, layout in ranks[0].outputs.items():
        found = join([output[name] for output in outputs], layout)
        assert_close(found, expected[name], dtypes.f32, 12)
