"""Each tile pass on short programs: tests/golden/tilegen holds what goes in and what comes out."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.errors import VerifyError
from fuser.tilegen import ops
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.passes import PASSES, Pass, run_passes
from fuser.tilegen.text import print_kernel
from fuser.tilegen.verify import verify
from tests.golden import ROOT, Golden, read_cases
from tests.tilegen import programs
from tests.tilegen.programs import random_arrays

BY_NAME = {item.name: item for item in PASSES}
FILES = sorted(path.stem for path in (ROOT / "tilegen").glob("*.test"))


@pytest.mark.parametrize("name", FILES)
def test_golden(name: str, golden: Golden) -> None:
    def transform(source: str) -> str:
        kernel = parse_kernel(source)
        verify(kernel)
        BY_NAME[name].run(kernel)
        verify(kernel)
        return print_kernel(kernel)

    golden.check(f"tilegen/{name}.test", transform)


@pytest.mark.parametrize("name", FILES)
def test_golden_programs_keep_their_meaning(name: str, rng: np.random.Generator) -> None:
    for case in read_cases((ROOT / f"tilegen/{name}.test").read_text()):
        before, after = parse_kernel(case.source), parse_kernel(case.expected)
        arrays = random_arrays(before, rng)
        copies = {key: array.copy() for key, array in arrays.items()}
        # one program at a time: some examples store one place from every program
        run(before, arrays, programs=[3])
        run(after, copies, programs=[3])
        np.testing.assert_array_equal(arrays["y"], copies["y"], err_msg=case.comment)


def test_every_pass_has_a_golden_file() -> None:
    once = {item.run: item.name for item in reversed(PASSES)}
    assert sorted(once.values()) == FILES


def test_an_error_names_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(kernel: Kernel) -> None:
        kernel.body.ops.append(ops.Yield(args=()))

    monkeypatch.setattr("fuser.tilegen.passes.PASSES", (Pass("spoil", spoil),))
    with pytest.raises(VerifyError, match="after spoil: a yield ends a nested block"):
        run_passes(programs.scale(), verify=True)


def test_passes_report_their_progress() -> None:
    seen: list[str] = []
    run_passes(programs.matmul(), after=lambda name, kernel: seen.append(name))
    assert seen == [item.name for item in PASSES]
