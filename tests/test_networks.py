"""Graphs, partitions and plans as graphs of networkx, and the critical path of a run."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import fuser
from fuser.cli.main import run
from fuser.errors import UsageError
from fuser.partition import Options, cost, partition
from fuser.report.profile import path_text
from fuser.runtime.container import read_file
from fuser.runtime.critical_path import critical_path
from fuser.runtime.launch_graph import dependences
from fuser.runtime.plan import Plan
from fuser.runtime.program import BufferRef, Dependence, Launch, Program
from models import TINY, build, save
from tests.interpreted import TARGETS
from tests.networks import check_launches, check_regions, launches, without_code
from tests.partition.support import SM_90A, Net
from tests.random_graphs.check import prepared
from tests.random_graphs.draw import draw
from tests.runtime.damage import whole

# The oracle ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("first", range(0, 24, 8))
def test_random_graphs_in_every_order(first: int, target: str) -> None:
    """Regions and launches stand in an order of the data's flow; any other order that their graph
    allows finds the same in memory."""
    reused = 0
    for seed in range(first, first + 8):
        for fusion in (True, False):
            options = Options(no_fusion=not fusion)
            cut = partition(prepared(draw(seed).graph, fusion), TARGETS[target], options)
            check_regions(cut)
            reused += check_launches(without_code(cut, TARGETS[target]), seed)
    assert reused > 10


@pytest.mark.parametrize("kind", ["data", "reuse"])
def test_the_oracle_misses_an_edge(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the edges of one kind some order goes wrong."""

    def fewer(program: Program) -> tuple[Dependence, ...]:
        return tuple(item for item in dependences(program) or () if item.kind != kind)

    monkeypatch.setattr("tests.networks.dependences", fewer)
    cuts = [partition(prepared(draw(seed).graph, False), SM_90A) for seed in range(8)]
    with pytest.raises(AssertionError):
        for cut in cuts:
            check_launches(without_code(cut, SM_90A))


# Launches -----------------------------------------------------------------------------------------


def program(*steps: str) -> Program:
    """A program from texts: "r0 W64+32 wo0" reads input 0, begins a value of 32 bytes at 64 of the
    arena, and writes output 0; 32 bytes where none are given."""
    made = []
    for number, step in enumerate(steps):
        letters, refs, sizes = "", [], []
        for use in step.split():
            place, _, size = use[1:].partition("+")
            letters += use[0]
            space: Any = {"i": "input", "o": "output"}.get(place[0], "arena")
            refs.append(BufferRef(space, int(place.lstrip("io"))))
            sizes.append(int(size or 32))
        kernel: Any = type("Kernel", (), {"name": f"k{number}"})
        made.append(Launch(kernel, tuple(refs), sizes=tuple(sizes), access=letters))
    return Program(SM_90A, (), (), tuple(made))


def edges(*steps: str) -> str:
    found = dependences(program(*steps))
    assert found is not None
    return " ".join(f"{d.source}{'>' if d.kind == 'data' else '~'}{d.target}" for d in found)


def test_what_launches_wait_for() -> None:
    assert edges("ri0 W0", "r0 W32", "r0 W64", "r32 r64 wo0") == "0>1 0>2 1>3 2>3"
    assert edges("ri0 W0", "ri1 W32", "r0 wo0") == "0>2"  # nobody waits for the second
    assert edges("ri0 W0", "r0 wo0", "ri1 W0", "r0 wo1") == "0>1 1~2 2>3"  # memory again
    assert edges("ri0 W0", "ri1 w0", "r0 wo0") == "0>2 1>2"  # each writes a part
    assert edges("ri0 W0", "ri1 u0", "r0 wo0") == "0>1 1>2"  # one adds to the other's
    assert edges("ri0 U0 wo0", "ri0 U0 wo1") == "0~1"  # workspaces in one place
    assert edges("ri0 wo0", "ro0 wo1") == "0>1"  # an output that is read
    assert edges("ri0 wo0", "ri1 wi0", "ri0 wo1") == "0~1 1>2"  # an input that is written in place
    # A value over two older ones, of which one reached further; who writes there later waits, too.
    both = ("ri0 W0", "ri0 W32+64", "r0 r32+64 wo0", "ri0 W0+64", "r0+64 wo1", "ri1 W64+32")
    assert edges(*both) == "0>2 1>2 2~3 3>4 2~5"
    # All who write a part wait for what lay there, not the first alone.
    assert edges("ri0 W0", "r0 wo0", "ri0 W0", "ri1 w0", "r0 wo1") == "0>1 1~2 1~3 2>4 3>4"
    assert edges("ri0 -i1 wo0", "ri1 wo1") == ""
    assert edges("W0+0", "r0+0 wo0") == ""  # values of no bytes share a place
    assert [d.bytes for d in dependences(program("W0 W32", "r0 r32 wo0")) or ()] == [64]


def test_a_program_that_does_not_say_what_it_reads() -> None:
    known = program("ri0 wo0")
    assert dependences(replace(known, launches=(replace(known.launches[0], access=""),))) is None


