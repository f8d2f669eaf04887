"""What docs/how-a-kernel-is-compiled.md and docs/language.md show is what the compiler prints."""

from __future__ import annotations

import importlib.util
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser.language as fl
from fuser.errors import LanguageError

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"```(\S*)\n(.*?)```", re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in FENCE.finditer((DOCS / page).read_text())]


def module_of(text: str, path: Path) -> Any:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_how_a_kernel_is_compiled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (_, source), (_, launch), (_, tile), (_, told), (_, again), (_, why) = blocks(
        "how-a-kernel-is-compiled.md"
    )
    module = module_of(source, tmp_path / "row_norms.py")
    scope: dict[str, Any] = {"np": np, "row_norms": module.row_norms}
    exec(launch, scope)
    np.testing.assert_allclose(scope["out"], np.sqrt(1000), rtol=1e-6)
    variant = scope["variant"]

    def shown(text: str) -> str:
        return text.replace(f"{tmp_path}/", "")

    assert shown(variant.asm["tile"]) == tile
    assert shown(variant.explain()).partition("\nwork:")[0] + "\n" == told
    with caplog.at_level(logging.INFO, "fuser.recompiles"):
        exec(again, scope)
    assert why == f"fuser recompiles: {caplog.messages[0]}\n"
    for stage in re.findall(r'asm\["(\w+)"\]', (DOCS / "how-a-kernel-is-compiled.md").read_text()):
        assert stage in (*variant.asm, "ptx")


def test_the_language_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (_, source), (_, told), (_, error) = blocks("language.md")
    definition, launch = source.split("\nscale[")
    module = module_of(definition, tmp_path / "kernels.py")
    x = np.arange(1000, dtype=np.float32)
    scope = {"scale": module.scale, "fl": fl, "x": x, "out": np.zeros_like(x)}
    with caplog.at_level(logging.INFO, "fuser.recompiles"):
        exec(f"scale[{launch}", scope)
        np.testing.assert_array_equal(scope["out"], x / 2)
        scope["x"] = x[1:]
        exec(f"scale[{launch}", scope)
    assert caplog.messages[0].startswith("scale is compiled again: x is at a multiple of 4 bytes")
    assert told.startswith("fuser recompiles: scale is compiled again: x is at a multiple of 4")
    line = error.splitlines()[1].partition(" | ")[2]
    lines = ["import fuser", "import fuser.language as fl", *[""] * 7, "@fuser.kernel",
             "def f(x, n):", line, "        pass"]  # fmt: skip
    bad = module_of("\n".join(lines) + "\n", tmp_path / "bad.py")
    with pytest.raises(LanguageError) as caught:
        bad.f[(1,)](x, 5)
    assert str(caught.value).replace(f"{tmp_path}/bad.py", "kernels.py") + "\n" == error
