"""`fuser run`: what it prints, compares and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuser.graph.units import byte_size
from models import TINY, build, save
from tests.cli.command import Fuser, assert_one_line, feeds_of

SCHEMA_1_KEYS = [
    "schema", "model", "device", "kernels", "bytes", "latency_ms", "compile_s", "cache_hits",
    "peak_memory_bytes", "precision", "tuned", "fallbacks", "regions", "compare",
]  # fmt: skip


SCHEMA_KEYS = [
    "schema", "model", "device", "target", "dims", "threads", "precision", "numerics",
    "rewrites", "kernels",
    "boundary_bytes", "dram_bytes", "dram_bytes_cold", "packed_bytes", "latency_ms", "unfused",
    "compile_s", "cache_hits", "peak_memory_bytes", "tuned", "fallbacks", "forced",
    "profile", "launches", "critical_path",
    "compare",
    "peer",
]  # fmt: skip


LAUNCH_KEYS = [
    "name", "region", "kind", "nodes", "boundary_bytes", "reread_bytes", "dram_bytes", "flops",
    "algorithm", "roofline_us", "programs", "time_us", "share", "counters", "schedule",
]  # fmt: skip


def test_run_prints_a_table(fuser: Fuser, mlp: Path) -> None:
    code, out, err = fuser("run", mlp, "--device", "cpu", "--dim", "batch=3")
    assert code == 0, err
    for row in ("mlp.onnx on cpu", "batch = 3", "kernels", "fewer", "at least", "median", "p90"):
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
    said = " ".join(out.partition("\ndiffers")[2].split())
    assert len(differs) == 1 and all(word in said for word in words), out


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
    assert_one_line(fuser("run", model, "--device", "cpu"), 2, "there is no input_0.pb")


def test_expected_outputs_of_other_names(fuser: Fuser, halves: Path, tmp_path: Path) -> None:
    """No error is printed of what was not compared; what is missing on either side is named."""
    data, file = recorded(tmp_path, output_0=-HALVES, output_1=abs(HALVES)), tmp_path / "other.npz"
    command = ("run", halves / "model.onnx", "--device", "cpu", "--iterations", "0", "-i", data)
    np.savez(file, y=-HALVES)
    code, out, _ = fuser(*command, "--expect", file)
    said = " ".join(out.split())
    assert code == 1 and "MISMATCH no output was compared with" in said
    assert "relative error" not in said and "y: expected, but there is no such output" in said
    assert "a: not compared" in said and "b: not compared" in said
    np.savez(file, a=-HALVES)
    code, out, _ = fuser(*command, "--expect", file)
    assert code == 1 and "MISMATCH 1 of 2 outputs: relative error" in " ".join(out.split())
    assert "b: not compared" in out


def test_a_plan_file_is_not_compiled(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    """No seconds of a compile that did not happen."""
    plan, at = tmp_path / "mlp.plan", ("--device", "cpu")
    assert fuser("compile", mlp, "-o", plan, *at)[0] == 0
    assert any(x.startswith("compile ") for x in fuser("run", mlp, *at)[1].splitlines())
    lines = fuser("run", plan, *at)[1].splitlines()
    assert not any(line.startswith("compile ") for line in lines)
    assert any(line.startswith("plan ") for line in lines)


def test_what_was_written_is_said(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    """Path and size of each file; nothing of it where JSON is printed."""
    names = ("outputs.npz", "trace.json", "report.json")
    files = [tmp_path / name for name in names]
    options = [part for pair in zip(("-o", "--trace", "--report"), files, strict=True)
               for part in pair]  # fmt: skip
    out = "".join(fuser("run", mlp, "--device", "cpu", *options)[1].split())
    for file in files:
        assert f"{file},{byte_size(file.stat().st_size)}".replace(" ", "") in out
    json.loads(fuser("run", mlp, "--device", "cpu", *options, "--json")[1])
    page, trace = tmp_path / "page.html", tmp_path / "other.json"
    at = ("--device", "cpu", "--iterations", "0", "--html", page, "--trace", trace)
    out = "".join(fuser("report", mlp, *at)[1].split())
    for file in (page, trace):
        assert f"wrote{file},{byte_size(file.stat().st_size)}".replace(" ", "") in out
    json.loads(fuser("report", mlp, *at, "--json")[1])


def test_random_indices_stay_in_their_table(fuser: Fuser, tmp_path: Path) -> None:
    path = tmp_path / "gpt2.onnx"
    sizes = {**TINY["gpt2"], "layers": 1, "vocabulary": 7, "positions": 5}
    save(build("gpt2", **sizes), path)
    code, _, err = fuser(
        "run", path, "--device", "cpu", "--dim", "sequence=5", "--compare", "reference"
    )
    assert code == 0, err
