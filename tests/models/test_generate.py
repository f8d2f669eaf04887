"""Decoders that keep their keys and values, beside one that computes all of them anew."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

import fuser
from fuser.report.progress import Progress
from models import TINY, build
from models.generate import _told, command, decoder, generate


@pytest.fixture(scope="module")
def plan() -> fuser.StatefulPlan:
    return fuser.compile(decoder("small_llama"), state="auto", device="cpu", threads=1)


def recomputed(prompt: np.ndarray, count: int, device: str = "cpu", **options: int) -> np.ndarray:
    """The likeliest tokens by a plan that is handed all tokens every time."""
    sizes: dict[str, Any] = {**TINY["llama"], **options}
    model = build("llama", **sizes)
    full = fuser.compile(model, device=device, dynamic=True)
    ids = prompt
    for _ in range(count):
        logits = full.run({"input_ids": ids})["logits"]
        ids = np.concatenate([ids, logits[:, -1].argmax(axis=-1)[:, None]], axis=1)
    return ids[:, prompt.shape[1] :]


def prompt(length: int = 7, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(length).integers(1, 1000, (batch, length))


def test_tokens_are_those_of_a_full_recompute(plan: fuser.StatefulPlan) -> None:
    found = generate(plan, prompt(), 24)
    np.testing.assert_array_equal(found.tokens, recomputed(prompt(), 24))
    ways = plan.explain().splitlines()[: len(plan.pairs)]
    assert len(ways) == 4 and all(line.endswith(": in place") for line in ways)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_512_tokens_are_those_of_a_full_recompute(device: str) -> None:
    plan = fuser.compile(decoder("tiny_llama"), state="auto", device=device)
    sizes = {"layers": 4, "hidden": 256, "heads": 8, "kv_heads": 2, "intermediate": 704}
    wanted = recomputed(prompt(16), 512, device, vocabulary=4096, **sizes)
    np.testing.assert_array_equal(generate(plan, prompt(16), 512).tokens, wanted)


def test_a_seed_draws_the_same_tokens_again(plan: fuser.StatefulPlan) -> None:
    drawn = [generate(plan, prompt(), 12, temperature=2.0, seed=seed).tokens for seed in (1, 1, 2)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).mean() > 0.5
    assert drawn[0].min() >= 0 and drawn[0].max() < TINY["llama"]["vocabulary"]


def test_tokens_are_drawn_by_their_probability(plan: fuser.StatefulPlan) -> None:
    """The likeliest token of a sharp distribution comes as often as softmax says."""
    feeds = {"input_ids": prompt(), "temperature": np.float32(0.5)}
    state = plan.state(capacity=8)
    drawn = []
    for seed in range(400):
        state.reset()
        outputs = state.run({**feeds, "seed": np.int64(seed)})
        drawn.append(int(outputs["next_ids"][0, 0]))
    logits = outputs["logits"][0, 0].astype(np.float64) / 0.5
    odds = np.exp(logits - logits.max())
    odds /= odds.sum()
    for token in np.argsort(odds)[-3:]:
        deviation = np.sqrt(odds[token] * (1 - odds[token]) / len(drawn))
        assert abs(drawn.count(token) / len(drawn) - odds[token]) < 4 * deviation


@pytest.mark.parametrize("bits", [4, 8])
def test_coded_weights_are_the_nearest(bits: int) -> None:
    """Within half a step of what they stand for."""
    model = partial(decoder, "tiny_llama", layers=1)
    plain = {w.name: numpy_helper.to_array(w) for w in model().graph.initializer}
    coded = model(bits=bits).graph.initializer
    arrays = {w.name: numpy_helper.to_array(w) for w in coded}
    names = [name.removesuffix(".codes") for name in arrays if name.endswith(".codes")]
    assert len(names) == 8
    for name in names:
        codes, scales = arrays[f"{name}.codes"].astype(np.int64), arrays[f"{name}.scales"]
        if bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*scales.shape, -1)
        whole = (codes - (1 << (bits - 1))) * scales[..., None]
        away = np.abs(whole.reshape(len(codes), -1).T - plain[name])
        step = np.repeat(scales, codes.shape[-1], axis=1).T
        assert (away <= step * 0.5001).all()


# The command --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words w0, w1, ... for the tokens 0, 1, ... of small_llama, and one beyond."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{i}": i for i in range(TINY["llama"]["vocabulary"] + 1)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


SMALL = ("--model", "small_llama", "--device", "cpu", "--threads", "1", "--tokens", "4")


def test_text_is_that_of_the_tokens(
    plan: fuser.StatefulPlan, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(Progress, "step", lambda self, name: steps.append(name))
    prompt = np.array([[3, 1, 4, 1, 5]])
    wanted = generate(plan, prompt, 4).tokens[0]
    done = CliRunner().invoke(
        command, [*SMALL, "--tokenizer", str(tokenizer), "--text", "w3 w1 w4 w1 w5"]
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == " ".join(f"w{token}" for token in wanted)
    assert steps[:2] == ["building small_llama", "compiling"]
    assert "reading 5 tokens" in steps[2:]


def test_what_does_not_go_together_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        done = CliRunner().invoke(command, [*SMALL, *arguments])
        assert done.exit_code == 2
        return " ".join(done.stderr.split())

    assert "--text needs --tokenizer" in error("--text", "w1")
    beyond = f"w{TINY['llama']['vocabulary']}"
    assert "tokens" in error("--tokenizer", str(tokenizer), "--text", beyond)
    (tmp_path / "no.json").write_text("{}")
    assert "no.json is no tokenizer.json" in error("--tokenizer", str(tmp_path / "no.json"))


def test_a_missing_package_is_named(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    done = CliRunner().invoke(command, [*SMALL, "--tokenizer", str(tokenizer)])
    assert done.exit_code == 2 and "pip install tokenizers" in done.stderr


def test_progress_is_told_once_a_second(
    plan: fuser.StatefulPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    generate(plan, prompt(), 5, told=counts.append)
    assert counts == [1, 2, 3, 4, 5]
    steps: list[str] = []
    monkeypatch.setattr(Progress, "step", lambda self, name: steps.append(name))
    now = iter([0.4, 0.9, 1.0, 1.9, 2.1])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    told = partial(_told, Progress(), 5, [0.0])
    for done in counts:
        told(done)
    assert steps == ["3 of 5 tokens", "5 of 5 tokens"]
