"""Whole models against the float64 oracle, and how many kernels they take."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fuser.backend.cpu import host_target
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, Target
from fuser.frontends.onnx.model import Model, compile, open_model, reference
from fuser.partition import partition
from fuser.pipeline.devices import Device
from fuser.pipeline.kernels import emit_programs
from fuser.runtime.plan import Plan
from fuser.tilegen.text import canonical_text
from models import TINY, build, example_feeds
from models.exports import Exporter, export_feeds
from models.minilm import PACKAGE, SENTENCES, encode

Array = np.ndarray[Any, Any]
Options = dict[str, Any]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
SIZES = {"batch": 2, "sequence": 16}
ODD = {"batch": 3, "sequence": 13}
VARIANTS: list[tuple[str, Options]] = [
    *((name, {}) for name in TINY if name not in ("minilm", "tiny_llama")),
    ("softmax", {"decomposed": True}),
    ("layernorm", {"decomposed": True}),
    ("attention", {"causal": True}),
    ("attention", {"mask": True}),
    ("attention", {"causal": True, "modern": True}),
    ("llama", {"modern": True}),
]
EXPORTS: list[tuple[str, Exporter]] = [
    ("bert", "torchscript"),
    ("vit", "torchscript"),
    ("resnet", "torchscript"),
    ("bert", "dynamo"),
    ("gpt2", "dynamo"),
    ("llama", "dynamo"),
    ("vit", "dynamo"),
    ("resnet", "dynamo"),
]
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def label(case: Any) -> str | None:
    """Test ids: the name and the options that are set."""
    return "-".join(case) or "plain" if isinstance(case, dict) else None


def tolerance(dtype: str, device: str) -> float:
    if dtype != "float32":
        return 1e-2
    return 1e-5 if device == "cpu" else 1e-4


def relative_error(output: Array, expected: Array) -> float:
    assert output.shape == expected.shape
    output, expected = output.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(output - expected) / np.linalg.norm(expected))


def check(
    proto: onnx.ModelProto, feeds: Mapping[str, Array], dtype: str, device: Device, **options: Any
) -> Plan:
    """Compile the model for the shapes of its feeds, run it, and compare it with the oracle."""
    model = open_model(proto)
    dims = {
        str(dim): size
        for name, array in feeds.items()
        for dim, size in zip(model.inputs[name].shape, array.shape, strict=True)
        if not isinstance(dim, int)
    }
    plan = compile(model, device=device, dims=dims, **options)
    outputs = plan.run(feeds)
    expected = reference(model, feeds, dims)
    assert list(outputs) == list(expected)
    for name, output in outputs.items():
        assert relative_error(output, expected[name]) < tolerance(dtype, device), name
    assert plan.report().fallbacks == ()
    assert all(region.kind != "host" for region in plan.report().regions)
    return plan


# builders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=label)
def test_builder(name: str, options: Options, dtype: str, device: Device) -> None:
    model = build(name, dtype, **TINY[name], **options)
    check(model, example_feeds(model, SIZES), dtype, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mlp", "attention", "bert", "gpt2", "llama", "resnet50"])
def test_odd_sizes(name: str, device: Device) -> None:
    model = build(name, **TINY[name])
    check(model, example_feeds(model, ODD), "float32", device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["conv_block", "bert", "llama"])
def test_without_fusion(name: str, device: Device) -> None:
    model = build(name, **TINY[name])
    check(model, example_feeds(model, SIZES), "float32", device, fusion=False)


def test_default_sizes_of_symbolic_dims() -> None:
    """A dim of size 0 is a size, not one that was left out."""
    model = open_model(build("bert", **TINY["bert"]))
    assert model.bind({}) == {"batch": 1, "sequence": 32}
    assert model.bind({"batch": 0}) == {"batch": 0, "sequence": 32}
    assert model.bind({"sequence": 0}) == {"batch": 1, "sequence": 0}


@pytest.mark.parametrize("device", DEVICES)
def test_same_bits_every_run(device: Device) -> None:
    model = build("bert", **TINY["bert"])
    feeds = example_feeds(model, SIZES)
    plans = [compile(model, device=device, dims=SIZES, threads=count) for count in (1, 2)]
    runs = [plan.run(feeds) for plan in plans for _ in range(2)]
    for run in runs[1:]:
        for name, output in run.items():
            np.testing.assert_array_equal(output, runs[0][name])


# trained weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_minilm_finds_similar_sentences(device: Device) -> None:
    try:
        metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed")
    pytest.importorskip("safetensors")
    model, feeds = build("minilm"), encode(SENTENCES)
    batch, sequence = feeds["input_ids"].shape
    dims = {"batch": batch, "sequence": sequence}
    plan = check(model, feeds, "float32", device)
    opened = open_model(model)
    found = plan.run(feeds)["sentence_embedding"].astype(np.float64)
    expected = reference(opened, feeds, dims)["sentence_embedding"]
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-4)
    cosines = (found @ found.T)[0, 1:]
    assert cosines.argmax() == 0 and cosines[0] > 0.6


# the models inside the onnx package --------------------------------------------------------------


def light_models() -> list[str]:
    return sorted(path.stem.removeprefix("light_") for path in LIGHT.glob("*.onnx"))


def ramp(model: onnx.ModelProto) -> dict[str, Array]:
    """The input that the recorded outputs belong to: 0 to 1 in equal steps."""
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name not in weights:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            size = int(np.prod(shape))
            feeds[value.name] = (np.arange(size).reshape(shape) / size).astype(np.float32)
    return feeds


def draw_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with seeded weights: those it comes with are all 0.02, so that any mistake
    in the order of channels, or of the classes, goes unseen."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in copy.graph.initializer}
    rng = np.random.default_rng(0)
    variances = {node.input[4] for node in copy.graph.node if node.op_type == "BatchNormalization"}
    kept = []
    for node in copy.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(shapes[node.input[0]].tolist())
        array: Array
        if len(shape) > 1:  # so that activations keep their size
            array = rng.standard_normal(shape, np.float32)
            array *= np.float32(np.sqrt(1.5 / np.prod(shape[1:])))
        else:
            array = rng.uniform(0.5, 1.5, shape) - 0.9 * (node.output[0] not in variances)
        tensor = numpy_helper.from_array(array.astype(np.float32), node.output[0])
        copy.graph.initializer.append(tensor)
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", light_models())
def test_light_model(name: str, device: Device) -> None:
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    feeds = ramp(model)
    recorded = onnx.load_tensor(LIGHT / f"light_{name}_output_0.pb")
    output = compile(model, device=device).run(feeds)[model.graph.output[0].name]
    assert relative_error(output, numpy_helper.to_array(recorded)) < 1e-4
    drawn = draw_weights(model)
    rng = np.random.default_rng(1)
    for key, array in feeds.items():
        feeds[key] = rng.standard_normal(array.shape, np.float32)
    check(drawn, feeds, "float32", device)


# exports -----------------------------------------------------------------------------------------


@pytest.mark.export
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_export(
    name: str, exporter: Exporter, dtype: str, device: Device, exported: Callable[..., Any]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("onnxscript")
    model = exported(name, exporter, dtype=dtype)
    check(model, export_feeds(name, dtype=dtype), dtype, device)


@pytest.mark.export
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "exporter"), [("bert", "torchscript"), ("llama", "dynamo")])
def test_dynamic_export(
    name: str, exporter: Exporter, device: Device, exported: Callable[..., Any]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("onnxscript")
    model = exported(name, exporter, dynamic=True)
    check(model, export_feeds(name, batch=3, length=11), "float32", device)


# kernels -----------------------------------------------------------------------------------------

# Full depth, narrow: the partitioner sees every layer, and the weights stay small. A compiler of
# whole models was seen to launch 124, 104, 104, 235 and 196 kernels for the full-size ones.
DEPTHS: dict[str, tuple[str, Options, int]] = {
    "bert-base": ("bert", {"layers": 12, "hidden": 96, "heads": 12, "vocabulary": 100}, 90),
    "gpt2-small": ("gpt2", {"layers": 12, "hidden": 96, "heads": 12, "vocabulary": 100}, 90),
    "resnet50": ("resnet50", {"layers": 50, "hidden": 8, "image": 64, "classes": 10}, 60),
    "llama-16": (
        "llama",
        {**TINY["llama"], "layers": 16, "heads": 8, "kv_heads": 2, "vocabulary": 100},
        120,
    ),
    "vit-base": ("vit", {**TINY["vit"], "layers": 12, "hidden": 96, "heads": 12}, 95),
}
TARGETS = {"cpu": host_target, "sm_80": lambda: SM_80, "sm_90a": lambda: SM_90A}


@functools.cache
def deep_model(case: str) -> Model:
    name, sizes, _ = DEPTHS[case]
    return open_model(build(name, **sizes))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", DEPTHS)
def test_kernel_count(case: str, target: str) -> None:
    device: Target = TARGETS[target]()
    model = deep_model(case)
    dims = {name: {"batch": 1, "sequence": 32}[name] for name in model.bind({})}
    cut = partition(model.graph(dims), device)
    assert all(region.kind != "host" for region in cut.regions)
    assert len(emit_programs(cut, device)) <= DEPTHS[case][2]


# PTX ---------------------------------------------------------------------------------------------

# Full width, one layer: every kernel that the full-size models have.
WIDTHS: dict[str, tuple[str, Options]] = {
    "bert-base": ("bert", {"layers": 1, "vocabulary": 100}),
    "gpt2-small": ("gpt2", {"layers": 1, "vocabulary": 1001}),
    "resnet50": ("resnet50", {}),
    "llama-1b": ("llama", {"layers": 1, "vocabulary": 1000}),
    "vit-base": ("vit", {"layers": 1}),
}


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="there is no ptxas")
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda target: target.arch)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("case", WIDTHS)
def test_ptx_assembles(case: str, dtype: str, target: Target, tmp_path: Path) -> None:
    name, sizes = WIDTHS[case]
    model = open_model(build(name, dtype, **sizes))
    dims = {name: {"batch": 1, "sequence": 128}[name] for name in model.bind({})}
    programs = emit_programs(partition(model.graph(dims), target), target)
    distinct = {canonical_text(program.kernel): program for program in programs}
    for number, program in enumerate(distinct.values()):
        file = tmp_path / f"{number}.ptx"
        file.write_bytes(compile_kernel(program.kernel, target).code)
        command = ["ptxas", "-v", f"-arch={target.arch}", file, "-o", tmp_path / "cubin"]
        done = subprocess.run(command, capture_output=True, text=True)
        log, place = done.stdout + done.stderr, f"{program.kernel.name} {program.region.origin}"
        assert done.returncode == 0, f"{place}: {log}"
        assert re.search("[1-9][0-9]* bytes spill", log) is None, f"{place}: {log}"
        assert not re.search("C75[0-9]{2}|warning", log), f"{place}: {log}"
