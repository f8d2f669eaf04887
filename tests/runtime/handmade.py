"""Kernels written by hand in LLVM IR, so that the runtime is tested without the compiler."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from fuser.backend.module import CompiledKernel

_MAP = """
define void @{entry}(ptr %buffers, i64 %first, i64 %last, ptr %scratch) {{
entry:
  br label %program
program:
  %p = phi i64 [ %first, %entry ], [ %p.next, %program.end ]
  %more = icmp slt i64 %p, %last
  br i1 %more, label %body, label %out
body:
  %start = mul i64 %p, {block}
  %wanted = add i64 %start, {block}
  %over = icmp sgt i64 %wanted, {size}
  %end = select i1 %over, i64 {size}, i64 %wanted
  %x = load ptr, ptr %buffers
  %y.at = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %y.at
  %z.at = getelementptr ptr, ptr %buffers, i64 {arity_minus_one}
  %z = load ptr, ptr %z.at
  store i64 %p, ptr %scratch
  br label %element
element:
  %i = phi i64 [ %start, %body ], [ %i.next, %element.body ]
  %inside = icmp slt i64 %i, %end
  br i1 %inside, label %element.body, label %program.end
element.body:
  %xp = getelementptr float, ptr %x, i64 %i
  %xv = load float, ptr %xp
  %yp = getelementptr float, ptr %y, i64 %i
  %yv = load float, ptr %yp
  %v = {op}
  %zp = getelementptr float, ptr %z, i64 %i
  store float %v, ptr %zp
  %i.next = add i64 %i, 1
  br label %element
program.end:
  %p.next = add i64 %p, 1
  br label %program
out:
  ret void
}}
"""


@cache
def assemble_object(text: str) -> bytes:
    """LLVM IR text -> a relocatable object for this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, reloc="pic")
    module = llvm.parse_assembly(text)
    module.verify()
    code: bytes = machine.emit_object(module)
    return code


def binary(name: str, operation: str, size: int, block: int = 64) -> CompiledKernel:
    """A kernel of three f32 buffers x, y, z: z = operation(x, y), e.g. "fadd". Uses scratch."""
    entry = f"{operation}_{size}_{block}"
    text = _MAP.format(
        entry=entry, block=block, size=size, arity_minus_one=2, op=f"{operation} float %xv, %yv"
    )
    programs = -(-size // block)
    return CompiledKernel(name, "cpu", entry, assemble_object(text), (programs,), scratch_bytes=8)