@pytest.fixture(scope="module")
def plan() -> Plan:
    return fuser.compile(build("resnet50", **TINY["resnet50"]), device="cpu", threads=1)


def test_a_plan_as_a_graph(plan: Plan, tmp_path: Path) -> None:
    graph, report = plan.to_networkx(), plan.report()
    assert list(graph) == list(range(plan.launches)) and nx.is_directed_acyclic_graph(graph)
    for node, one in zip(graph, report.launches, strict=True):
        told = graph.nodes[node]
        assert told["sources"] == one.nodes and told["kind"] == one.kind
        assert (told["bytes"], told["flops"]) == (one.boundary.total, one.flops)
        assert (told["time_us"], told["measured"]) == (one.roofline_us, False)
    assert nx.utils.graphs_equal(graph, nx.DiGraph(graph))
    assert {kind for *_, kind in graph.edges(data="kind")} == {"data", "reuse"}
    assert check_launches(plan.program) > 0
    timed = plan.to_networkx([("", 0.001 * (1 + place)) for place in graph])
    assert [timed.nodes[node]["time_us"] for node in graph] == pytest.approx(
        [1.0 + place for place in graph]
    )
    assert all(measured for _, measured in timed.nodes(data="measured"))
    assert all(one.time_us is None for one in plan.report().launches)
    plan.save(tmp_path / "model.plan")
    with Plan.load(tmp_path / "model.plan", threads=1) as loaded:
        assert nx.utils.graphs_equal(loaded.to_networkx(), graph)
        assert loaded.report().critical_path() == report.critical_path()


def test_plans_for_open_sizes(tmp_path: Path) -> None:
    dynamic = fuser.compile(build("mlp", **TINY["mlp"]), device="cpu", dynamic=True)
    feeds = {"x": np.ones((3, TINY["mlp"]["inputs"]), np.float32)}
    dynamic.run(feeds)
    graph = dynamic.plan(feeds).to_networkx()
    assert [kind for *_, kind in graph.edges(data="kind")] == ["data", "data"]
    dynamic.save(tmp_path / "open.plan")
    loaded = fuser.DynamicPlan.load(tmp_path / "open.plan")
    assert loaded.plan(feeds).to_networkx().edges == graph.edges


def test_a_file_of_an_earlier_release(plan: Plan, tmp_path: Path) -> None:
    """It does not say what its kernels read: an error, and null in the JSON."""
    plan.save(tmp_path / "model.plan")
    data = (tmp_path / "model.plan").read_bytes()
    manifest = read_file(data, "P").manifest
    for launch in manifest["programs"][0]["launches"]:
        del launch["access"]
    (tmp_path / "old.plan").write_bytes(whole(data, manifest))
    with Plan.load(tmp_path / "old.plan", threads=1) as old:
        with pytest.raises(UsageError, match="not known which kernels wait") as raised:
            old.to_networkx()
        assert raised.value.hint == "compile the model again"
        assert old.report().to_dict()["critical_path"] is None
        assert path_text(old.report()) == ""


# Operators and regions ----------------------------------------------------------------------------


def test_operators_as_a_graph() -> None:
    net = Net()
    x = net.input("x", 8, 16)
    y = net.linear(x, 4)
    z = net.named("sum").map("add", y, y)
    graph = net.finish(net.named("turn").transpose(z, (1, 0)))
    found = graph.to_networkx(SM_90A)
    assert len(found) == len(graph.nodes) and nx.is_directed_acyclic_graph(found)
    product = next(node for node in found if found.nodes[node]["kind"] == "dot_general")
    told = found.nodes[product]
    assert (told["bytes"], told["flops"]) == (4 * (8 * 16 + 16 * 4 + 8 * 4), 2 * 8 * 16 * 4)
    assert told["sources"] == ("linear0",) and told["time_us"] > 0
    assert found.edges[product, z.name] == {"values": (product,), "bytes": 4 * 8 * 4}
    assert found.nodes[z.name]["bytes"] == 2 * 4 * 8 * 4  # one operand, twice
    (view,) = found.successors(z.name)
    assert (found.nodes[view]["time_us"], found.nodes[view]["flops"]) == (0, 0)
    assert "time_us" not in graph.to_networkx().nodes[product]


def test_regions_as_a_graph() -> None:
    """Edges say why the two are not one kernel, once for each reason."""
    net = Net()
    x = net.input("x", 8, 16)
    cut = partition(net.finish(net.linear(net.linear(x, 16), 4)), SM_90A)
    graph = cut.to_networkx()
    first, second = cut.regions
    assert graph.nodes[first.name] == {
        "kind": "contraction", "sources": first.origin, "bytes": first.bytes(),
        "flops": 2 * 8 * 16 * 16,
        "time_us": 1e6 * cost.seconds(SM_90A, first.nodes, first.bytes()),
    }  # fmt: skip
    (refusal,) = cut.refusals
    assert graph.edges[first.name, second.name] == {
        "values": (refusal.value,), "bytes": 4 * 8 * 16,
        "reasons": ((refusal.code, refusal.reason),),
    }  # fmt: skip
    assert [one.node for one in critical_path(graph).kernels] == [first.name, second.name]


