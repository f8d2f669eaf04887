"""Kernels of open sizes for NVIDIA GPUs: what they read at launch; one serves all sizes."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import f16, from_numpy
from fuser.frontends.onnx.importer import import_onnx
from fuser.frontends.onnx.model import Model, open_model, random_feeds, reference
from fuser.graph.dims import parse
from fuser.graph.passes import run_passes
from fuser.graph.sizes import Sizes, evaluate, guard_from_list
from fuser.partition import Options, partition
from fuser.pipeline.compiled import Compiled, compile_kernels
from fuser.pipeline.kernels import emit_programs
from fuser.pipeline.options import CompileOptions
from fuser.runtime.device_code import map_arguments
from fuser.tilegen.parse import parse_kernel, sizes_of
from fuser.tilegen.program import TileProgram
from fuser.tilegen.text import canonical_text
from models import TINY, build
from tests import interpreted
from tests.backend.nvptx.simulated import simulated
from tests.interpreted import run_programs
from tests.numerics import assert_close

HUGE = 1 << 30
"""Constants from here on are of guards that hold of whatever fits memory."""


def tiny(name: str, dtype: str = "float16", **more: Any) -> Model:
    return open_model(build(name, dtype, **{**TINY[name], **more}))


def kernels_of(model: Model, examples: dict[str, int], target: Target) -> tuple[Compiled, Sizes]:
    with Sizes(examples) as sizes:
        graph = run_passes(import_onnx(model.proto, {}))
        return compile_kernels(graph, CompileOptions(device=target, tune=None), model.name), sizes


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="there is no ptxas")
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda target: target.arch)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bert", "float16"), ("gpt2", "float32"), ("tiny_llama", "bfloat16")],
)
def test_kernels_assemble(name: str, dtype: str, target: Target, tmp_path: Path) -> None:
    model = tiny(name, dtype)
    with Sizes({"batch": 7, "sequence": 61}) as sizes:
        graph = run_passes(import_onnx(model.proto, {}))
        programs = emit_programs(partition(graph, target, Options()), target)
        for number, kernel in enumerate(
            {canonical_text(p.kernel): p.kernel for p in programs}.values()
        ):
            file = tmp_path / f"{number}.ptx"
            file.write_bytes(compile_kernel(kernel, target).code)
            command = ["ptxas", f"-arch={target.arch}", file, "-o", tmp_path / "cubin"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    assert not [guard for guard in sizes.guards if guard.relation != ">="]


def test_one_set_of_kernels_is_launched_at_every_size() -> None:
    """Grids, parameters and tensor maps at other sizes, among them odd ones, 1 left out."""
    model = tiny("bert", layers=1, hidden=128, heads=2)
    compiled, _ = kernels_of(model, {"batch": 7, "sequence": 61}, SM_90A)
    guards = [
        guard_from_list(record)
        for kernel in compiled.kernels for record in kernel.facts["guards"]
    ]  # fmt: skip
    first = compiled.bound.at({"batch": 7, "sequence": 61})
    codes = {launch.kernel.code for launch in first.launches}
    assert len(codes) == len({kernel.code for kernel in compiled.kernels})
    fed: set[tuple[int, ...]] = set()
    for dims in ({"batch": 3, "sequence": 17}, {"batch": 2, "sequence": 33},
                 {"batch": 9, "sequence": 64}):  # fmt: skip
        assert all(guard.holds(dims) for guard in guards)
        program = compiled.bound.at(dims)
        assert {launch.kernel.code for launch in program.launches} == codes
        for launch in program.launches:
            kernel = launch.kernel
            declared = re.search(rb"\.entry [^(]*\(([^)]*)\)", kernel.code)
            assert declared is not None
            count = declared[1].count(b".param")
            assert count == len(launch.arguments) + len(kernel.tensor_maps) + len(kernel.sizes)
            assert all(extent > 0 for extent in kernel.launch)
            for record in kernel.tensor_maps:
                map_arguments(record, 1 << 20)
            fed.add(kernel.sizes)
        rows = dims["batch"] * dims["sequence"]
        assert any(rows in launch.kernel.sizes for launch in program.launches)
        spec = program.inputs[0]
        assert spec.shape == (dims["batch"], dims["sequence"])
    assert len(fed) > 2


def test_what_is_asked_of_sizes() -> None:
    """Nothing: not even attention, whose grid has more than one open axis."""
    examples = {"batch": 7, "sequence": 61}
    for name in ("layernorm", "mlp", "attention"):
        model = tiny(name)
        used = {key: n for key, n in examples.items() if key in str(model.inputs)}
        compiled, sizes = kernels_of(model, used, SM_90A)
        records = [record for kernel in compiled.kernels for record in kernel.facts["guards"]]
        asked = {str(g) for g in (*sizes.guards, *map(guard_from_list, records))
                 if dict(g.expression.terms).get((), 0) < HUGE}  # fmt: skip
        assert not asked


def at_sizes(program: TileProgram, sizes: dict[str, int]) -> TileProgram:
    """The program with numbers in place of its symbols."""
    text = re.sub(r"  sizes\(.*\)\n", "", canonical_text(program.kernel))
    text = re.sub("`([^`]*)`", lambda found: str(evaluate(parse(found[1]), sizes)), text)
    kernel = parse_kernel(text)
    buffers = dict(zip(program.kernel.buffers, kernel.buffers, strict=True))
    arguments = tuple(replace(item, buffer=buffers[item.buffer]) for item in program.arguments)
    return replace(program, kernel=kernel, arguments=arguments)


@pytest.mark.parametrize("sequence", [2, 17, 63, 64, 65, 130])
@pytest.mark.parametrize("example", [61, 509])
def test_interpreted_at_other_sizes(example: int, sequence: int) -> None:
    """Programs that were written for one size, interpreted at others; of the larger example keys
    are in parts, some of which are empty here."""
    model = tiny("attention", "float32")
    feeds = random_feeds(model, {"batch": 1, "sequence": sequence})
    with Sizes({"sequence": example}):
        graph = run_passes(import_onnx(model.proto, {"batch": 1}))
        cut = partition(graph, SM_90A, Options())
        programs = emit_programs(cut, SM_90A)
        fixed = [at_sizes(program, {"sequence": sequence}) for program in programs]
    assert (len(programs) > 1) == (example == 509)
    with Sizes({"sequence": sequence}):
        outputs = run_programs(cut, feeds, fixed)
    for name, expected in reference(model, feeds, {"batch": 1, "sequence": sequence}).items():
        have = np.asarray(outputs[name])
        assert_close(have, expected, from_numpy(have.dtype), 4096)


@pytest.mark.parametrize("rows", [2, 7, 16, 37])
@pytest.mark.parametrize("on_gpu_level", [False, True])
def test_rows_in_parts_of_k_at_other_sizes(
    rows: int, on_gpu_level: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matmul of few rows, in two parts that a norm adds up: written for seven rows, run by the
    interpreter of tile programs and by the simulator of the GPU level."""
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
        onnx.helper.make_node("LayerNormalization", ["y", "s"], ["z"]),
    ]
    rng = np.random.default_rng(rows)
    weights = {
        "w": (rng.standard_normal((1024, 896)) / 32).astype(np.float16),
        "s": rng.standard_normal(896).astype(np.float16),
    }
    half = onnx.TensorProto.FLOAT16
    graph = onnx.helper.make_graph(
        nodes, "parts", [onnx.helper.make_tensor_value_info("x", half, ["rows", 1024])],
        [onnx.helper.make_tensor_value_info(name, half, ["rows", 896]) for name in "yz"],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    model = open_model(
        onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9
        )
    )
    feeds = {"x": rng.standard_normal((rows, 1024)).astype(np.float16)}
    with Sizes({"rows": 7}):
        cut = partition(run_passes(import_onnx(model.proto, {})), SM_90A, Options())
        programs = emit_programs(cut, SM_90A)
        fixed = [at_sizes(program, {"rows": rows}) for program in programs]
    assert len(fixed[0].kernel.grid) == 3 and fixed[0].kernel.grid[0] == 2
    if on_gpu_level:
        monkeypatch.setattr(interpreted, "run", simulated)
    with Sizes({"rows": rows}):
        outputs = run_programs(cut, feeds, fixed)
    for name, expected in reference(model, feeds, {"rows": rows}).items():
        assert_close(np.asarray(outputs[name]), expected, f16, 1024)


