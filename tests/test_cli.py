"""The command line: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuser.cli.dump import STAGES
from fuser.cli.main import run
from models import TINY, build, example_feeds, save

Fuser = Callable[..., tuple[int, str, str]]

SCHEMA_1_KEYS = [
    "schema", "model", "device", "kernels", "bytes", "latency_ms", "compile_s", "cache_hits",
    "peak_memory_bytes", "precision", "tuned", "fallbacks", "regions", "compare",
]  # fmt: skip
SCHEMA_KEYS = [
    "schema", "model", "device", "target", "dims", "threads", "precision", "kernels",
    "boundary_bytes", "dram_bytes", "dram_bytes_cold", "packed_bytes", "latency_ms", "compile_s",
    "cache_hits", "peak_memory_bytes", "tuned", "fallbacks", "forced", "profile", "launches",
    "compare",
    "peer",
]  # fmt: skip
LAUNCH_KEYS = [
    "name", "region", "kind", "nodes", "boundary_bytes", "reread_bytes", "dram_bytes", "flops",
    "roofline_us", "time_us", "share", "counters", "schedule",
]  # fmt: skip


@pytest.fixture
def fuser(capfd: pytest.CaptureFixture[str]) -> Fuser:
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x: float32 [batch, 24] -> [batch, 10]."""
    path = tmp_path_factory.mktemp("models") / "mlp.onnx"
    save(build("mlp", **TINY["mlp"]), path)
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bert.onnx"
    save(build("bert", **{**TINY["bert"], "layers": 1}), path)
    return path


def input_name(path: Path) -> str:
    return str(onnx.load(path).graph.input[0].name)


def feeds_of(path: Path, **sizes: int) -> dict[str, np.ndarray[Any, Any]]:
    return example_feeds(onnx.load(path), sizes)


def one_node(op: str, name: str, domain: str = "") -> onnx.NodeProto:
    return helper.make_node(op, [name], [f"{name}_{op}"], name=f"{name}_{op}_node", domain=domain)


def write_model(
    path: Path, nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto] | None = None
) -> Path:
    """A model from x: float32 [n, 4] to the last node's output."""
    graph = helper.make_graph(
        nodes,
        "handmade",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, ["n", 4])],
        initializers or [],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    return path


def assert_one_line(result: tuple[int, str, str], code: int, *words: str) -> None:
    """One line on stderr that says it all, nothing on stdout, no traceback."""
    assert result[0] == code, result
    assert result[1] == ""
    lines = result[2].splitlines()
    assert len(lines) == 1, result[2]
    assert lines[0].startswith("error: ")
    assert "Traceback" not in lines[0]
    for word in words:
        assert word in lines[0]


# run: what it does -------------------------------------------------------------------------------


def test_run_prints_a_table(fuser: Fuser, mlp: Path) -> None:
    code, out, err = fuser("run", mlp, "--device", "cpu", "--dim", "batch=3")
    assert code == 0, err
    for row in ("mlp.onnx on cpu", "batch = 3", "kernels", "saved", "floor", "median", "p90"):
        assert row in out
    assert "peak memory" in out and "[3, 10]" in out and "random" in out


def test_json_is_one_object_and_nothing_else(fuser: Fuser, mlp: Path) -> None:
    code, out, err = fuser(
        "run", mlp, "--device", "cpu", "--json", "--compare", "reference", "--iterations", "3"
    )
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert list(report) == SCHEMA_KEYS
    assert report["schema"] == 2
    assert set(report["kernels"]) == {"before", "after"}
    assert report["dims"] == {"batch": 1} and report["threads"] >= 1
    for name in ("boundary_bytes", "dram_bytes", "dram_bytes_cold"):
        three = report[name]
        assert set(three) == {"before", "after", "floor"}
        assert 0 <= three["floor"] <= three["after"]
    assert report["boundary_bytes"]["after"] <= report["boundary_bytes"]["before"]
    assert set(report["latency_ms"]) == {"median", "p90", "p99", "iterations"}
    assert report["latency_ms"]["iterations"] == 3
    assert 0 < report["latency_ms"]["median"] <= report["latency_ms"]["p90"]
    assert set(report["compare"]) == {"max_abs", "max_rel", "ok", "differs"}
    assert report["compare"]["ok"] is True and report["compare"]["max_rel"] < 1e-5
    assert len(report["launches"]) == report["kernels"]["after"]
    for launch in report["launches"]:
        assert list(launch) == LAUNCH_KEYS and launch["nodes"] and launch["time_us"] is None
        assert set(launch["boundary_bytes"]) == set(launch["dram_bytes"]) == {"read", "written"}
        assert launch["flops"] > 0 and launch["roofline_us"] > 0
    moved = [launch["boundary_bytes"] for launch in report["launches"]]
    assert sum(sum(item.values()) for item in moved) == report["boundary_bytes"]["after"]
    assert report["fallbacks"] == []
    assert report["kernels"]["after"] <= report["kernels"]["before"]
    assert report["peak_memory_bytes"] > 0


