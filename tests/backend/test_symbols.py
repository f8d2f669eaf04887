"""What a profiler shows: symbols that say which kernel they are."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fuser
from fuser.backend.cpu import compile_kernel as compile_for_cpu
from fuser.backend.cpu import host_target
from fuser.backend.module import CompiledKernel
from fuser.backend.nvptx.compile import compile_kernel as compile_for_gpu
from fuser.backend.symbols import functions, named, readable
from fuser.base.target import AARCH64, SM_80, Target
from fuser.runtime.jit import link_objects
from fuser.tilegen.emit import emit
from fuser.tilegen.ir import Kernel
from models import TINY, build
from tests.interpreted import one_region
from tests.tilegen_emit.graphs import Model

HASH = "k0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("name", "origin", "symbol"),
    [
        ("contraction_1", (), "contraction_1"),
        ("contraction_1", ("/layer.0/self/query/MatMul",), "contraction_1_self_query"),
        ("reduce_0", ("Softmax_12",), "reduce_0_Softmax_12"),
        ("contraction_2", ("/a/query/MatMul", "/a/key/MatMul"), "contraction_2_query_key"),
        ("add", (), "add_kernel"),  # an instruction of PTX
        ("0.x", (), "kernel_0_x"),
        ("map_3", ('/é"; drop/x/',), "map_3_drop_x"),
        ("map_3", ("/" + "long" * 40 + "/Add",), "map_3_" + ("long" * 40)[:58]),
    ],
)
def test_symbols_are_readable(name: str, origin: tuple[str, ...], symbol: str) -> None:
    assert readable(name, origin) == symbol


def kernel_for(target: Target) -> Kernel:
    m = Model()
    m.output(m.b.map("exp", m.b.map("add", m.input(7, 9), 1.0)))
    cut = one_region(m.graph, "map")
    (program,) = emit(cut.regions[0], cut, target)
    kernel = program.kernel
    kernel.name = HASH
    return kernel


def test_only_whole_names_are_replaced_in_ptx() -> None:
    lines = (
        b".visible .entry k16(\n  .param .u64 k16_param_0\n)\n{\n",
        b"  ld.param.u64 %k16, [k16_param_0];\n",
        b"  mma.sync.aligned.m16n8k16.row.col;\n  call k160, (k16);\n}\n",
    )
    kernel = CompiledKernel("k16", "cuda", "k16", b"".join(lines), (1,))
    (found,) = named([kernel], ["map_0_x"])
    assert b".entry map_0_x(" in found.code and b"[map_0_x_param_0]" in found.code
    assert b"m16n8k16.row" in found.code and b"call k160, (map_0_x)" in found.code
    assert b" %k16," in found.code


@pytest.mark.parametrize("target", [host_target(), AARCH64], ids=["host", "arm"])
def test_an_object_with_another_name(target: Target) -> None:
    compiled = compile_for_cpu(kernel_for(target), target)
    (found,) = named([compiled], ["map_0_exp"])
    assert found.entry == "map_0_exp"
    names = {name for name, _, _ in functions(found.code)}
    assert names == {"map_0_exp", "map_0_exp.program"}
    sizes = [[rest for _, *rest in functions(code)] for code in (compiled.code, found.code)]
    assert sizes[0] == sizes[1] and all(size > 0 for _, size in sizes[0])
    if target.arch != "aarch64":
        assert link_objects({found.entry: found.code})[found.entry]


def test_ptx_with_another_name() -> None:
    compiled = compile_for_gpu(kernel_for(SM_80), SM_80)
    (found,) = named([compiled], ["map_0_exp"])
    assert b".visible .entry map_0_exp(" in found.code and HASH.encode() not in found.code


def test_shared_code_has_the_name_of_the_first() -> None:
    one = compile_for_cpu(kernel_for(host_target()), host_target())
    other = replace(one, entry=HASH, name="other")
    first, second = named([one, other], ["map_0", "map_9"])
    assert (first.entry, first.code) == (second.entry, second.code)
    assert first.entry == "map_0" and second.name == "other"


def test_code_of_another_kind_is_left_alone() -> None:
    kernel = CompiledKernel("a", "cpu", HASH, b"define void", (1,))
    assert named([kernel], ["map_0"]) == [kernel]


def test_a_plan_shows_its_kernels() -> None:
    """The names are those of the operators, the same every time, and equal layers share code."""
    model = build("bert", **TINY["bert"])
    plans = [fuser.compile(model, device="cpu") for _ in range(2)]
    names = [[launch.kernel.entry for launch in plan.program.launches] for plan in plans]
    assert names[0] == names[1]
    assert "contraction_1_query_key_value" in names[0]
    kernels = [launch.kernel for launch in plans[0].program.launches]
    assert len({k.code for k in kernels}) == len({k.entry for k in kernels}) < len(kernels)


def test_perf_is_told(tmp_path: Path) -> None:
    """The map has the address of the code that runs, under its name."""
    program = tmp_path / "double.py"
    program.write_text(
        "import os, numpy as np, fuser\n"
        "f = fuser.trace(lambda x: x + x, fuser.spec((3,), np.float32), device='cpu')\n"
        "(launch,) = f.plan.program.launches\n"
        "print(launch.kernel.entry, hex(f.plan.executor._libraries[0])[2:], os.getpid())\n"
    )
    done = subprocess.run(
        [sys.executable, program], env=os.environ | {"FUSER_PERF": "1"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    entry, address, process = done.stdout.split()
    path = Path(f"/tmp/perf-{process}.map")
    try:
        rows = {name: (at, int(size, 16)) for at, size, name in map(str.split, path.open())}
    finally:
        path.unlink()
    assert rows[entry][0] == address and rows[entry][1] > 0
    assert f"{entry}.program" in rows
    assert np.int64(int(rows[f"{entry}.program"][0], 16)) > 0
