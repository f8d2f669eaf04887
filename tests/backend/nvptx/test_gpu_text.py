"""Kernels as text of the GPU IR: what it looks like, and that it is read back."""

from __future__ import annotations

import difflib
import functools
from pathlib import Path

import pytest

from fuser.backend.nvptx import gpu_pass_texts, lower_to_gpu
from fuser.backend.nvptx.emit import RULES
from fuser.backend.nvptx.ir.layout_text import layout_text, offsets_of, runs_of
from fuser.backend.nvptx.ir.ops import AwaitPrevious, ConvertLayout
from fuser.backend.nvptx.ir.parse import OPS, parse_program
from fuser.backend.nvptx.ir.text import print_program
from fuser.backend.nvptx.layouts.layout import WarpGrid, blocked
from fuser.base.target import SM_80, SM_90A, SM_100A, Target
from fuser.dtypes import bf16, f16, f32, f64
from fuser.errors import ParseError
from fuser.tilegen.ir import Kernel
from tests.backend.nvptx import kernels, language_kernels
from tests.golden import Golden

KERNELS = {
    "elementwise": functools.partial(kernels.elementwise, "select", f32, 3),
    "cast": functools.partial(kernels.cast, f16, bf16),
    "rows": functools.partial(kernels.reduce_axis, "max", f32, 5, 300, (1, 512), 1),
    "softmax": functools.partial(kernels.softmax, 40, 1000, f16, (2, 1024)),
    "cluster": functools.partial(kernels.softmax, 40, 8192, f16, (1, 8192), cluster=2),
    "transpose": functools.partial(kernels.transpose, 100, 90, f16, (64, 64)),
    "gather": functools.partial(kernels.gather, 50, 70, 33, f32),
    "atomics": functools.partial(kernels.accumulate, 40, 70),
    "scan": functools.partial(kernels.scan, "sum", f32, 6, 300, (2, 512), True),
    "held": functools.partial(kernels.softmax, 4, 1024, f16, (1, 1024), 1, held=True),
    "held_lines": functools.partial(kernels.layernorm, 5, 4096, f16, (1, 4096), 2, held=True),
    "locked": language_kernels.locked_sum,
    "handed_on": language_kernels.handed_on,
    "masked": functools.partial(language_kernels.matmul, 128, 128, 64, f16, style="masked"),
    "long": language_kernels.far,
    "strips": functools.partial(kernels.matmul, 128, 64, 32, f16, (64, 64, 32), stages=1),
    "merged": functools.partial(kernels.attention, 1, 16, 512, 64, blocks=(16, 64), cluster=2),
    "matmul": functools.partial(kernels.matmul, 200, 100, 96),
    "matmul_tf32": functools.partial(kernels.matmul, 40, 40, 40, f32, (64, 64, 32)),
    "matmul_wide": functools.partial(kernels.matmul, 128, 64, 96, f32, (64, 64, 32), wide=True),
    "matmul_f64": functools.partial(kernels.matmul, 8, 8, 8, f64, (8, 8, 8), epilogue=False),
    "matmul_parts": functools.partial(kernels.matmul, 16, 64, 256, f16, (16, 64, 128)),
    "attention": functools.partial(kernels.attention, 2, 64, 256, 64),
}
SHORT = ("elementwise", "rows", "cluster", "scan", "held", "strips")


@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda t: t.arch)
@pytest.mark.parametrize("name", KERNELS)
def test_text_is_read_back(name: str, target: Target) -> None:
    text = print_program(lower_to_gpu(KERNELS[name](), target))
    again = parse_program(text)
    assert print_program(again) == text
    assert again.arch == target.arch and len(again.buffers) == text.count("  buffer ")


@pytest.mark.parametrize("name", SHORT)
def test_text(name: str, golden: Golden) -> None:
    golden.text(f"gpu/{name}.txt", print_program(lower_to_gpu(KERNELS[name](), SM_90A)))


@pytest.mark.parametrize("name", ["strips", "attention"])
def test_text_after_each_pass(name: str, golden: Golden) -> None:
    """What each pass changes of a matmul and of attention: the lines that it removes and adds."""
    parts = gpu_pass_texts(KERNELS[name](), SM_90A).split("# after ")[1:]
    lines: list[str] = []
    last: list[str] | None = None
    for part in parts:
        title, *text = part.rstrip("\n").splitlines()
        lines.append(f"# {title}")
        if last is not None and text:
            changed = difflib.unified_diff(last, text, n=0, lineterm="")
            lines += [line for line in changed if not line.startswith(("---", "+++", "@@"))]
        last = text or last
    assert last == print_program(lower_to_gpu(KERNELS[name](), SM_90A)).splitlines()
    golden.text(f"gpu/passes_{name}.txt", "\n".join(lines) + "\n")


