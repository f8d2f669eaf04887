"""`fuser dump` and FUSER_DUMP: the text of every stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuser.cli.dump import STAGES
from fuser.pipeline.stage_texts import GPU_STAGES
from tests.cli.command import Fuser, assert_one_line


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in GPU_STAGES])
def test_dump_prints_every_stage(fuser: Fuser, mlp: Path, stage: str) -> None:
    code, out, err = fuser("dump", mlp, "--device", "cpu", "--stage", stage)
    assert (code, err) == (0, "")
    words = {
        "graph": "dot_general", "regions": "contraction", "tile": "dot", "llvm": "define",
        "asm": "ret", "passes": "after merge_matmuls: as before", "cpu": "register tile of",
    }  # fmt: skip
    assert words[stage] in out


def test_dump_takes_one_region(fuser: Fuser, mlp: Path) -> None:
    everything = fuser("dump", mlp, "--device", "cpu", "--stage", "tile")[1]
    code, out, _ = fuser("dump", mlp, "--device", "cpu", "--stage", "tile", "--region", "0")
    assert code == 0 and out and out in everything and len(out) < len(everything)
    assert_one_line(fuser("dump", mlp, "--device", "cpu", "--region", "99"), 2, "no region 99")


def test_dump_of_a_gpu_stage_on_the_cpu_says_what_to_do(fuser: Fuser, mlp: Path) -> None:
    result = fuser("dump", mlp, "--device", "cpu", "--stage", "ptx")
    assert_one_line(result, 2, "--device cuda")


def test_dump_folder_receives_every_stage(
    fuser: Fuser, mlp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSER_DUMP", str(tmp_path / "dumps"))
    assert fuser("run", mlp, "--device", "cpu", "--iterations", "0")[0] == 0
    files = {file.name: file.read_text() for file in (tmp_path / "dumps" / "mlp").iterdir()}
    assert "dot_general" in files["graph.txt"] and "3 regions" in files["regions.txt"]
    for suffix, word in ((".tile", "dot"), (".llvm", "define"), (".asm", "ret")):
        texts = [text for name, text in sorted(files.items()) if name.endswith(suffix)]
        assert len(texts) == 3 and all(word in text for text in texts)
