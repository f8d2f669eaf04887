"""Keywords that a call does not know are named, with the nearest that it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import fuser
from fuser.errors import FeedError, KeywordError, UsageError
from fuser.frontends.onnx.model import open_model
from fuser.runtime.feeds import turned
from models import TINY, build


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "m.onnx"
    onnx.save(build("mlp", **TINY["mlp"]), path)
    return path


_CALLS: dict[str, Callable[[Path], object]] = {
    "a file": lambda f: fuser.compile(f, devcie="cpu"),  # type: ignore[call-overload]
    "a proto": lambda f: fuser.compile(onnx.load(f), devcie="cpu"),  # type: ignore[call-overload]
    "many sizes": lambda f: fuser.compile(  # type: ignore[call-overload]
        f, devcie="cpu", dynamic=True
    ),
    "jit": lambda f: fuser.jit(devcie="cpu"),
    "session": lambda f: fuser.InferenceSession(f, devcie="cpu"),
    "trace": lambda f: fuser.trace(np.sin, np.ones(2), devcie="cpu"),
}


@pytest.mark.parametrize("call", _CALLS)
def test_an_unknown_keyword_is_named(call: str, mlp: Path) -> None:
    with pytest.raises(KeywordError, match=r"no keyword 'devcie'; did you mean 'device'\?") as got:
        _CALLS[call](mlp)
    assert isinstance(got.value, TypeError) and isinstance(got.value, UsageError)


def test_an_unlike_keyword_lists_what_there_is(mlp: Path) -> None:
    with pytest.raises(KeywordError, match=r"no keyword 'zzz'; its keywords are device, threads"):
        fuser.compile(mlp, zzz=1)  # type: ignore[call-overload]


def test_an_unknown_keyword_of_a_kernel() -> None:
    with pytest.raises(KeywordError, match=r"no keyword 'do_not_specialise'; did you mean 'do_not"):
        fuser.kernel(do_not_specialise=["n"])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"example_inputs": [np.ones(2)]}, "'example_inputs' .* not for an ONNX model"),
        ({"freeze": False}, "'freeze' .* not for an ONNX model"),
        ({"values": {}, "dynamic": True}, "'values' .* not for dynamic=True"),
    ],
)
def test_keywords_of_other_models(mlp: Path, options: dict[str, object], words: str) -> None:
    """They were ignored."""
    with pytest.raises(KeywordError, match=words):
        fuser.compile(mlp, device="cpu", **options)  # type: ignore[call-overload]


def test_keywords_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(KeywordError, match=r"'dims' .* not for a PyTorch model"):
        fuser.compile(torch.nn.ReLU(), dims={"batch": 2})  # type: ignore[call-overload]
    compiled = torch.compile(torch.nn.ReLU(), backend="fuser", options={"devcie": "cpu"})
    with pytest.raises(Exception, match=r"no keyword 'devcie'; did you mean 'device'\?"):
        compiled(torch.ones(2))


# feeds whose axes stand in another order ----------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "wanted", "order"),
    [
        ((3, 2), (2, 3), "1, 0"),
        ((1, 224, 200, 3), (1, 3, 224, 200), "0, 3, 1, 2"),
        ((8, 224, 200, 3), (None, 3, None, None), "0, 3, 1, 2"),
        ((2, 2, 3), (3, 2, 2), "2, 0, 1"),
    ],
)
def test_the_order_that_is_wanted(
    shape: tuple[int, ...], wanted: tuple[int | None, ...], order: str
) -> None:
    assert f"array.transpose({order})" in turned(shape, wanted)
    turned_shape = np.empty(shape).transpose([int(axis) for axis in order.split(",")]).shape
    assert all(size in (None, n) for size, n in zip(wanted, turned_shape, strict=True))


@pytest.mark.parametrize(
    ("shape", "wanted"), [((6,), (2, 3)), ((1, 6), (2, 3)), ((2, 3), (2, 4)), ((2, 3), (None, 3))]
)
def test_no_order_would_do(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> None:
    assert turned(shape, wanted) == ""


def test_a_transposed_feed_of_open_sizes() -> None:
    """The open sizes would be read off the wrong axes: 24 columns are fixed, rows are not."""
    model = open_model(build("mlp", **TINY["mlp"]))
    ((name, type),) = model.inputs.items()
    wrong = np.ones((24, 5), np.float32)
    with pytest.raises(FeedError, match=rf"input '{name}'.*\[24, 5\].*array\.transpose\(1, 0\)"):
        model.check({name: wrong}, {"batch": 24})
    with pytest.raises(FeedError, match=r"f32\[5, 24\].*array\.transpose\(1, 0\)"):
        fuser.compile(model, device="cpu", dims={"batch": 5}).run({name: wrong})
    assert type.shape[1] == 24
