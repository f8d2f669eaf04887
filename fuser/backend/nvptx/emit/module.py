"""The LLVM side of a kernel: module text around a function, and PTX out of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fuser.backend import llvm
from fuser.backend.function import SELDOM_TEXT
from fuser.backend.nvptx.emit.emitter import Emitter
from fuser.base.target import Target

TRIPLE = "nvptx64-nvidia-cuda"
# ptxas widens the negation of 16 bits, whoever wrote it, without its wrap: -(-32768) becomes 32768
# in what is compared, divided or converted. Complement and increment it leaves alone.
_NEGATION = re.compile(r"neg\.s16\s+(\S+), (\S+);")
DATA_LAYOUT = (
    "e-p3:32:32-p4:32:32-p5:32:32-p6:32:32-p7:32:32-i64:64-i128:128-i256:256-"
    "v16:16-v32:32-n16:32:64"
)


def machine(target: Target, least: int = 0) -> llvm.Machine:
    """LLVM's machine for an architecture.

    PTX 8.0 is enough below Hopper, 8.3 for wgmma and TMA, and 8.6 is Blackwell's first (8.7 for
    sm_120). The driver's own compiler refuses a newer version than it knows. least: what an
    instruction needs beyond that. Shared pointers are 32-bit.
    """
    llvm.set_option("--nvptx-short-ptr")
    version = 80 if target.sm < 90 else 83 if target.sm < 100 else 86 if target.sm < 120 else 87
    return llvm.Machine(TRIPLE, target.arch, f"+ptx{max(version, least)}", 3)


def module_text(
    function: Emitter, *, threads: int, shared: bool, blocks: int = 1, registers: int = 0,
    flags: Mapping[str, int] | None = None,
    tables: Mapping[str, Sequence[int]] | None = None,
) -> str:  # fmt: skip
    """The module of one kernel. registers: that a thread may have, 0: what lets `blocks` of them
    run at once, as where warp groups share theirs by themselves. flags: how many words of 0 it has
    under a name; tables: constant numbers."""
    lines = [f'target datalayout = "{DATA_LAYOUT}"', f'target triple = "{TRIPLE}"']
    if shared:
        lines.append("@shared_memory = external addrspace(3) global [0 x i8], align 1024")
    for name, count in (flags or {}).items():
        lines.append(f"{name} = internal addrspace(1) global [{count} x i32] zeroinitializer")
    for name, numbers in (tables or {}).items():
        listed = ", ".join(f"i32 {number}" for number in numbers)
        lines.append(f"{name} = internal addrspace(4) constant [{len(numbers)} x i32] [{listed}]")
    lines.append(str(function))
    bound = f'"nvvm.minctasm"="{blocks}"'
    if registers and "setmaxnreg" not in lines[-1]:
        bound = f'"nvvm.maxnreg"="{registers}"'
    lines += [
        f'attributes #0 = {{ nounwind "nvvm.maxntid"="{threads}" {bound} }}',
        "attributes #1 = { nounwind convergent }",
        "!0 = distinct !{!0, !1}",
        '!1 = !{!"llvm.loop.unroll.disable"}',
        "!2 = !{}",
        f"!3 = {SELDOM_TEXT}",
    ]
    return "\n".join(lines) + "\n"


def to_ptx(text: str, target: Target, least: int = 0) -> str:
    """Optimise and print PTX, of version `least` / 10 or later. Raises CompileError."""
    ptx = llvm.emit_assembly(text, machine(target, least), level=3)
    return _NEGATION.sub(r"not.b16 \1, \2; add.s16 \1, \1, 1;", ptx)