def test_kernels_read_moving_sizes_from_memory(tmp_path: Path) -> None:
    """One pointer in place of all sizes; no tensor map over what moves; blocks beyond the sizes of
    a run return; the text says what moves."""
    model = open_model(build("tiny_llama", "float16", cache=True, layers=1))
    pairs = tuple((f"past_key_values.0.{n}", f"present.0.{n}") for n in ("key", "value"))
    texts: list[str] = []
    with Sizes({"past": 1021, "state_capacity": 4093, "sequence": 61}, {"past"}) as sizes:
        graph = run_passes(import_onnx(model.proto, {"batch": 1}))
        cut = partition(graph, SM_90A, Options(state=pairs))
        kernels = [program.kernel for program in emit_programs(cut, SM_90A)]
        texts = list(dict.fromkeys(map(canonical_text, kernels)))
        graph = run_passes(import_onnx(masked(), {}))
        cut = partition(graph, SM_90A, Options(no_fusion=True))
        texts += [canonical_text(program.kernel) for program in emit_programs(cut, SM_90A)]
    read = blocks = 0
    for number, text in enumerate(texts):
        found = sizes_of(text)
        if found is None:
            continue
        assert found.moving == sizes.moving
        with found:
            kernel = parse_kernel(text)
            assert canonical_text(kernel) == text
            compiled = compile_kernel(kernel, SM_90A)
        ptx = compiled.code.decode()
        declared = re.search(r"\.entry [^(]*\(([^)]*)\)", ptx)
        assert declared is not None
        count = declared[1].count(".param") - len(kernel.buffers) - len(compiled.tensor_maps)
        moving = any("past" in item for item in compiled.facts["sizes"])
        assert compiled.facts.get("moving", False) == moving
        assert count == (1 if moving else len(compiled.sizes))
        maps = str(compiled.facts["maps"])
        assert "past" not in maps
        read += moving
        bounded = any("past" in item for item in compiled.facts["launch"])
        blocks += bounded
        begins = ptx[: ptx.find("griddepcontrol")]
        assert ("setp" in begins and "%ctaid" in begins) >= bounded
        if shutil.which("ptxas") is not None:
            (tmp_path / "k.ptx").write_text(ptx)
            command = ["ptxas", "-arch=sm_90a", tmp_path / "k.ptx", "-o", tmp_path / "cubin"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, f"{number}: {done.stderr}"
    assert read >= 3 and blocks  # the projection that appends, attention, and its sum over parts


def masked() -> Any:
    return onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 22]>
        masked (float[past] x) => (float[past] y) { y = Exp(x) }""")