def test_a_peer_says_how_many_kernels_it_has(fuser: Fuser, mlp: Path) -> None:
    pytest.importorskip("onnxruntime")
    command = ("run", mlp, "--device", "cpu", "--compare", "onnxruntime", "--iterations", "0")
    report = json.loads(fuser(*command, "--json")[1])
    assert report["compare"]["ok"] is True
    peer = report["peer"]
    assert list(peer) == ["name", "version", "kernels"] and peer["name"] == "onnxruntime"
    assert 0 < peer["kernels"] <= report["kernels"]["before"]  # it fuses Gemm and Relu
    code, out, _ = fuser(*command)
    assert code == 0 and f"onnxruntime {peer['version']} runs {peer['kernels']} kernel" in out


def test_schema_1_is_there_by_flag(fuser: Fuser, mlp: Path) -> None:
    code, out, _ = fuser("run", mlp, "--device", "cpu", "--json", "--schema", "1")
    report = json.loads(out)
    assert code == 0 and list(report) == SCHEMA_1_KEYS and report["schema"] == 1
    assert set(report["bytes"]) == {"before", "after", "floor", "packed"}
    for region in report["regions"]:
        assert set(region) == {"id", "kind", "nodes", "bytes", "flops", "schedule"}


def test_precision(fuser: Fuser, mlp: Path) -> None:
    code, out, err = fuser("run", mlp, "--device", "cpu", "--precision", "bf16", "--json",
                           "--compare", "reference")  # fmt: skip
    assert (code, err) == (0, "")
    assert "bf16" in json.loads(out)["precision"]
    code, out, _ = fuser("run", mlp, "--device", "cpu", "--json")
    assert json.loads(out)["precision"] == "model"
    code, _, err = fuser("run", mlp, "--precision", "int3")
    assert code == 2 and "bf16" in err


