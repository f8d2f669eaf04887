"""`fuser inspect`, `fuser compile`, `--target`: what is in a file; files for other machines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import fuser
from fuser.backend.llvm import host_features
from fuser.base.target import TARGETS, X86_64_V3
from fuser.errors import DeviceError
from fuser.runtime.container import read_file
from fuser.runtime.devices import choose
from fuser.runtime.store import load_programs
from tests.cli.command import Fuser


@pytest.fixture(name="command")
def in_this_process(fuser: Fuser) -> Fuser:
    """The fixture of conftest.py, which has the name of the package."""
    return fuser


def test_inspect_a_model(command: Fuser, mlp: Path) -> None:
    proto = onnx.load(mlp)
    code, out, err = command("inspect", mlp, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 24]}]
    assert found["outputs"][0]["shape"] == ["batch", 10] and found["dims"] == ["batch"]
    assert found["opsets"] == {"ai.onnx": 17} and found["producer"].startswith("fuser-models")
    assert found["operators"]["MatMul"] == 3
    assert sum(found["operators"].values()) == len(proto.graph.node)
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer]
    weights = found["weights"]["float32"]
    assert weights["bytes"] == sum(array.nbytes for array in arrays if array.dtype == np.float32)
    code, out, _ = command("inspect", mlp)
    assert code == 0
    for words in (("input", "x float32[batch, 24]"), ("dims", "batch"), ("operator", "3 MatMul")):
        assert any(line.startswith(words[0]) and words[1] in line for line in out.splitlines())


def test_inspect_counts_the_nodes_of_bodies(command: Fuser, tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 22]>
        m (bool c, float[2] x) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { a = Neg(x) },
                        else_branch = e () => (float[2] b) { b = Neg(x) }>
        }""")
    onnx.save(model, tmp_path / "if.onnx")
    found = json.loads(command("inspect", tmp_path / "if.onnx", "--json")[1])
    assert found["operators"] == {"Neg": 2, "If": 1} and found["dims"] == []


