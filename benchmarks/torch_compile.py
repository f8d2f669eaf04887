"""Processor time of the first call of a decode step through torch.compile, and who takes it.

    python -m benchmarks.torch_compile                        # a Llama of 1.1B parameters' layers
    python -m benchmarks.torch_compile --hidden 2048 --rounds 3

A transformers Llama with a StaticCache gets one token; each round is a process of its own, in turns
with Dynamo alone (the back end "eager"). Sizes change what weights take, hardly what compiling
does, so the layers are narrow unless asked for. No GPU is needed; kernels are in a cache that the
first round fills.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

LAYERS, HEADS, KEY_HEADS = 22, 32, 4


def step(hidden: int, layers: int, backend: str) -> dict[str, float]:
    """Seconds of processor time in this process."""
    import torch
    import transformers
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    import fuser.frontends.torch.backend as fuser_backend
    from fuser.frontends.torch.program import FxProgram

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    config = LlamaConfig(
        vocab_size=32000 if hidden >= 2048 else 1000, hidden_size=hidden,
        intermediate_size=hidden * 11 // 4, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS, max_position_embeddings=2048,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    cache = StaticCache(config=config, max_cache_len=1024)
    spent: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] = spent.get(name, 0.0) + time.process_time() - started

        return call

    FxProgram.prepare = timed("plan", FxProgram.prepare)  # type: ignore[method-assign]
    captured: Any = timed("capture", fuser_backend.backend) if backend == "fuser" else backend

    def decode(tokens: Any, at: Any) -> Any:
        return model(tokens, position_ids=at[None], past_key_values=cache, use_cache=True).logits

    with torch.no_grad():
        decode(torch.arange(8)[None], torch.arange(8))
        run = torch.compile(decode, backend=captured, fullgraph=True, dynamic=False)
        for number, name in enumerate(("first", "second")):
            started = time.process_time()
            run(torch.tensor([[number]]), torch.tensor([8 + number]))
            spent[name] = time.process_time() - started
    spent["dynamo"] = spent["first"] - spent.get("capture", 0.0) - spent.get("plan", 0.0)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=256, help="2048 is the 1.1B Llama")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(step(args.hidden, args.layers, args.alone)))
        return
    found: dict[str, list[dict[str, float]]] = {"eager": [], "fuser": []}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FUSER_CACHE_DIR": folder}
        sizes = ["--hidden", str(args.hidden), "--layers", str(args.layers)]
        for _ in range(args.rounds):
            for backend, rows in found.items():
                command = [sys.executable, "-m", "benchmarks.torch_compile", *sizes]
                done = subprocess.run([*command, "--alone", backend], env=environment, check=True,
                                      stdout=subprocess.PIPE, text=True)  # fmt: skip
                rows.append(json.loads(done.stdout.splitlines()[-1]))
    print("processor seconds: median (least)")
    for backend, rows in found.items():
        columns = []
        for name in ("first", "dynamo", "capture", "plan", "second"):
            values = [row[name] for row in rows if name in row]
            columns.append(f"{name} {median(values):.3f} ({min(values):.3f})" if values else "")
        print(f"{backend:6}", "  ".join(filter(None, columns)))


if __name__ == "__main__":
    main()
