"""Code for other processors: it compiles, and uses their vectors."""

from __future__ import annotations

import pytest

from fuser.backend.cpu import assembly, compile_kernel, host_target, lower_to_llvm
from fuser.base.target import AARCH64, X86_64_V3, X86_64_V4, Target
from fuser.tilegen.ir import Kernel
from tests.backend.cpu.test_programs import PROGRAMS, layer_norm, rows_kernel, softmax
from tests.tilegen import programs

TARGETS = {"x86-64-v3": X86_64_V3, "x86-64-v4": X86_64_V4, "aarch64": AARCH64}
VECTOR = {"x86-64-v3": "%ymm", "x86-64-v4": "%zmm", "aarch64": ".4s"}
FMA = {"x86-64-v3": "vfmadd", "x86-64-v4": "vfmadd", "aarch64": "fmla"}


def calls(text: str, arch: str) -> list[str]:
    """Functions that the assembly calls outside itself."""
    word = "bl" if arch == "aarch64" else "callq"
    lines = (line.split() for line in text.splitlines())
    found = [line[1] for line in lines if len(line) == 2 and line[0] in (word, "jmp", "b")]
    return [name for name in found if not name.startswith((".", "*")) and ".program" not in name]


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compile(name: str, arch: str) -> None:
    text = assembly(getattr(programs, name)(), TARGETS[arch])
    for called in calls(text, arch):
        assert called in ("memset@PLT", "memcpy@PLT", "memset", "memcpy"), called


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("body", [softmax, layer_norm])
def test_rows_use_vectors(body: object, arch: str) -> None:
    kernel = rows_kernel(4, 300, 1, body)  # type: ignore[arg-type]
    text = assembly(kernel, TARGETS[arch])
    assert VECTOR[arch] in text
    assert not calls(text, arch)


def matmul(target: Target) -> Kernel:
    from tests.backend.cpu import test_dot

    rows, columns = target.micro_tile()
    kept = test_dot.ROWS, test_dot.COLUMNS
    test_dot.ROWS, test_dot.COLUMNS = rows, columns
    try:
        return test_dot.packed_matmul(100, 2 * columns, 64)
    finally:
        test_dot.ROWS, test_dot.COLUMNS = kept


@pytest.mark.parametrize("arch", TARGETS)
def test_inner_loop_of_a_dot_stays_in_registers(arch: str) -> None:
    """One FMA for each accumulator and no spill between the label and the branch of the k loop."""
    target = TARGETS[arch]
    lines = assembly(matmul(target), target).splitlines()
    rows, columns = target.micro_tile()
    want = rows * columns // target.lanes(32)
    bodies: list[list[str]] = [[]]
    for line in lines:
        if line.startswith(".L") and line.split("#")[0].strip().endswith(":"):
            bodies.append([])
        bodies[-1].append(line)
    most = max(bodies, key=lambda body: sum(FMA[arch] in line for line in body))
    loop = most[: 1 + max(i for i, line in enumerate(most) if FMA[arch] in line)]
    assert sum(FMA[arch] in line for line in loop) == want
    stack = "sp" if arch == "aarch64" else "%rsp"
    assert not any(stack in line for line in loop)


def test_host() -> None:
    target = host_target()
    assert target.name == "cpu" and target.units >= 1
    assert target.vector_bits in (128, 256, 512) and target.l2_bytes > 0


def test_text_and_object() -> None:
    kernel = programs.scale()
    text = lower_to_llvm(kernel, host_target())
    compiled = compile_kernel(kernel, host_target())
    assert f"define void @{compiled.entry}(" in text
    assert compiled.grid == kernel.grid and compiled.code[:4] in (b"\x7fELF", b"\xcf\xfa\xed\xfe")
