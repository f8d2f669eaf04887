"""A sample of PyTorch's operators, and what the command says of results that are wrong, of defects
and of crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # PyTorch's database imports it

from fuser.errors import UnsupportedError  # noqa: E402
from fuser.frontends.torch.importer.registry import ATEN  # noqa: E402
from fuser.graph.builder import Builder  # noqa: E402
from fuser.graph.ir import Value  # noqa: E402
from tests.foreign_sections import replace_section  # noqa: E402
from tests.opinfo.__main__ import outcome_of, read_log  # noqa: E402
from tests.opinfo.cases import operators, samples, spread  # noqa: E402
from tests.opinfo.check import Outcome, check  # noqa: E402
from tests.opinfo.document import write  # noqa: E402
from tests.opinfo.judge import problem, with_indices_of  # noqa: E402
from tests.worker_pool import Answer  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore")]

FORWARD = {
    "float32": ("sin", "softmax", "trapz", "flip", "gather", "nn.functional.layer_norm", "var_mean",
                "scatter_add", "nn.functional.avg_pool2d", "linalg.vector_norm", "index_select"),
    "bfloat16": ("native_layer_norm", "cumsum", "nn.functional.gelu", "div.floor_rounding"),
    "float16": ("mean", "logsumexp"),
    "int64": ("topk", "remainder", "floor_divide", "bitwise_left_shift", "unfold", "sum"),
}  # fmt: skip
BACKWARD = ("nn.functional.normalize", "matmul", "kthvalue")


def checked(name: str, dtype: str, direction: str = "forward", most: int = 2) -> list[Outcome]:
    listed = dict(samples(name, dtype, direction))
    return [
        check(name, place, listed[place], dtype, direction) for place in spread(len(listed), most)
    ]


@pytest.mark.parametrize(
    ("dtype", "name"), [(dtype, name) for dtype, names in FORWARD.items() for name in names]
)
def test_forward(dtype: str, name: str) -> None:
    assert name in operators(dtype, "forward")
    for outcome in checked(name, dtype):
        assert outcome.kind == "right", outcome


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name: str) -> None:
    assert name in operators("float32", "backward")
    for outcome in checked(name, "float32", "backward"):
        assert outcome.kind == "right", outcome


def only(name: str) -> Outcome:
    (outcome,) = checked(name, "float32", most=1)
    return outcome


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nearly(b: Builder, x: Value) -> Value:
        return b.map("mul", b.map("sin", x), 1 + 2**-12)

    monkeypatch.setitem(ATEN, "sin", nearly)
    assert only("sin").kind == "wrong"
    assert "elements are off" in only("sin").reason


def test_defects_are_errors_and_refusals_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: Any) -> Any:
        raise IndexError("tuple index out of range")

    def refusal(*_: Any) -> Any:
        raise UnsupportedError("no sines")

    monkeypatch.setitem(ATEN, "sin", defect)
    assert only("sin").kind == "error"
    assert "IndexError" in only("sin").reason
    monkeypatch.setitem(ATEN, "sin", refusal)
    assert (only("sin").kind, only("sin").reason) == ("fell back", "no sines")


def test_random_numbers_are_skipped() -> None:
    assert only("rand_like").kind == "skipped"


def test_judge() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    assert not problem(x, x + 1e-7, x.double(), 1e-6)
    assert not problem(x, x * 2, x.double(), 1e-6)  # nearer to float64 than eager PyTorch
    assert "elements are off" in problem(x + 1e-4, x, x.double(), 1e-6)
    assert "dtype" in problem(x.half(), x, x.double(), 1e-6)
    assert "shape" in problem(x[:2], x, x.double(), 1e-6)
    inf = torch.tensor([float("inf"), float("nan")])
    assert not problem(inf, inf, None, 0.0)
    assert problem(inf.nan_to_num(), inf, None, 1.0)
    assert problem(torch.tensor([1]), torch.tensor([2]), None, 1.0)


def test_equal_elements_have_one_index_each() -> None:
    x = torch.tensor([5, 5, 7])
    wanted = torch.tensor([0, 1, 2])
    for found, same in (([1, 0, 2], True), ([0, 0, 2], False), ([0, 2, 1], False)):
        kept = with_indices_of([torch.tensor(found)], [wanted], x)[0]
        assert torch.equal(kept, wanted) is same


def test_outcomes_of_children() -> None:
    crashed = outcome_of(Answer("sin 3", {}, "crashed", "status -11"))
    assert (crashed.operator, crashed.sample, crashed.kind) == ("sin", 3, "stopped")
    right = {"operator": "sin", "sample": 0, "kind": "right", "reason": "", "seconds": 0.5}
    assert outcome_of(Answer("sin 0", right)) == Outcome("sin", 0, "right", "", 0.5)


def test_the_section_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    replace_section(page, "Other", "kept")
    outcomes = [
        Outcome("sin", 0, "right"),
        Outcome("cummax", 0, "fell back", "aten.cummax.default"),
        Outcome("tan", 1, "wrong", "result 0"),
    ]
    for _ in range(2):
        write(page, {"float32, forward": outcomes}, 8)
    text = page.read_text()
    assert text.count("| float32, forward | 3 | 1 | 0 | 1 | 0 | 0 | 0 | 1 | 0 | 0 |") == 1
    assert "| aten.cummax.default | 1 | cummax |" in text
    assert "- wrong: tan [1]: result 0" in text
    assert "## Other" in text
    assert read_log(tmp_path / "missing") == []


def test_places_are_spread() -> None:
    assert spread(10, 4) == [0, 3, 6, 9]
    assert spread(3, 8) == [0, 1, 2] == spread(3, 0)
    assert spread(5, 1) == [0]
    assert spread(0, 4) == []