# The critical path --------------------------------------------------------------------------------


def test_the_longest_of_all_paths() -> None:
    """On random graphs, against every path that there is."""
    for seed in range(20):
        draw = random.Random(seed)
        graph = nx.DiGraph()
        for node in range(9):
            graph.add_node(node, time_us=float(draw.randrange(6)), measured=True)
        for a, b in itertools.combinations(range(9), 2):
            if draw.random() < 0.25:
                graph.add_edge(a, b, kind=draw.choice(["data", "reuse"]))
        found = critical_path(graph)
        apart = graph.edge_subgraph([e for e in graph.edges if graph.edges[e]["kind"] == "data"])
        assert found.us == longest(graph) and found.data_us <= found.us
        assert critical_path(graph, reuse=False).us == found.data_us
        assert found.data_us == max(longest(apart), *(t for _, t in graph.nodes(data="time_us")))
        chain = [one.node for one in found.kernels]
        assert all(graph.has_edge(a, b) for a, b in itertools.pairwise(chain))
        assert sorted((*chain, *(one.node for one in found.off))) == list(range(9))
        for one in found.off:
            beside = [
                n for n in chain if not (path(graph, n, one.node) or path(graph, one.node, n))
            ]
            most = sum(graph.nodes[n]["time_us"] for n in beside)
            assert one.overlap_us == min(one.time_us, most)
        assert found.measured and found.overlap_us <= found.total_us - found.us


def path(graph: Any, a: int, b: int) -> bool:
    return nx.has_path(graph, a, b)


def longest(graph: Any) -> float:
    """By trying all."""
    times = dict(graph.nodes(data="time_us"))

    def after(node: Any) -> float:
        return times[node] + max((after(other) for other in graph.successors(node)), default=0.0)

    return max((after(node) for node in graph), default=0.0)


def test_profile_shows_the_path(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save(build("resnet50", **TINY["resnet50"]), tmp_path / "model.onnx")
    at = [str(tmp_path / "model.onnx"), "--device", "cpu", "--no-counters", "--iterations", "2"]
    assert run(["profile", *at]) == 0
    out = capfd.readouterr().out
    text = out[out.index("critical path: ") :]
    assert "conv_0 ... contraction_18 (19)" in text and "wait for one another" in text
    assert max(map(len, text.splitlines())) <= 80
    assert run(["profile", *at, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    found, kernels = report["critical_path"], report["launches"]
    assert found["measured"] and found["total_us"] == pytest.approx(
        sum(one["time_us"] for one in kernels)
    )
    both = [*found["kernels"], *found["off"]]
    assert sorted(one["node"] for one in both) == list(range(len(kernels)))
    for one in both:
        kernel = kernels[one["node"]]
        assert one["time_us"] == kernel["time_us"]
        assert one["name"] == f"{kernel['kind']}_{kernel['region']}"
    assert found["us"] == pytest.approx(sum(one["time_us"] for one in found["kernels"]))
    documented = (Path(__file__).parents[1] / "docs" / "report.md").read_text()
    section = documented.split("The critical path:")[1]
    assert not [key for key in (*found, *found["kernels"][0]) if f"`{key}`" not in section]


def test_a_report_for_another_machine_has_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save(build("mlp", **TINY["mlp"]), tmp_path / "model.onnx")
    assert run(["report", str(tmp_path / "model.onnx"), "--target", "sm_90a", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)["critical_path"]
    assert len(found["kernels"]) == 3 and not found["measured"] and not found["off"]


# networkx itself ----------------------------------------------------------------------------------


def test_networkx_is_loaded_by_who_asks(tmp_path: Path) -> None:
    """Neither an import nor a compile loads it; where it is not, an error says so."""
    save(build("mlp", **TINY["mlp"]), tmp_path / "model.onnx")
    code = """
import sys, fuser
plan = fuser.compile(sys.argv[1], device="cpu", threads=1)
plan.run(plan.random_feeds())
plan.save(sys.argv[2])
plan.report()
assert "networkx" not in sys.modules
plan.to_networkx()
assert "networkx" in sys.modules
sys.modules["networkx"] = None
try:
    plan.to_networkx()
except fuser.FuserError as error:
    assert "pip install networkx" in error.hint
assert plan.report().to_dict()["critical_path"] is None
"""
    files = (tmp_path / "model.onnx", tmp_path / "model.plan")
    subprocess.run([sys.executable, "-c", code, *map(str, files)], check=True, timeout=120)


def test_a_graph_of_launches_has_an_edge_of_each_dependence(plan: Plan) -> None:
    graph = plan.to_networkx()
    assert {(a, b): kind for a, b, kind in graph.edges(data="kind")} == {
        (a, b): kind for a, b, kind in launches(plan.program).edges(data="kind")
    }
