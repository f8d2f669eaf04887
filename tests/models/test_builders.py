"""The builders: valid ONNX, the same bits for a seed, and outputs of the declared shapes."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models import MODELS, TINY, build, example_feeds, save
from models.minilm import PACKAGE, SENTENCES, encode

DRAWN = [name for name in MODELS if name != "minilm"]
SIZES = {"batch": 2, "sequence": 16}
SEQUENCES = {"attention", "bert", "gpt2", "llama", "tiny_llama"}
VARIANTS: list[tuple[str, dict[str, bool]]] = [
    *((name, {}) for name in DRAWN),
    ("softmax", {"decomposed": True}),
    ("layernorm", {"decomposed": True}),
    ("attention", {"causal": True}),
    ("attention", {"mask": True}),
    ("attention", {"causal": True, "modern": True}),
    ("llama", {"modern": True}),
]

try:
    metadata.version(PACKAGE)
    import safetensors  # noqa: F401

    HAS_MINILM = True
except ImportError:
    HAS_MINILM = False

needs_minilm = pytest.mark.skipif(not HAS_MINILM, reason=f"{PACKAGE} is not installed")


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results: list[np.ndarray[Any, Any]] = session.run(None, feeds)
    return results


def declared_shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(
        SIZES[dim.dim_param] if dim.dim_param else dim.dim_value
        for dim in value.type.tensor_type.shape.dim
    )


def spread(array: np.ndarray[Any, Any]) -> float:
    return float(array.astype(np.float64).std())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_checker_accepts_symbolic_and_fixed(
    name: str, options: dict[str, bool], dtype: str
) -> None:
    fixed = SIZES if name in SEQUENCES else {"batch": 2}
    for sizes in ({}, fixed):
        model = build(name, dtype, **TINY[name], **options, **sizes)
        onnx.checker.check_model(model, full_check=True)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_outputs_have_declared_shapes(name: str, options: dict[str, bool], dtype: str) -> None:
    model = build(name, dtype, **TINY[name], **options)
    outputs = run(model, example_feeds(model, SIZES))
    for value, output in zip(model.graph.output, outputs, strict=True):
        assert output.shape == declared_shape(value)
        assert output.dtype == dtype
        assert np.isfinite(output).all()
        assert 0.01 < spread(output) < 4


@pytest.mark.parametrize("name", sorted(SEQUENCES))
def test_fixed_sizes_compute_what_symbolic_ones_do(name: str) -> None:
    symbolic, fixed = build(name, **TINY[name]), build(name, **TINY[name], **SIZES)
    feeds = example_feeds(fixed)
    for expected, output in zip(run(symbolic, feeds), run(fixed, feeds), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["attention", "llama"])
def test_modern_ops_compute_what_their_pieces_do(name: str) -> None:
    options = {"causal": True} if name == "attention" else {}
    pieces = build(name, **TINY[name], **options)
    modern = build(name, **TINY[name], **options, modern=True)
    feeds = example_feeds(pieces)
    np.testing.assert_allclose(run(modern, feeds)[0], run(pieces, feeds)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DRAWN)
def test_a_seed_gives_the_same_bits(name: str) -> None:
    first, second = (build(name, **TINY[name]).SerializeToString(deterministic=True) for _ in "ab")
    assert first == second
    if name not in ("softmax", "attention"):
        assert build(name, **TINY[name], seed=1).SerializeToString(deterministic=True) != first


def test_weights_do_not_depend_on_other_layers() -> None:
    short, long = (
        {
            t.name: t.raw_data
            for t in build("bert", **{**TINY["bert"], "layers": n}).graph.initializer
        }
        for n in (1, 2)
    )
    assert short.items() <= long.items()


def test_large_weights_go_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.writer._PROTOBUF_LIMIT", 1000)
    model = build("mlp", **TINY["mlp"])
    for _ in range(2):  # a second save replaces the first
        save(model, tmp_path / "mlp.onnx")
    assert (tmp_path / "mlp.onnx.data").stat().st_size < 10_000
    loaded = onnx.load(tmp_path / "mlp.onnx")
    assert loaded.graph.node == model.graph.node
    for read, written in zip(loaded.graph.initializer, model.graph.initializer, strict=True):
        assert read.raw_data == written.raw_data


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="unknown model 'brt'"):
        build("brt")
    with pytest.raises(ValueError, match="dtype 'float8'"):
        build("mlp", "float8")
    with pytest.raises(ValueError, match="hidden=64 is not a multiple of heads=5"):
        build("bert", **{**TINY["bert"], "heads": 5})
    with pytest.raises(ValueError, match="sequence=65 is longer than positions=64"):
        build("gpt2", **TINY["gpt2"], sequence=65)
    with pytest.raises(ValueError, match="layers=18"):
        build("resnet50", layers=18)


def test_command_line(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from models.__main__ import main

    path, feeds = tmp_path / "mlp.onnx", tmp_path / "mlp.npz"
    arguments = ["mlp", "--dtype", "float16", "--hidden", "8", "--batch", "3"]
    result = CliRunner().invoke(main, [*arguments, "-o", str(path), "--feeds", str(feeds)])
    assert result.exit_code == 0, result.output
    assert onnx.load(path) == build("mlp", "float16", hidden=8, batch=3)
    assert np.load(feeds)["x"].shape == (3, 784)


@needs_minilm
def test_minilm_puts_related_sentences_together() -> None:
    feeds = encode(SENTENCES)
    model = build("minilm")
    onnx.checker.check_model(model, full_check=True)
    hidden, embedding = run(model, feeds)
    assert hidden.shape == (*feeds["input_ids"].shape, 384)
    np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1.0, rtol=1e-5)
    similarity = embedding @ embedding.T
    assert similarity[0, 1] > 0.6
    assert abs(similarity[0, 2:]).max() < 0.3


@needs_minilm
def test_encode_pads_cuts_and_normalises() -> None:
    feeds = encode(["Café, façade!", "unbelievability " * 20], max_length=12)
    assert feeds["input_ids"].shape == (2, 12)
    assert feeds["attention_mask"].sum(axis=1).tolist() == [6, 12]
    assert feeds["input_ids"][0, :1] == 101
    assert feeds["input_ids"][1, -1] == 102
    plain = encode(["cafe , FACADE !"])
    assert feeds["input_ids"][0, :6].tolist() == plain["input_ids"][0].tolist()


@needs_minilm
def test_encode_agrees_with_the_reference_tokenizer() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from models.minilm import _package_file

    reference = tokenizers.Tokenizer.from_file(str(_package_file("tokenizer.json")))
    reference.no_padding()
    for sentence in (
        "Supercalifragilistic e-mail: a@b.co, x=3.14*2^10 <tag> $5 €7!",
        "Größe, façade & naïve “quoted” text\tand\nlines",
        "東京 is 首都です。 Привет हिन्दी 한국어 😀",
        "A" * 120,
        "",
    ):
        assert encode([sentence])["input_ids"][0].tolist() == reference.encode(sentence).ids
