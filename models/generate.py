"""Tokens by a decoder whose keys and values stay in the plan: python -m models generate."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx

import fuser
from fuser.graph.units import byte_size, counted, duration
from fuser.report.progress import Progress
from fuser.runtime.terminal import echo, paragraphs, table
from models import TINY, build
from models.writer import Array

SIZES: dict[str, dict[str, int]] = {
    "tiny_llama": {},
    "small_llama": dict(TINY["llama"]),
    "llama": {},
}
"""Models that generate. small_llama is for tests."""


@dataclass
class Generated:
    """What came of a prompt, and how long it took. tokens: int64 [batch, count]."""

    tokens: Array
    prefill_s: float
    """Of the prompt's run, in seconds."""
    steps_s: list[float] = field(default_factory=list)
    """Of each run after that."""

    @property
    def tokens_per_second(self) -> float:
        """By the median step, of all sequences together."""
        median = float(np.median(self.steps_s)) if self.steps_s else float("nan")
        return len(self.tokens) / median


def decoder(name: str = "tiny_llama", dtype: str = "float32", **options: Any) -> onnx.ModelProto:
    """A llama with cache and sampling. options: those of `models.llama.llama`."""
    builder = "llama" if name == "small_llama" else name
    return build(builder, dtype, cache=True, sample=True, **{**SIZES[name], **options})


def generate(
    plan: fuser.StatefulPlan, prompt: Array, count: int, *, temperature: float = 0.0, seed: int = 0,
    state: fuser.State | None = None, told: Callable[[int], None] = lambda done: None,
) -> Generated:  # fmt: skip
    """`count` tokens behind a prompt, int64 [batch, length], in a state of its own unless given. On
    a GPU tokens go from run to run on the device, and each is read while the next is computed.
    told: called after each run with the number of tokens so far."""
    if state is None:
        state = plan.state(batch=len(prompt), capacity=prompt.shape[1] + count)
    how = {"temperature": np.float32(temperature), "seed": np.int64(seed)}
    run = state.run_device if plan.on_gpu else state.run
    started = time.perf_counter()
    drawn: Any = run({"input_ids": prompt, **how})["next_ids"]
    tokens: list[Array] = []
    found = Generated(_on_host(drawn), time.perf_counter() - started)
    told(1)
    for done in range(1, count):
        started = time.perf_counter()
        following = run({"input_ids": drawn, **how})["next_ids"]
        tokens.append(_on_host(drawn))
        drawn = following
        found.steps_s.append(time.perf_counter() - started)
        told(done + 1)
    tokens.append(_on_host(drawn))
    found.tokens = np.concatenate(tokens, axis=1)
    return found


def _on_host(found: Any) -> Array:
    array: Array = found if isinstance(found, np.ndarray) else found.numpy()
    return array


@click.command("generate")
@click.option("--model", type=click.Choice(list(SIZES)), default="tiny_llama", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float32",
              show_default=True)  # fmt: skip
@click.option("--bits", type=click.Choice(["0", "4", "8"]), default="0", show_default=True,
              help="Of projections' weights (MatMulNBits); 0: as dtype says.")  # fmt: skip
@click.option("--layers", type=int, help="Of the model, if not its own number.")
@click.option("--prompt", default=64, show_default=True, help="Tokens of the drawn prompt.")
@click.option("--tokens", default=64, show_default=True, help="Tokens to generate.")
@click.option("--batch", default=1, show_default=True, help="Sequences.")
@click.option("--temperature", default=0.0, show_default=True, help="0 takes the likeliest token.")
@click.option("--seed", default=0, show_default=True, help="Of prompt and sampling.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or cuda:N.")
@click.option("--threads", type=int)
@click.option("--tokenizer", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A tokenizer.json: prints text in place of tokens.")  # fmt: skip
@click.option("--text", help="The prompt, with --tokenizer.")
def command(
    model: str, dtype: str, bits: str, layers: int | None, prompt: int, tokens: int, batch: int,
    temperature: float, seed: int, device: str, threads: int | None, tokenizer: Path | None,
    text: str | None,
) -> None:  # fmt: skip
    """Generate tokens behind a drawn prompt with random weights, and say how fast."""
    if text is not None and tokenizer is None:
        raise click.UsageError("--text needs --tokenizer FILE, a tokenizer.json")
    words = None if tokenizer is None else _tokenizer(tokenizer)
    sizes = {} if layers is None else {"layers": layers}
    with Progress(delay=0) as progress:
        progress.step(f"building {model}")
        proto = decoder(model, dtype, bits=int(bits), **sizes)
        vocabulary = int(proto.graph.output[-2].type.tensor_type.shape.dim[2].dim_value)
        ids = np.random.default_rng(seed).integers(1, vocabulary, (batch, prompt))
        if words is not None and text is not None:
            ids = np.tile(_prompt(words, text, vocabulary), (batch, 1))
            prompt = ids.shape[1]
        progress.step("compiling")
        plan = fuser.compile(
            proto, state="auto", device=device, threads=threads, progress=progress.step
        )
        del proto
        warm = generate(plan, ids, 3)  # compiles
        progress.step(f"reading {counted(prompt, 'token')}")
        told = partial(_told, progress, tokens, [time.monotonic()])
        found = generate(plan, ids, tokens, temperature=temperature, seed=seed, told=told)
    for row in found.tokens:
        said = " ".join(map(str, row)) if words is None else words.decode(row.tolist())
        echo(paragraphs(said) if sys.stdout.isatty() else said)  # a pipe gets it as it is
    state = plan.state(batch=batch, capacity=prompt + tokens)
    compiled = duration(warm.prefill_s + sum(warm.steps_s))
    rate = batch * prompt / found.prefill_s
    rows = [
        ("compile", f"{compiled}, {counted(len(plan.variants), 'variant')}"),
        ("prefill", f"{duration(found.prefill_s)}, {rate:,.0f} tokens/s"),
        ("decode", f"{found.tokens_per_second:,.1f} tokens/s"),
        ("state", byte_size(state.bytes)),
    ]
    echo(table(rows, labels=True, paint=True))


def _told(progress: Progress, count: int, last: list[float], done: int) -> None:
    """Show how many tokens there are, once a second. last: when it was shown, of
    time.monotonic()."""
    now = time.monotonic()
    if now - last[0] >= 1:
        last[0] = now
        progress.step(f"{done} of {count} tokens")


def _tokenizer(path: Path) -> Any:
    """Raises click.UsageError where there is no package for it, or the file is none."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise click.UsageError("--tokenizer needs a package: pip install tokenizers") from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing else
        raise click.UsageError(f"{path} is no tokenizer.json: {error}") from error


def _prompt(words: Any, text: str, vocabulary: int) -> Array:
    """int64 [1, length]. Raises click.UsageError."""
    ids = np.array([words.encode(text).ids], np.int64)
    if not ids.size:
        raise click.UsageError("--text holds no token")
    if ids.max() >= vocabulary:
        raise click.UsageError(
            f"the tokenizer has a token {ids.max()}, the model {vocabulary} tokens"
        )
    return ids
