"""One NNSmith model from a number: https://github.com/ise-uiuc/nnsmith, the extra `fuzz`.

NNSmith draws operators one after another and asks an SMT solver for shapes that fit; PyTorch's
TorchScript exporter writes the ONNX file. `python -m tests.nnsmith.generate` is a child of
`tests.nnsmith`.
"""

from __future__ import annotations

import io
import logging
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import onnx

from tests.nnsmith.storage import load, store
from tests.worker_pool import serve

TRIES = 8
"""NNSmith may draw what no valid ONNX model says (complex numbers, reductions of int16)."""
MILLISECONDS = 8000
DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
METHODS = ("symbolic-cinit", "concolic")
LARGEST = (64, 1024, 1024, 4096, 16384)
OPSETS = (14, 16, 17, 18, 20)


def generate(folder: Path, number: int, least: int, most: int) -> dict[str, Any]:
    """Write the model of a number, of `least` to `most` operators."""
    started = time.perf_counter()
    path = folder / f"{number:06d}.onnx"
    refused: list[str] = []
    for attempt in range(TRIES):
        source = random.Random(f"{number} {attempt}")
        try:
            model = _draw(source, source.randint(least, most))
            onnx.checker.check_model(model, full_check=True)
            store(model, path)
            onnx.checker.check_model(load(path), full_check=True)
        except Exception as error:  # a failed draw, of whatever kind: the next one
            refused.append(f"{type(error).__name__}: {error}"[:300])
            path.unlink(missing_ok=True)
            continue
        seconds = time.perf_counter() - started
        return {"nodes": len(model.graph.node), "seconds": seconds, "refused": refused}
    return {"nodes": 0, "seconds": time.perf_counter() - started, "refused": refused}


def _draw(source: random.Random, nodes: int) -> onnx.ModelProto:
    import torch
    from nnsmith.abstract.dtype import DType
    from nnsmith.abstract.extension import activate_ext
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize.onnx import ONNXModelCPU
    from nnsmith.materialize.torch.symbolnet import SymbolNet

    torch.set_num_threads(1)
    limited = source.random() < 0.5  # with operators that are undefined for some numbers
    operators = [op for op in ONNXModelCPU.operators() if limited or not op.limit_domain]
    activate_ext(opset=operators, factory=None)
    drawn = model_gen(
        opset=operators, method=source.choice(METHODS), seed=source.getrandbits(31),
        max_elem_per_tensor=source.choice(LARGEST), max_nodes=nodes, timeout_ms=MILLISECONDS,
        dtype_choices=[DType.from_str(name) for name in DTYPES],
    )  # fmt: skip
    torch.manual_seed(source.getrandbits(31))
    net = SymbolNet(drawn.make_concrete()).to(torch.device("cpu"))
    net.eval()
    feeds = tuple(
        torch.ones(like.shape).uniform_(1, 2).to(like.dtype.torch())
        for like in net.input_like.values()
    )
    file = io.BytesIO()
    with torch.no_grad():
        torch.onnx.export(
            net, feeds, file, input_names=list(net.input_like),
            output_names=list(net.output_like), do_constant_folding=False,
            opset_version=source.choice(OPSETS), dynamo=False,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def main() -> None:
    """Arguments: the folder, the least and the greatest number of operators. Items: numbers."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    folder, least, most = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    serve(lambda item: generate(folder, int(item), least, most))


if __name__ == "__main__":
    main()
