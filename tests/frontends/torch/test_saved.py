"""Compiled PyTorch programs that were saved: loaded without the module, they give the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils import _pytree  # noqa: E402

import fuser  # noqa: E402
from fuser.errors import FeedError, InvalidModelError, UsageError  # noqa: E402
from fuser.frontends.torch.saved import _read_tree, _write_tree  # noqa: E402

pytestmark = [
    pytest.mark.export,
    pytest.mark.filterwarnings("ignore:.*treespec.*"),
]


class Counting(nn.Module):
    """Counts its calls in a buffer, changes an input, and gives a dict with a number in it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.count: Any
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Any, seen: Any, scale: float = 1.0) -> dict[str, Any]:
        self.count.add_(1)
        seen.add_(x.sum())
        return {"y": self.linear(x) * scale + self.count, "parts": (x.shape[0], x.mean())}


@pytest.fixture
def example() -> Any:
    torch.manual_seed(0)
    return torch.randn(2, 4)


def test_a_module_is_saved_and_loaded(
    tmp_path: Path, example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    compiled = fuser.compile(module, threads=1)
    with pytest.raises(UsageError, match="call it once"):
        compiled.save(tmp_path / "none")
    other = torch.randn(5, 4)
    wanted = [compiled(x) for x in (example, other)]
    compiled.save(tmp_path / "both")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr("fuser.frontends.torch.program.compile_graph", never)
    again: Any = fuser.load(tmp_path / "both", threads=1)
    assert [torch.equal(again(x), y) for x, y in zip((example, other), wanted, strict=True)]
    assert torch.equal(again(other), wanted[1]) and len(again.plans) == 2
    assert repr(again) == "<SavedModule cpu, 2 sets of inputs>"
    assert "f32[5, 4]" in again._repr_html_()
    with pytest.raises(FeedError, match=r"inputs f32\[3, 4\], but for f32\[2, 4\]; f32\[5, 4\]"):
        again(torch.randn(3, 4))
    with pytest.raises(FeedError, match="f64"):
        again(example.double())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_state_and_trees(tmp_path: Path, example: Any, device: str) -> None:
    module, example = Counting().eval().to(device), example.to(device)
    compiled = fuser.compile(module)
    seen = torch.zeros(1, device=device)
    compiled(example, seen, scale=2.0)
    assert module.count == 1 and len(compiled.plans) == 1
    compiled.save(tmp_path / "counting")
    again: Any = fuser.load(tmp_path / "counting")
    wanted = compiled(example, seen, scale=2.0)
    mine = torch.zeros(1, device=device)
    found = again(example, mine, scale=2.0)
    assert torch.equal(found["y"], wanted["y"])  # the second call, of both
    assert found["parts"][0] == 2 and torch.equal(found["parts"][1], wanted["parts"][1])
    assert torch.equal(2 * mine, seen)
    assert torch.equal(again(example, mine, scale=2.0)["y"], found["y"] + 1)
    assert module.count == 2  # its own count
    for wrong in ({"scale": 3.0}, {"scale": 2}, {}):
        with pytest.raises(FeedError, match="nothing was saved"):
            again(example, mine, **wrong)


class Pair(NamedTuple):
    first: Any
    second: Any


class Paired(nn.Module):
    def forward(self, x: Any) -> Pair:
        return Pair(x + 1, x * 2)


def test_trees_that_cannot_be_written_or_read(tmp_path: Path, example: Any) -> None:
    compiled = fuser.compile(Paired(), example_inputs=(example,))
    with pytest.raises(UsageError, match="has no text"):
        compiled.save(tmp_path / "pair")
    with pytest.raises(InvalidModelError, match="import the library"):
        _read_tree(_write_tree(_pytree.tree_structure([1])).replace("builtins.list", "absent.List"))


def test_an_exported_program_and_parameters_as_inputs(tmp_path: Path, example: Any) -> None:
    module = nn.Linear(4, 3)
    exported = torch.export.export(module, (example,))
    compiled = fuser.compile(exported, example_inputs=(example,), freeze=False)
    compiled.save(tmp_path / "linear")
    wanted = compiled(example)
    with torch.no_grad():
        module.weight.zero_()
    assert torch.equal(fuser.load(tmp_path / "linear")(example), wanted)
    assert not torch.equal(compiled(example), wanted)


def test_what_a_change_made_stale_is_not_saved(tmp_path: Path, example: Any) -> None:
    module = nn.Linear(4, 3).eval()
    compiled = fuser.compile(module, example_inputs=(example,))
    with torch.no_grad():
        module.weight.zero_()
    with pytest.raises(UsageError, match="call it once"):
        compiled.save(tmp_path / "stale")
    wanted = compiled(example)
    compiled.save(tmp_path / "stale")
    assert torch.equal(fuser.load(tmp_path / "stale")(example), wanted)


def test_every_kind_of_file(tmp_path: Path, example: Any) -> None:
    compiled = fuser.compile(nn.ReLU(), example_inputs=(example,))
    compiled.plan(example).save(tmp_path / "plan")
    plan = fuser.load(tmp_path / "plan")
    assert isinstance(plan, fuser.Plan)
    compiled.save(tmp_path / "module")
    with pytest.raises(InvalidModelError, match="not a plan"):
        fuser.Plan.load(tmp_path / "module")
    data = (tmp_path / "module").read_bytes()
    (tmp_path / "cut").write_bytes(data[:-1])
    for name, error in (("cut", InvalidModelError), ("absent", UsageError)):
        with pytest.raises(error):
            fuser.load(tmp_path / name)
