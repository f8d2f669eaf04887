"""Packages written for ONNX Runtime on fuser's session: optimum's ORTModel classes, exporter
included, and the ONNX back end of sentence-transformers. Tiny models with random weights.

Skipped where optimum-onnx or sentence-transformers is not installed (docs/dependencies.md).
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.onnxruntime

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
for name in ("optimum-onnx", "sentence-transformers"):
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed", allow_module_level=True)

LETTERS = [chr(ord("a") + i) for i in range(26)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
TEXTS = ["hello world", "a b c d e f", "x"]


@pytest.fixture(scope="module")
def packages() -> dict[str, Any]:
    """Loaded with fuser's session in place of ONNX Runtime's."""
    with fuser.onnxruntime.imports("optimum", "sentence_transformers"):
        import optimum.onnxruntime
        import sentence_transformers

        return {"optimum": optimum.onnxruntime, "sentences": sentence_transformers}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an encoder: its configuration, tokenizer, weights and how to pool."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    parts = [("", "sentence_transformers.models.Transformer"),
             ("1_Pooling", "sentence_transformers.models.Pooling")]  # fmt: skip
    listed = [{"idx": i, "name": str(i), "path": p, "type": t} for i, (p, t) in enumerate(parts)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_an_encoder_of_optimum(packages: dict[str, Any], bert: Path) -> None:
    model = packages["optimum"].ORTModelForFeatureExtraction.from_pretrained(bert, export=True)
    assert isinstance(model.session, fuser.InferenceSession)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    want_of = transformers.BertModel.from_pretrained(bert).eval()
    for binding in (False, True):
        model.use_io_binding = binding
        for texts in (TEXTS, TEXTS[:1]):
            encoded = tokenizer(texts, padding=True, return_tensors="pt")
            with torch.no_grad():
                want = want_of(**encoded).last_hidden_state
            torch.testing.assert_close(
                model(**encoded).last_hidden_state, want, rtol=1e-4, atol=1e-5
            )


def test_sentence_transformers(packages: dict[str, Any], bert: Path) -> None:
    encoder = packages["sentences"].SentenceTransformer
    found = encoder(str(bert), backend="onnx", model_kwargs={"export": True})
    assert isinstance(found[0].auto_model.session, fuser.InferenceSession)
    want = encoder(str(bert)).encode(TEXTS)
    np.testing.assert_allclose(found.encode(TEXTS), want, rtol=1e-4, atol=1e-5)


def test_a_decoder_of_optimum(packages: dict[str, Any], tmp_path: Path) -> None:
    """Keys and values of the past cross from run to run, bound or not."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=1,
        eos_token_id=95, pad_token_id=95,
    )  # fmt: skip
    reference = transformers.GPT2LMHeadModel(config).eval()
    reference.save_pretrained(tmp_path)
    model = packages["optimum"].ORTModelForCausalLM.from_pretrained(tmp_path, export=True)
    given = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "attention_mask": torch.ones(1, 4).long()}
    want = reference.generate(**given, max_new_tokens=6, do_sample=False)
    for binding in (False, True):
        model.use_io_binding = binding
        assert model.generate(**given, max_new_tokens=6, do_sample=False).tolist() == want.tolist()
    assert model.session.fallbacks == ()