def test_report_file_is_what_json_prints(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    code, out, _ = fuser("run", mlp, "--device", "cpu", "--json", "--report", file)
    assert code == 0
    assert json.loads(file.read_text()) == json.loads(out)
    assert json.loads(out)["compare"] is None


def test_second_run_takes_kernels_from_the_cache(fuser: Fuser, mlp: Path) -> None:
    command = ("run", mlp, "--device", "cpu", "--json", "--dim", "batch=5")
    fuser(*command)
    report = json.loads(fuser(*command)[1])
    assert report["cache_hits"] > 0
    assert report["compile_s"] < 5


def test_feeds_outputs_and_expect_go_together(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    feeds = feeds_of(mlp, batch=3)
    name, array = next(iter(feeds.items()))
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "feeds.npz", **feeds)  # type: ignore[arg-type, unused-ignore]
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    command = ("run", mlp, "--device", "cpu", "--iterations", "1")
    assert fuser(*command, "-i", f"{name}={tmp_path / 'x.npy'}", "-o", first)[0] == 0
    code, out, _ = fuser(*command, "-i", tmp_path / "feeds.npz", "-o", second, "--expect", first)
    assert code == 0 and "ok" in out
    with np.load(first) as a, np.load(second) as b:
        assert a.files == b.files
        for key in a.files:
            assert a[key].shape == (3, 10)
            np.testing.assert_array_equal(a[key], b[key])


def test_mismatch_exits_with_one(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    expected = tmp_path / "expected.npz"
    command = ("run", mlp, "--device", "cpu", "--seed", "4", "--iterations", "1")
    fuser(*command, "-o", expected)
    with np.load(expected) as outputs:
        shifted = {name: outputs[name] + np.float32(0.01) for name in outputs.files}
    np.savez(expected, **shifted)
    code, out, _ = fuser(*command, "--expect", expected)
    assert code == 1 and "MISMATCH" in out
    code, out, _ = fuser(*command, "--expect", expected, "--json")
    assert code == 1 and json.loads(out)["compare"]["ok"] is False
    assert fuser(*command, "--expect", expected, "--atol", "0.02")[0] == 0
    assert fuser(*command, "--expect", expected, "--rtol", "1e-6")[0] == 1


@pytest.mark.parametrize("reference", ["reference", "unfused"])
def test_compare(fuser: Fuser, bert: Path, reference: str) -> None:
    code, out, err = fuser(
        "run", bert, "--device", "cpu", "--compare", reference, "--json",
        "--dim", "batch=2", "--dim", "sequence=9",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["compare"]["max_rel"] < 1e-5


def test_no_fusion_launches_more_kernels(fuser: Fuser, bert: Path) -> None:
    command = ("run", bert, "--device", "cpu", "--json", "--iterations", "1")
    fused = json.loads(fuser(*command)[1])
    unfused = json.loads(fuser(*command, "--no-fusion")[1])
    assert fused["kernels"]["before"] == unfused["kernels"]["before"]
    assert 2 * fused["kernels"]["after"] < unfused["kernels"]["after"]
    assert fused["boundary_bytes"]["after"] < unfused["boundary_bytes"]["after"]


def test_seed_decides_random_inputs(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.npz" for index in range(3)]
    for file, seed in zip(files, ("1", "1", "2"), strict=True):
        fuser("run", mlp, "--device", "cpu", "--iterations", "0", "--seed", seed, "-o", file)
    first, second, third = (next(iter(np.load(file).values())) for file in files)
    assert (first == second).all() and not (first == third).all()


def test_threads_and_iterations(fuser: Fuser, mlp: Path) -> None:
    code, out, _ = fuser(
        "run", mlp, "--device", "cpu", "--threads", "1", "--iterations", "0", "--json"
    )
    assert code == 0 and json.loads(out)["latency_ms"] is None


def test_data_beside_the_model_is_found(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    model, folder = tmp_path / "model.onnx", tmp_path / "test_data_set_0"
    model.write_bytes(mlp.read_bytes())
    folder.mkdir()
    name, x = next(iter(feeds_of(mlp, batch=4).items()))
    (folder / "input_0.pb").write_bytes(numpy_helper.from_array(x).SerializeToString())
    produced = tmp_path / "out.npz"
    np.save(tmp_path / "x.npy", x)
    fuser("run", model, "--device", "cpu", "-i", f"{name}={tmp_path / 'x.npy'}", "-o", produced)
    with np.load(produced) as outputs:
        y = outputs[outputs.files[0]]
    recorded = folder / "output_0.pb"
    recorded.write_bytes(numpy_helper.from_array(y).SerializeToString())
    code, out, err = fuser("run", model, "--device", "cpu", "--json")
    assert code == 0, err
    assert json.loads(out)["compare"] == {
        "max_abs": 0.0, "max_rel": 0.0, "ok": True, "differs": []
    }  # fmt: skip
    assert fuser("run", model, "--device", "cpu", "-i", folder)[0] == 0
    recorded.write_bytes(numpy_helper.from_array(y + 1).SerializeToString())
    assert fuser("run", model, "--device", "cpu")[0] == 1


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x: float32 [n, 4] -> two outputs, a = -x and b = |x|; with data for x beside it."""
    folder = tmp_path_factory.mktemp("halves")
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["x"], ["b"])]
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "halves", [tensor("x", TensorProto.FLOAT, ["n", 4])],
        [tensor(name, TensorProto.FLOAT, ["n", 4]) for name in "ab"],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
              folder / "model.onnx")  # fmt: skip
    return folder


HALVES = np.arange(8, dtype=np.float32).reshape(2, 4) - 4


def recorded(folder: Path, **arrays: np.ndarray[Any, Any]) -> Path:
    """The model of `halves` in a folder of its own, with test_data_set_0 of input x and arrays."""
    data = folder / "test_data_set_0"
    data.mkdir()
    (data / "input_0.pb").write_bytes(numpy_helper.from_array(HALVES).SerializeToString())
    for name, array in arrays.items():
        (data / f"{name}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    return data


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"output_0": -HALVES}, ("b: not compared", "test_data_set_0 has none")),
        ({"output_1": abs(HALVES)}, ("a: not compared",)),
        ({"output_0": -HALVES, "output_1": HALVES}, ("b: relative error", "at [0, 0]")),
        ({"output_0": -HALVES[:1], "output_1": abs(HALVES)}, ("a: has the shape [2, 4]", "[1, 4]")),
        ({"output_0": -HALVES.astype(np.int64), "output_1": abs(HALVES)}, ("a: is float32",)),
    ],
    ids=["file", "first file", "values", "shape", "dtype"],
)
def test_data_beside_the_model_names_what_differs(
    fuser: Fuser, halves: Path, tmp_path: Path, outputs: dict[str, Any], words: tuple[str, ...]
) -> None:
    """Every output is compared, or the run fails and says which was not."""
    model = tmp_path / "model.onnx"
    model.write_bytes((halves / "model.onnx").read_bytes())
    recorded(tmp_path, **outputs)
    code, out, err = fuser("run", model, "--device", "cpu", "--iterations", "0")
    assert (code, err) == (1, "")
    differs = [line for line in out.splitlines() if line.startswith("differs")]
    assert len(differs) == 1 and all(word in differs[0] for word in words), differs


def test_expected_outputs_name_what_differs(fuser: Fuser, halves: Path, tmp_path: Path) -> None:
    data = recorded(tmp_path, output_0=-HALVES, output_1=abs(HALVES))
    command = ("run", halves / "model.onnx", "--device", "cpu", "--iterations", "0", "-i", data)
    assert fuser(*command, "--expect", data)[0] == 0
    file = tmp_path / "expected.npz"
    np.savez(file, a=-HALVES, bb=abs(HALVES))
    code, out, _ = fuser(*command, "--expect", file, "--json")
    differs = json.loads(out)["compare"]["differs"]
    assert code == 1 and [line.split(":")[0] for line in differs] == ["b", "bb"]
    np.save(tmp_path / "one.npy", HALVES)
    assert_one_line(fuser(*command, "--expect", tmp_path / "one.npy"), 2, "one array", ".npz")
    assert_one_line(fuser(*command, "--expect", tmp_path / "absent"), 2, "absent")
    (data / "output_2.pb").write_bytes((data / "output_0.pb").read_bytes())
    assert_one_line(fuser(*command, "--expect", data), 2, "output_2.pb", "no output", "a, b")


def test_missing_recorded_input(fuser: Fuser, halves: Path, tmp_path: Path) -> None:
    """Recorded outputs are not ignored where the inputs are missing."""
    model = tmp_path / "model.onnx"
    model.write_bytes((halves / "model.onnx").read_bytes())
    (recorded(tmp_path, output_0=-HALVES) / "input_0.pb").unlink()
    assert_one_line(fuser("run", model, "--device", "cpu"), 2, "missing", "x")


def test_a_table_is_not_wrapped(mlp: Path, tmp_path: Path) -> None:
    """A line of output is a line, however narrow the terminal is said to be."""
    long = tmp_path / ("m" * 120 + ".onnx")
    long.write_bytes(mlp.read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "fuser", "run", long, "--device", "cpu", "--iterations", "0"],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "40"},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert any(line.startswith("model") and f"{long.name} on cpu" in line for line in lines)
    assert "\x1b" not in done.stdout and not any(line.startswith(" ") for line in lines)


def test_random_indices_stay_in_their_table(fuser: Fuser, tmp_path: Path) -> None:
    path = tmp_path / "gpt2.onnx"
    sizes = {**TINY["gpt2"], "layers": 1, "vocabulary": 7, "positions": 5}
    save(build("gpt2", **sizes), path)
    code, _, err = fuser(
        "run", path, "--device", "cpu", "--dim", "sequence=5", "--compare", "reference"
    )
    assert code == 0, err


# explain, dump, doctor ---------------------------------------------------------------------------


def test_explain_lists_regions_and_refusals(fuser: Fuser, bert: Path) -> None:
    code, out, err = fuser("explain", bert, "--device", "cpu", "--dim", "sequence=16")
    assert (code, err) == (0, "")
    for word in ("attention", "contraction", "refused", "second-anchor", "sequence = 16"):
        assert word in out


def test_explain_as_json(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    """The sizes are those of the feeds, the figures those of the report; docs list every key."""
    np.savez(tmp_path / "feeds.npz", x=np.zeros((3, 24), np.float32))
    at = ("--device", "cpu", "-i", tmp_path / "feeds.npz", "--json")
    code, out, err = fuser("explain", mlp, *at)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["dims"] == {"batch": 3} and found["kernels"] == len(found["regions"]) == 3
    readers = [edge["readers"] for edge in found["refusals"]]
    assert readers == [["/layers.1/MatMul"], ["/layers.2/MatMul"]]
    assert all(edge["seconds"] > 0 and edge["lift"] for edge in found["refusals"])
    report = json.loads(fuser("run", mlp, *at, "--iterations", "0")[1])
    for key in ("nodes", "flops"):
        assert [r[key] for r in found["regions"]] == [r[key] for r in report["launches"]], key
    documented = (Path(__file__).parents[1] / "docs" / "command-line.md").read_text()
    section = documented.split("## Why the regions")[1].split("\n## ")[0]
    rows = [*found, *found["regions"][0], *found["refusals"][0]]
    assert not [key for key in rows if not re.search(rf"\b{key}\b", section)]


def test_pinned_and_forbidden_nodes(fuser: Fuser, mlp: Path) -> None:
    """The plan changes, its results do not, and the report says what changed; so does a stored
    plan, which is another one than without."""
    names = ("--forbid", "/layers.0/MatMul,/Relu", "--forbid", "/layers.1/MatMul,/Relu")
    at = ("--device", "cpu", "--compare", "reference", "--iterations", "0")
    free = json.loads(fuser("run", mlp, *at, "--json")[1])
    for _ in range(2):
        code, out, _ = fuser("run", mlp, *at, "--json", *names)
        found = json.loads(out)
        assert code == 0 and found["compare"]["ok"]
        assert found["kernels"]["after"] == free["kernels"]["after"] + 1
        assert found["forced"]["kernels"] == {"unforced": 3, "forced": 4}
        assert found["forced"]["forbid"] == [name.split(",") for name in names[1::2]]
    assert free["forced"] is None
    code, out, _ = fuser("explain", mlp, "--device", "cpu", *names)
    assert code == 0 and "3 -> 4 kernels, " in out and "4 regions, " in out
    assert "to lift it: no --forbid of '/layers.0/MatMul' and '/Relu'" in out
    result = fuser("explain", mlp, "--device", "cpu", "--pin", "/layers.0/MatMul,/layers.1/MatMul")
    assert_one_line(result, 2, "cannot be one kernel: ", "second-anchor")
    result = fuser("run", mlp, "--device", "cpu", "--pin", "/layers.0/MatMul,Relu")
    assert_one_line(result, 2, "no node 'Relu' to pin; did you mean '/Relu'")
    assert_one_line(fuser("run", mlp, "--pin", "a"), 2, "no pair")
    assert_one_line(fuser("run", mlp, "--no-fusion", "--pin", "a,b"), 2, "--no-fusion")


def test_why_a_kernel_has_its_schedule(fuser: Fuser, mlp: Path) -> None:
    """By region, symbol and node; the rule and its answer, the limits, every key in the docs."""
    at = ("--device", "cpu", "--dim", "batch=9")
    report = json.loads(fuser("run", mlp, *at, "--json", "--iterations", "0")[1])
    symbol, schedule = (report["launches"][0][key] for key in ("name", "schedule"))
    texts = [
        fuser("explain", mlp, *at, "--kernel", name, "--json")
        for name in ("contraction_0", "0", symbol, "/layers.0/MatMul")
    ]
    assert texts[0][0] == 0 and len({out for _, out, _ in texts}) == 1, texts[0][2]
    (kernel,) = json.loads(texts[0][1])["kernels"]
    assert kernel["schedule"] == schedule == kernel["candidates"][0]["schedule"]
    rule = kernel["rules"][0]
    assert rule["function"] == "fuser.tilegen.rules.cpu.matmul.dot_schedule"
    assert (rule["arguments"]["m"], rule["arguments"]["k"]) == ("9", "24")
    assert kernel["reason"] and kernel["rules"][-1]["answer"] == schedule
    costs = [item["cost"] for item in kernel["candidates"] if item["cost"] is not None]
    assert min(costs) == 1 and len(costs) > 1
    documented = (Path(__file__).parents[1] / "docs" / "command-line.md").read_text()
    section = documented.split("### One kernel")[1].split("\n## ")[0]
    keys = [*kernel, *rule, *kernel["candidates"][0]]
    assert not [key for key in keys if not re.search(rf"\b{key}\b", section)]
    code, out, _ = fuser("explain", mlp, *at, "--kernel", "0")
    assert code == 0 and "dot_schedule: " in out and "nothing is remembered" in out
    assert "(the rules' choice)" in out and "limit      programs: " in out
    assert "mechanism " not in out  # of a GPU's kernel
    on_gpu = ("--target", "sm_80", "--dim", "batch=9", "--kernel", "0")
    code, out, _ = fuser("explain", mlp, *on_gpu)
    assert code == 0 and "  mechanism  warp specialisation: no, sm_80 has no wgmma" in out
    (kernel,) = json.loads(fuser("explain", mlp, *on_gpu, "--json")[1])["kernels"]
    assert {item["mechanism"]: item["applied"] for item in kernel["mechanisms"]} == {
        "matrix unit": True, "warp specialisation": False, "launch overlap": False,
    }  # fmt: skip
    result = fuser("explain", mlp, *at, "--kernel", "layers.0/MatMu")
    assert_one_line(result, 2, "no kernel 'layers.0/MatMu'; did you mean '/layers.0/MatMul'")


def test_explain_of_feeds_that_do_not_fit(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "feeds.npz", x=np.zeros((3, 23), np.float32))
    result = fuser("explain", mlp, "--device", "cpu", "-i", tmp_path / "feeds.npz")
    assert_one_line(result, 2, "x")


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in ("gpu", "ptx")])
def test_dump_prints_every_stage(fuser: Fuser, mlp: Path, stage: str) -> None:
    code, out, err = fuser("dump", mlp, "--device", "cpu", "--stage", stage)
    assert (code, err) == (0, "")
    words = {
        "graph": "dot_general", "regions": "contraction", "tile": "dot", "llvm": "define",
        "asm": "ret", "passes": "after merge_matmuls: as before", "cpu": "register tile of",
    }  # fmt: skip
    assert words[stage] in out


def test_dump_takes_one_region(fuser: Fuser, mlp: Path) -> None:
    everything = fuser("dump", mlp, "--device", "cpu", "--stage", "tile")[1]
    code, out, _ = fuser("dump", mlp, "--device", "cpu", "--stage", "tile", "--region", "0")
    assert code == 0 and out and out in everything and len(out) < len(everything)
    assert_one_line(fuser("dump", mlp, "--device", "cpu", "--region", "99"), 2, "no region 99")


def test_dump_of_a_gpu_stage_on_the_cpu_says_what_to_do(fuser: Fuser, mlp: Path) -> None:
    result = fuser("dump", mlp, "--device", "cpu", "--stage", "ptx")
    assert_one_line(result, 2, "--device cuda")


def test_dump_folder_receives_every_stage(
    fuser: Fuser, mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSER_DUMP", str(tmp_path / "dumps"))
    assert fuser("run", mlp, "--device", "cpu", "--iterations", "0")[0] == 0
    files = {file.name: file.read_text() for file in (tmp_path / "dumps" / "mlp").iterdir()}
    assert "dot_general" in files["graph.txt"] and "3 regions" in files["regions.txt"]
    for suffix, word in ((".tile", "dot"), (".llvm", "define"), (".asm", "ret")):
        texts = [text for name, text in sorted(files.items()) if name.endswith(suffix)]
        assert len(texts) == 3 and all(word in text for text in texts)


def test_doctor_checks_this_machine(fuser: Fuser) -> None:
    code, out, err = fuser("doctor")
    assert (code, err) == (0, ""), out
    for word in ("python", "llvmlite", "cpu", "gpu", "kernel cache", "self test"):
        assert word in out
    assert "FAIL" not in out


def test_help_and_version_are_instant() -> None:
    script = (
        "import sys, fuser\n"
        "from fuser.cli.main import run\n"
        "assert run(['--help']) == 0 and run(['run', '--help']) == 0 and run(['--version']) == 0\n"
        "heavy = {'numpy', 'onnx', 'llvmlite', 'networkx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for word in ("run", "explain", "dump", "doctor", "--compare", "python -m fuser"):
        assert word in " ".join(done.stdout.split())


# bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "explain", "dump", "bench", "profile"])
def test_missing_file(fuser: Fuser, tmp_path: Path, command: str) -> None:
    assert_one_line(fuser(command, tmp_path / "absent.onnx"), 2, "absent.onnx", "no such file")


def test_folder_for_a_file(fuser: Fuser, tmp_path: Path) -> None:
    assert_one_line(fuser("run", tmp_path), 2, "folder")


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\necho no model\n", b"\x00" * 100])
def test_not_onnx(fuser: Fuser, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.onnx"
    path.write_bytes(content)
    assert_one_line(fuser("run", path, "--device", "cpu"), 3, "notes.onnx", "ONNX")


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_truncated_file(fuser: Fuser, mlp: Path, tmp_path: Path, share: float) -> None:
    data = mlp.read_bytes()
    path = tmp_path / "short.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    assert_one_line(fuser("run", path, "--device", "cpu"), 3, "short.onnx")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 24)), ("float64", "f32[2, 24]")),
        (np.zeros((2, 23), np.float32), ("[2, 23]", "24")),
        (np.zeros((24,), np.float32), ("[24]", "axes")),
    ],
    ids=["dtype", "shape", "rank"],
)
def test_wrong_feed(
    fuser: Fuser, mlp: Path, tmp_path: Path, array: np.ndarray[Any, Any], words: tuple[str, ...]
) -> None:
    file = tmp_path / "x.npy"
    np.save(file, array)
    name = input_name(mlp)
    assert_one_line(fuser("run", mlp, "--device", "cpu", "-i", f"{name}={file}"), 2, name, *words)


def test_missing_and_unknown_feed(fuser: Fuser, bert: Path, tmp_path: Path) -> None:
    feeds = feeds_of(bert, batch=1, sequence=8)
    mask = feeds.pop("attention_mask")
    file = tmp_path / "feeds.npz"
    np.savez(file, **feeds)  # type: ignore[arg-type, unused-ignore]
    assert_one_line(
        fuser("run", bert, "--device", "cpu", "-i", file), 2, "missing", "attention_mask"
    )
    np.savez(file, **feeds, attention_musk=mask)  # type: ignore[arg-type, unused-ignore]
    assert_one_line(fuser("run", bert, "--device", "cpu", "-i", file), 2, "attention_musk")


def test_feeds_that_disagree(fuser: Fuser, bert: Path, tmp_path: Path) -> None:
    feeds = feeds_of(bert, batch=2, sequence=8)
    feeds["attention_mask"] = feeds["attention_mask"][:, :-1]
    np.savez(tmp_path / "feeds.npz", **feeds)  # type: ignore[arg-type, unused-ignore]
    result = fuser("run", bert, "--device", "cpu", "-i", tmp_path / "feeds.npz")
    assert_one_line(result, 2, "sequence = 7", "8")


@pytest.mark.parametrize("feed", ["x=absent.npy", "absent.npz", "nonsense", "x=notes.npy"])
def test_unreadable_feed(fuser: Fuser, mlp: Path, tmp_path: Path, feed: str) -> None:
    (tmp_path / "notes.npy").write_text("no array")
    name, _, file = feed.rpartition("=")
    path = f"{name}={tmp_path / file}" if name else str(tmp_path / file)
    assert_one_line(fuser("run", mlp, "--device", "cpu", "-i", path), 2, file)


def test_broken_tensor_file(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    (tmp_path / "input_0.pb").write_bytes(b"no tensor")
    assert_one_line(fuser("run", mlp, "--device", "cpu", "-i", tmp_path), 2, "input_0.pb")


def test_unknown_dim(fuser: Fuser, mlp: Path) -> None:
    result = fuser("run", mlp, "--device", "cpu", "--dim", "bacth=2")
    assert_one_line(result, 2, "'bacth'", "batch")


@pytest.mark.parametrize("dim", ["batch", "batch=x", "batch=-1", "=3"])
def test_malformed_dim(fuser: Fuser, mlp: Path, dim: str) -> None:
    assert_one_line(fuser("run", mlp, "--device", "cpu", "--dim", dim), 2, dim)


@pytest.mark.parametrize(
    "arguments",
    [["--bogus"], ["--device", "tpu"], ["--iterations", "-1"], ["--threads", "0"], []],
    ids=["option", "device", "iterations", "threads", "no model"],
)
def test_usage(fuser: Fuser, mlp: Path, arguments: list[str]) -> None:
    model = [mlp] if arguments else []
    assert_one_line(fuser("run", *model, *arguments), 2, "--help")


def test_compare_and_expect_exclude_each_other(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    result = fuser("run", mlp, "--compare", "unfused", "--expect", tmp_path / "a.npz")
    assert_one_line(result, 2, "--compare", "--expect")


def test_missing_expected_outputs(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    result = fuser("run", mlp, "--device", "cpu", "--expect", tmp_path / "absent.npz")
    assert_one_line(result, 2, "absent.npz")


@pytest.mark.parametrize("option", ["--report", "-o"])
def test_unwritable_result(fuser: Fuser, mlp: Path, tmp_path: Path, option: str) -> None:
    result = fuser("run", mlp, "--device", "cpu", "--json", option, tmp_path / "no" / "file.npz")
    assert result[0] == 2 and "Traceback" not in result[2]
    assert len(result[2].splitlines()) == 1 and "cannot write" in result[2]


def test_unsupported_ops_are_all_listed(fuser: Fuser, tmp_path: Path) -> None:
    nodes = [
        one_node("Frobnicate", "x", "com.example"),
        helper.make_node("Relu", ["x_Frobnicate"], ["r"]),
        one_node("Defenestrate", "r", "com.example"),
    ]
    path = write_model(tmp_path / "custom.onnx", nodes)
    assert_one_line(
        fuser("run", path, "--device", "cpu"),
        4,
        "2 nodes", "Frobnicate", "x_Frobnicate_node", "Defenestrate", "r_Defenestrate_node",
    )  # fmt: skip


def test_invalid_graph(fuser: Fuser, tmp_path: Path) -> None:
    path = write_model(tmp_path / "dangling.onnx", [helper.make_node("Add", ["x", "w"], ["y"])])
    assert_one_line(fuser("run", path, "--device", "cpu"), 3, "dangling.onnx")


def test_shapes_that_do_not_fit(fuser: Fuser, tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros((5, 4), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    path = write_model(tmp_path / "shapes.onnx", nodes, [weight])
    assert_one_line(fuser("run", path, "--device", "cpu"), 3, "product")


def external(path: Path, location: str) -> Path:
    """A model y = x + w with the data of w at `location`."""
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, location)
    weight.ClearField("raw_data")
    return write_model(path, [helper.make_node("Add", ["x", "w"], ["y"])], [weight])


def test_external_data(fuser: Fuser, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ones = np.ones(4, np.float32).tobytes()
    (tmp_path / "outside.bin").write_bytes(ones)
    (folder / "inside.bin").write_bytes(ones)
    assert fuser("run", external(folder / "good.onnx", "inside.bin"), "--device", "cpu")[0] == 0
    for name, location, word in (
        ("absent.onnx", "absent.bin", "missing"),
        ("parent.onnx", "../outside.bin", "outside"),
        ("absolute.onnx", str(tmp_path / "outside.bin"), "outside"),
    ):
        result = fuser("run", external(folder / name, location), "--device", "cpu")
        assert_one_line(result, 3, name, word)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    result = fuser("run", external(folder / "link.onnx", "link.bin"), "--device", "cpu")
    assert_one_line(result, 3, "link.onnx", "outside")


def test_no_gpu(fuser: Fuser, mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser.errors import DeviceError
    from fuser.runtime import cuda

    def absent(*_: object) -> None:
        raise DeviceError("there is no NVIDIA GPU", hint="use --device cpu")

    monkeypatch.setattr(cuda, "device_target", absent)
    for command in (["run"], ["explain"], ["dump", "--stage", "ptx"]):
        assert_one_line(fuser(*command, mlp, "--device", "cuda"), 5, "GPU", "--device cpu")
    assert fuser("run", mlp, "--device", "auto")[0] == 0


def test_no_driver_here_is_a_device_error(fuser: Fuser, mlp: Path) -> None:
    from fuser.errors import DeviceError
    from fuser.runtime import cuda

    try:
        cuda.device_target()
    except DeviceError:
        assert_one_line(fuser("run", mlp, "--device", "cuda"), 5)
    else:
        pytest.skip("this machine has a GPU")


def wide(path: Path) -> Path:
    """[n, 4] @ [4, 2**16] @ [2**16, 4]: half a megabyte between the products for every two rows."""
    rng = np.random.default_rng(0)
    up, down = rng.standard_normal((2, 4, 1 << 16), np.float32) / 256
    weights = [numpy_helper.from_array(up, "up"), numpy_helper.from_array(down.T.copy(), "down")]
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("MatMul", ["h", "down"], ["y"]),
    ]
    return write_model(path, nodes, weights)


@pytest.mark.parametrize(
    ("device", "rows"), [("cpu", 1 << 24), pytest.param("cuda", 1 << 21, marks=pytest.mark.cuda)]
)
def test_out_of_memory(fuser: Fuser, tmp_path: Path, device: str, rows: int) -> None:
    path = wide(tmp_path / "wide.onnx")
    result = fuser("run", path, "--device", device, "--dim", f"n={rows}", "--iterations", "1")
    assert_one_line(result, 6, "memory")


def test_unusable_cache_folder_costs_only_the_cache(
    fuser: Fuser, mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    folders = [tmp_path / "file" / "cache"]
    if os.geteuid():  # root may write anywhere
        (tmp_path / "frozen").mkdir(mode=0o500)
        folders.append(tmp_path / "frozen")
    for folder in folders:
        monkeypatch.setenv("FUSER_CACHE_DIR", str(folder))
        code, out, err = fuser("run", mlp, "--device", "cpu", "--json")
        assert code == 0 and json.loads(out)["cache_hits"] == 0
        assert len(err.splitlines()) == 1
        assert "cache" in err and str(folder) in err


def test_unknown_environment_variable(
    fuser: Fuser, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is noted, once, and the run goes on."""
    monkeypatch.setenv("FUSER_CACHE_DRI", "/tmp")
    code, out, err = fuser("run", mlp, "--device", "cpu", "--iterations", "0", "--json")
    assert code == 0 and json.loads(out)["kernels"]["after"] > 0
    assert len(err.splitlines()) == 1
    assert "note: unknown variable FUSER_CACHE_DRI" in err and "'FUSER_CACHE_DIR'" in err


def test_bad_value_of_an_environment_variable(
    fuser: Fuser, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSER_THREADS", "many")
    assert_one_line(fuser("run", mlp, "--device", "cpu"), 2, "FUSER_THREADS=many")


def in_a_process(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m fuser` with these arguments and environment variables."""
    return subprocess.run(
        [sys.executable, "-m", "fuser", *map(str, arguments)], capture_output=True, text=True,
        env={**os.environ, **variables},
    )  # fmt: skip


def test_logs(fuser: Fuser, mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = {"FUSER_CACHE_DIR": str(tmp_path / "cache")}
    run_it = ("run", mlp, "--device", "cpu", "--iterations", "0")
    first = in_a_process(*run_it, "-vv", **folder)
    assert first.returncode == 0, first.stderr
    lines = first.stderr.splitlines()
    assert any(re.match(r"fuser compile: \S+: partitioning", line) for line in lines)
    assert sum(bool(re.match(r"fuser kernels: \S+: compiled, \d+ bytes", x)) for x in lines) == 3
    assert any("3 kernels for" in line and "0 kernels from the cache" in line for line in lines)
    again = in_a_process(*run_it, FUSER_LOG="compile", **folder)
    assert ", 3 kernels from the cache" in again.stderr
    assert "fuser kernels" not in again.stderr
    assert not in_a_process(*run_it, **folder).stderr
    monkeypatch.setenv("FUSER_LOG", "kernel")
    assert_one_line(fuser(*run_it), 2, "did you mean 'kernels'")


def test_cache(fuser: Fuser, mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kernels"
    monkeypatch.setenv("FUSER_CACHE_DIR", str(folder))
    assert fuser("cache", "dir") == (0, f"{folder}\n", "")
    fuser("run", mlp, "--device", "cpu", "--iterations", "0")
    files = [path for path in folder.glob("??/*") if path.is_file()]
    code, out, _ = fuser("cache")
    rows = dict(re.split(r"  +", line) for line in out.splitlines())
    assert code == 0 and rows["folder"] == str(folder) and rows["state"] == "on"
    assert int(rows["entries"]) == len(files) > 0 and rows["failed kernels"] == "0"
    code, out, _ = fuser("cache", "clear")
    assert code == 0 and f"removed {len(files)} entries" in out
    assert not [path for path in folder.glob("??/*") if path.is_file()]
    monkeypatch.setenv("FUSER_CACHE", "0")
    assert "off (FUSER_CACHE=0)" in fuser("cache", "info")[1]


def test_a_defect_is_one_line(fuser: Fuser, mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser.frontends.onnx import hosted

    def defect(*_: object, **__: object) -> None:
        raise KeyError("tile")

    monkeypatch.setattr(hosted, "compile_on_host", defect)
    code, out, err = fuser("run", mlp)
    assert (code, out) == (70, "")
    assert len(err.splitlines()) == 1 and "KeyError" in err and "--debug" in err
