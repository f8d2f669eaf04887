"""A compile server whose back end does what the size of the kernel's first buffer asks for."""

from __future__ import annotations

import os
import sys
import time

from fuser.backend import compile_server
from fuser.backend.module import CompiledKernel
from fuser.errors import LoweringError
from fuser.tilegen.text import parse_kernel

ABORT, REFUSE, DEFECT, HANG = 666, 667, 668, 669


def compile_text(request: compile_server.Request) -> CompiledKernel:
    kernel = parse_kernel(request.text)
    size = kernel.buffers[0].size
    if size == ABORT:
        sys.stderr.write("noise\nLLVM ERROR: Cannot select: t1: f32 = fexp\n")
        sys.stderr.flush()
        os.abort()
    if size == REFUSE:
        raise LoweringError("a scan over 3 axes", hint="none")
    if size == DEFECT:
        raise ZeroDivisionError("division by zero")
    if size == HANG:
        time.sleep(1000)
    code = f"{os.getpid()}".encode()
    return CompiledKernel(request.entry, "cpu", request.entry, code, kernel.grid)


def main() -> None:
    compile_server.compile_text = compile_text
    compile_server._preload = lambda target: None
    compile_server.main()