def test_every_op_has_a_rule() -> None:
    """But what passes have made others of."""
    assert set(OPS.values()) - {ConvertLayout} == set(RULES)


def test_ops_name_their_nodes() -> None:
    kernel: Kernel = KERNELS["rows"]()
    for op in kernel.walk():
        op.origin = (("/a/Max", "b, c"),) if op.opcode == "reduce" else ()
    text = print_program(lower_to_gpu(kernel, SM_80))
    marked = [line for line in text.splitlines() if line.endswith('# /a/Max, "b, c"')]
    assert any("fold_registers.max" in line for line in marked)
    assert not any("store" in line for line in marked)
    assert print_program(parse_program(text)) == text


def test_layouts_are_short() -> None:
    assert layout_text(blocked((999,), 4, (0,), 2)) == (
        "1024 regs 4*(256) 2*(1) lanes (2) (4) (8) (16) (32) warps (64) (128)"
    )
    accumulator = WarpGrid(128, 64, 4, 1, wgmma=True).accumulator()
    assert "regs 2*(64, 0) 8*(0, 8) 2*(8, 0) 2*(0, 1) lanes" in layout_text(accumulator)


def test_runs_stand_for_the_offsets() -> None:
    odd = [(0, 0), (0, 1), (3, 0), (3, 1), (6, 0), (6, 1)]
    runs = runs_of(odd)
    assert runs == [(3, (3, 0)), (2, (0, 1))] and offsets_of((0, 0), runs) == odd
    assert runs_of([(0,), (1,), (2,), (8,)]) is None


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("load &", "lode &", "there is no op 'lode'"),
        ("#l0 =", "#l9 =", "there is no layout #l0"),
        ("store &", "store &none_", "there is no buffer"),
        ("fold_registers.max %", "fold_registers.max %none.", "is not defined"),
        ("{axis = 1}", "{axle = 1}", "fold_registers has no axle"),
        (":= ctaid.x i32", ":= ctaid.w i32", "there is no integer operation 'ctaid.w'"),
        (":= ctaid.x i32", ":= ctaid.x", "ctaid.x is followed by a type"),
        ("warps(4)", "warps()", "expected a int, found"),
        ("launch(5, 1, 1)", "launch(5, 1)", "a launch has three extents"),
        ("lanes (0, 4)", "lanes (0)", "expected 2 coordinates, found 1"),
        ("write_parts @0", "write_parts 1.5", "slot of write_parts is 1.5, and should be Slot"),
        ("write_parts @0", "write_parts @9", "there is no slot @9"),
        ("{axis = 1}", "{axis = WarpGrid{wide = 1}}", "these are not the fields of WarpGrid"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, message: str) -> None:
    text = print_program(lower_to_gpu(KERNELS["rows"](), SM_80))
    with pytest.raises(ParseError, match=message) as found:
        parse_program(text.replace(old, new))
    assert found.value.where.startswith("line ")


def test_buffers_that_an_op_names_are_those_of_the_program() -> None:
    """A past bug: the parser left their names."""
    text = print_program(lower_to_gpu(KERNELS["rows"](), SM_90A))
    program = parse_program(text)
    (wait,) = (op for op in program.walk() if isinstance(op, AwaitPrevious))
    assert wait.buffers == tuple(program.buffers)
    with pytest.raises(ParseError, match="there is no buffer z"):
        parse_program(text.replace("await_previous (", "await_previous (z, "))


def test_the_page_shows_what_is_printed() -> None:
    """Every line of a program on docs/gpu-level.md is one of a matmul's, after some pass."""
    tile = (64, 64, 64)
    small = kernels.matmul(64, 64, 576, f16, tile, stages=2, epilogue=False)
    tall = kernels.matmul(128, 64, 320, f16, (128, *tile[1:]), stages=2, epilogue=False)
    printed = {
        line
        for kernel, target in ((small, SM_90A), (tall, SM_100A))
        for line in print_program(lower_to_gpu(kernel, target)).splitlines()
    }
    copied = kernels.matmul(64, 64, 576, f16, tile, roles=False)
    printed |= {*gpu_pass_texts(copied, SM_90A).splitlines()}
    page = (Path(__file__).parents[3] / "docs" / "gpu-level.md").read_text()
    parts = [part.split("```")[0] for part in page.split("```text\n")[1:]]
    shown = [line for part in parts for line in part.splitlines()]
    assert len(shown) > 20 and not [line for line in shown if line not in printed]