def test_inspect_what_is_none(command: Fuser, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    for file, code in (("absent.onnx", 2), (".", 2), ("text.onnx", 3)):
        found = command("inspect", tmp_path / file)
        assert found[0] == code and not found[1] and len(found[2].splitlines()) == 1


def test_compile_writes_a_plan(command: Fuser, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "mlp.plan"
    code, out, err = command("compile", mlp, "--device", "cpu", "--dim", "batch=3", "-o", file)
    assert code == 0 and "mlp.plan" in "".join(out.split()), err
    x = np.random.default_rng(0).standard_normal((3, 24), np.float32)
    want = fuser.compile(mlp, device="cpu", dims={"batch": 3}).run({"x": x})
    np.testing.assert_array_equal(fuser.Plan.load(file).run({"x": x})["y"], want["y"])
    code, out, err = command("run", file, "--iterations", 1, "-o", tmp_path / "out.npz")
    assert code == 0 and "kernels" in out, err
    assert np.load(tmp_path / "out.npz")["y"].shape == (3, 10)
    for option in (("--dim", "batch=3"), ("--compare", "reference"), ("--no-fusion",)):
        code, _, err = command("run", file, *option)
        assert code == 2 and "is compiled already" in err
    code, _, err = command("explain", file)
    assert code == 3 and "a compiled plan" in err and "Plan.load" in err
    found = json.loads(command("inspect", file, "--json")[1])
    assert found["kind"] == "plan" and found["target"]["name"] == "cpu"
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": [3, 24]}]
    assert len(found["kernels"]) == 3 and all(one["bytes"] > 0 for one in found["kernels"])
    assert found["constants_bytes"] > 0


def test_inspect_a_plan_for_many_sizes(command: Fuser, mlp: Path, tmp_path: Path) -> None:
    plan = fuser.compile(mlp, device="cpu", dynamic=True)
    plan.prepare({"batch": 7})
    plan.save(tmp_path / "many.plan")
    found = json.loads(command("inspect", tmp_path / "many.plan", "--json")[1])
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", "24"]}]
    assert found["ranges"] == len(plan.variants) == 1
    assert "ranges of sizes" in command("inspect", tmp_path / "many.plan")[1]


@pytest.mark.parametrize(
    ("target", "stage", "words", "others"),
    [
        ("sm_80", "ptx", (".target sm_80", "mma.sync"), ("wgmma",)),
        ("sm_80", "gpu", ("gpu @", " sm_80 warps(", "load &", "# "), ("wgmma_", "fetch ")),
        ("sm_90a", "ptx", (".target sm_90a",), ()),
        ("avx2", "asm", ("ymm", "vfmadd"), ("zmm",)),
        ("AVX512", "asm", ("zmm",), ()),
        ("neon", "asm", ("fmla",), ("ymm",)),
        ("amx", "asm", ("tdpbf16ps",), ()),
    ],
)
def test_dump_for_a_target_that_is_not_here(
    command: Fuser, mlp: Path, target: str, stage: str, words: tuple[str, ...],
    others: tuple[str, ...],
) -> None:  # fmt: skip
    precise = ("--precision", "bf16") if target == "amx" else ()
    code, out, err = command(
        "dump", mlp, "--target", target, "--stage", stage, "--dim", "batch=64", *precise
    )
    assert (code, err) == (0, "")
    assert all(word in out for word in words) and not any(word in out for word in others)


def test_explain_for_a_target_that_is_not_here(command: Fuser, mlp: Path) -> None:
    code, out, err = command("explain", mlp, "--target", "sm_90a")
    assert (code, err) == (0, "") and "contraction" in out


def test_targets_that_are_none(command: Fuser, mlp: Path) -> None:
    code, _, err = command("dump", mlp, "--target", "avx12")
    assert code == 2 and "no target 'avx12'; did you mean 'avx" in err
    code, _, err = command("dump", mlp, "--target", "avx2", "--device", "cpu")
    assert code == 2 and "--device and --target" in err


def test_a_plan_for_another_machine(command: Fuser, mlp: Path, tmp_path: Path) -> None:
    """It is written, and refused where the processor or the device is another."""
    wanted = {name[1:] for name in TARGETS["amx"].features.split(",")}
    if wanted <= host_features():
        pytest.skip("this machine has AMX")
    file = tmp_path / "amx.plan"
    assert command("compile", mlp, "--target", "amx", "-o", file)[0] == 0
    assert json.loads(command("inspect", file, "--json")[1])["target"]["arch"] == "x86-64-v4"
    with pytest.raises(DeviceError, match=r"needs a processor with .*amx-tile"):
        fuser.Plan.load(file)


def test_code_of_a_target_runs_where_it_can(command: Fuser, mlp: Path, tmp_path: Path) -> None:
    """What is compiled for AVX2 alone is right on every processor that has it."""
    if not {name[1:] for name in X86_64_V3.features.split(",")} <= host_features():
        pytest.skip("this machine has no AVX2")
    assert command("compile", mlp, "--target", "avx2", "-o", tmp_path / "p")[0] == 0
    x = np.random.default_rng(0).standard_normal((1, 24), np.float32)
    want = fuser.compile(mlp, device="cpu").run({"x": x})["y"]
    np.testing.assert_allclose(fuser.Plan.load(tmp_path / "p").run({"x": x})["y"], want, 1e-5, 1e-6)


def test_one_file_for_several_targets(command: Fuser, mlp: Path, tmp_path: Path) -> None:
    """The best that runs here is taken; equal weights are in the file once."""
    file = tmp_path / "p"
    code, out, err = command("compile", mlp, "--target", "sm_90a,sm_80,cpu-avx2,amx", "-o", file)
    assert code == 0, err
    assert out.count("target") == 4
    found = json.loads(command("inspect", file, "--json")[1])
    assert [one["arch"] for one in found["targets"]] == [
        "sm_90a", "sm_80", "x86-64-v3", "x86-64-v4",
    ]  # fmt: skip
    programs = [one.program for one in load_programs(file)]
    assert programs[0].target.sm == 90 and programs[0].launches[0].kernel.code.startswith(b"//")
    size = sum(len(one.program.constants) for one in load_programs(file))
    assert len(read_file(file, "P").arrays) < size
    if {"avx2", "fma", "f16c", "bmi2"} <= host_features():
        x = np.random.default_rng(0).standard_normal((1, 24), np.float32)
        want = fuser.compile(mlp, device="cpu").run({"x": x})["y"]
        plan = fuser.Plan.load(file, device="cpu")
        np.testing.assert_allclose(plan.run({"x": x})["y"], want, 1e-5, 1e-6)
    assert command("compile", mlp, "--target", "avx2,avx2", "-o", file)[0] == 2


@pytest.mark.parametrize(
    ("capability", "arch"), [(80, "sm_80"), (86, "sm_80"), (90, "sm_90a"), (100, "sm_80")]
)
def test_the_gpu_chooses_among_targets(
    capability: int, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuser.runtime.devices._capability", lambda ordinal: capability)
    targets = [TARGETS["avx2"], TARGETS["sm_80"], TARGETS["sm_90a"]]
    place, ordinal = choose(targets, "cuda:3")
    assert targets[place].arch == arch and ordinal == 3
    assert targets[choose(targets, "auto")[0]].arch == arch
    with pytest.raises(DeviceError, match="nothing here runs one of them"):
        choose([TARGETS["sm_90a"], TARGETS["sm_89"]], 1) if capability < 89 else choose([], 0)


@pytest.mark.parametrize("command", ["compile", "dump", "explain"])
def test_help_spells_targets_alike(fuser: Fuser, command: str) -> None:
    text = " ".join(fuser(command, "--help")[1].split())
    assert "sm_75, sm_80, sm_90a, avx2, avx512 (or cpu-avx2, cpu-avx512), ...," in text
    for name in re.findall(r"\b(?:cpu-)?(?:avx|sm_)\w+", text):
        assert name.removeprefix("cpu-") in TARGETS


def test_a_target_that_there_is_not_is_shown_the_nearest(fuser: Fuser, mlp: Path) -> None:
    for given in ("cpu-avx3", "avx-512", "CPU-AVX5"):
        code, _, err = fuser("dump", mlp, "--stage", "tile", "--target", given)
        assert code == 2 and f"no target {given!r}" in err and "did you mean 'avx" in err
