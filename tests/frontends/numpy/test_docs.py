"""The examples of docs/python.md run, and its lists are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fuser.frontends.numpy.trace.functions import FUNCTIONS
from fuser.frontends.numpy.trace.ufuncs import UFUNCS

TEXT = (Path(__file__).parents[3] / "docs" / "python.md").read_text()
REFUSED = {
    *("compress", "extract", "union1d", "intersect1d", "setdiff1d", "setxor1d", "trim_zeros"),
    *("unique_all", "unique_counts", "unique_inverse", "unique_values"),
}


@pytest.mark.export
@pytest.mark.filterwarnings("ignore:.*treespec.*")
def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "docs"}
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) > 10
    messages = []
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), scope)
        messages += [scope.pop("message")] if "message" in scope else []
    assert messages[0] in TEXT
    assert messages[1].startswith("a Python if, while, and, or, not, min or max needs the values")
    assert scope["report"].kernels.before == 2 and scope["report"].kernels.after == 1
    assert scope["traced"].plan.launches == 1
    assert scope["chosen"].tolist() == [1, -2, 3]


@pytest.mark.parametrize(
    ("mark", "names"), [("functions", set(FUNCTIONS) - REFUSED), ("ufuncs", set(UFUNCS))]
)
def test_lists_are_complete(mark: str, names: set[str]) -> None:
    found = re.search(rf"<!-- {mark} -->\n```text\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    assert set(found.group(1).split()) == names
