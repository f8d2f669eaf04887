"""The programs in docs/tile-ir.md are true: they parse, verify and run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fuser.tilegen import ops
from fuser.tilegen.interpret import run
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.passes import PASSES
from fuser.tilegen.text import print_kernel
from fuser.tilegen.verify import verify
from tests.tilegen.programs import random_arrays

TEXT = (Path(__file__).parents[2] / "docs" / "tile-ir.md").read_text()
FENCE = re.compile(r"```(\S*)\n(.*?)```", re.DOTALL)
BLOCKS = [(match[1], match[2]) for match in FENCE.finditer(TEXT)]
(FRAME,) = (block for kind, block in BLOCKS if kind == "tile-frame")
EXAMPLES = [block for kind, block in BLOCKS if kind == "tile"]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_verify_and_run(number: int, rng: np.random.Generator) -> None:
    source = EXAMPLES[number]
    if not source.startswith("kernel"):
        source = FRAME.replace("  ...\n", source)
    kernel = parse_kernel(source)
    verify(kernel)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    # a single program, since ids repeat in random arrays and examples store little
    run(kernel, random_arrays(kernel, rng), programs=[0])


def test_the_first_program_prints_as_shown() -> None:
    python = next(block for kind, block in BLOCKS if kind == "python")
    scope: dict[str, object] = {}
    exec(python.replace("print(print_kernel(kernel))", "text = print_kernel(kernel)"), scope)
    assert scope["text"] == EXAMPLES[0]


def test_every_op_and_pass_has_an_entry() -> None:
    entries = re.findall(r"^### ([a-z_]+)$", TEXT, re.MULTILINE)
    assert set(ops.OPS) <= set(entries)
    names = {item.run: item.name for item in reversed(PASSES)}
    for name in names.values():
        assert f"| {name} |" in TEXT
