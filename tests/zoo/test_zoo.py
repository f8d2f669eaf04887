"""Models of the transformers library: right, wholly in kernels, and in few of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

import warnings
from pathlib import Path

import numpy as np

import fuser
from fuser.frontends.onnx.model import Model, open_model
from fuser.pipeline.devices import Device
from models.zoo import CACHED, ZOO, zoo_feeds, zoo_module
from tests.conformance.document import MODELS_BEGIN
from tests.foreign_sections import replace_section
from tests.zoo.__main__ import _write as write
from tests.zoo.routes import (
    EXPORTERS,
    Outcome,
    expected_outputs,
    export,
    relative_error,
    run_route,
)

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore")]

# Kernels of each model as it was last measured; another few are a regression of fusion.
MOST_KERNELS = {
    "bert": 16, "distilbert": 15, "gpt2": 16, "gpt2-cache": 18, "llama": 16, "llama-cache": 18,
    "t5-encoder": 15, "t5-decoder": 24, "whisper-encoder": 17, "vit": 17, "swin": 34,
    "convnext": 27, "mobilenet": 53, "efficientnet": 51, "segformer": 56, "resnet": 15,
    "lstm-tagger": 76,
}  # fmt: skip
SLACK = 1.15


def tolerance(dtype: str, device: Device) -> float:
    if dtype == "float16":
        return 1e-2
    return 1e-5 if device == "cpu" else 1e-4


def check(name: str, outcome: Outcome, limit: float) -> None:
    assert outcome.error < limit
    assert outcome.fallbacks == ()
    assert 0 < outcome.after <= SLACK * MOST_KERNELS[name]


def test_the_page_keeps_what_other_suites_wrote(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Suite\n\n{MODELS_BEGIN}\n")
    write(page, "cpu", ["torchscript"], ["| bert | 1 |"])
    replace_section(page, "Another", "of theirs")
    write(page, "a GPU", ["torchscript"], ["| bert | 2 |"])
    write(page, "cpu", ["torchscript"], ["| bert | 3 |"])
    replace_section(page, "Another", "of theirs, again")
    text = page.read_text()
    assert text.startswith("# Suite") and "| bert | 1 |" not in text
    assert "| bert | 2 |" in text and "| bert | 3 |" in text
    assert text.count("## Another") == 1 and "of theirs, again" in text
    assert text.index("| bert | 3 |") < text.index("## Another")


def test_every_model_has_a_bound() -> None:
    assert set(MOST_KERNELS) == set(ZOO)


@pytest.mark.parametrize("route", ["torchscript", "torch.export"])
@pytest.mark.parametrize("name", ZOO)
def test_model(name: str, route: str) -> None:
    check(name, run_route(name, route), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("route", ["dynamo", "torch.compile"])
@pytest.mark.parametrize("name", ZOO)
def test_model_by_the_slower_routes(name: str, route: str) -> None:
    check(name, run_route(name, route), 1e-5)


@pytest.mark.parametrize("route", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow),
                                   "torch.export"])  # fmt: skip
@pytest.mark.parametrize("past", [0, 7])
@pytest.mark.parametrize("name", CACHED)
def test_cache_lengths(name: str, past: int, route: str) -> None:
    outcome = run_route(name, route, past=past)
    assert outcome.error < 1e-5
    assert outcome.fallbacks == ()


@pytest.mark.parametrize(
    "exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", CACHED)
def test_one_export_serves_every_cache_length(name: str, exporter: str) -> None:
    """Batch, tokens and the length of the cache stay symbols of the exported model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = open_model(export(zoo_module(name), zoo_feeds(name), exporter, dynamic=True))
    for past in (0, 1, 6):
        feeds = zoo_feeds(name, past=past)
        dims = {
            str(dim): size
            for key, array in feeds.items()
            for dim, size in zip(model.inputs[key].shape, array.shape, strict=True)
            if not isinstance(dim, int)
        }
        assert 0 not in dims.values() or past == 0
        found = fuser.compile(model, device="cpu", dims=dims).run(feeds)
        wanted = expected_outputs(name, feeds, "float32")
        assert relative_error(list(found.values()), wanted) < 1e-5
    if exporter == "dynamo" or name == "llama-cache":
        check_state(name, model)


def check_state(name: str, model: Model) -> None:
    """The export, unedited, keeps keys and values in place: tokens one by one give what all of them
    give at once."""
    plan = fuser.compile(model, state="auto", device="cpu")
    state = plan.state(batch=2, capacity=12)
    feeds = zoo_feeds(name, past=0)
    tokens = np.random.default_rng(5).integers(1, 90, (2, 9))
    rows = []
    for start, stop in ((0, 5), (5, 6), (6, 7), (7, 8), (8, 9)):
        mask = np.ones((2, stop), np.int64)
        outputs = state.run({"input_ids": tokens[:, start:stop], "attention_mask": mask})
        rows.append(next(iter(outputs.values())))
    whole = feeds | {"input_ids": tokens, "attention_mask": np.ones((2, 9), np.int64)}
    wanted = expected_outputs(name, whole, "float32")
    assert relative_error([np.concatenate(rows, axis=1)], wanted[:1]) < 1e-5
    ways = plan.explain().splitlines()[:4]
    assert len(plan.pairs) == 4 and all(line.endswith(": in place") for line in ways)
    assert len(plan.variants) == 2


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("route", ["torchscript", "torch.export"])
@pytest.mark.parametrize("name", ZOO)
def test_model_on_a_gpu(name: str, route: str, dtype: str) -> None:
    """The module and its inputs are on the GPU too, where the route knows tensors."""
    on_device = route not in EXPORTERS
    outcome = run_route(name, route, device="cuda", dtype=dtype, on_device=on_device)
    assert outcome.error < tolerance(dtype, "cuda")
    assert outcome.fallbacks == ()


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize("route", ["dynamo", "torch.compile"])
@pytest.mark.parametrize("name", ZOO)
def test_model_on_a_gpu_by_the_slower_routes(name: str, route: str) -> None:
    outcome = run_route(name, route, device="cuda", on_device=route not in EXPORTERS)
    assert outcome.error < 1e-4
    assert outcome.fallbacks == ()
