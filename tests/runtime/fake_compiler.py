"""Compile servers that fail as asked: by the size of the kernel's first buffer (`main`), or by the
length of the kernel, those that do not fail being real (`main_choosy`)."""

from __future__ import annotations

import os
import signal
import sys
import time

from fuser.backend import compile_server
from fuser.backend.llvm import Machine, emit_object
from fuser.backend.module import CompiledKernel
from fuser.errors import LoweringError
from fuser.tilegen.parse import parse_kernel

ABORT, REFUSE, DEFECT, HANG = 666, 667, 668, 669
KILLED, STOPPED, SPIN = 670, 671, 672
REFUSE_LATE, REFUSE_NO_TEXT = 673, 674
"""Refused; the text that LLVM would get is there, takes minutes."""

ONCE = "FAKE_COMPILER_ONCE"
"""The variable that names a file: KILLED and STOPPED happen only while it is missing."""

TOGETHER = "FAKE_COMPILER_TOGETHER"
"""The variable `count:folder`: no kernel is done before so many processes have begun one."""

CHOOSY = "FAKE_COMPILER_CHOOSY"
"""The variable of `main_choosy`: what it does ("spin" or "refuse"), the maps of a kernel from which
on it does, the seconds that it spins for, and a file that gets a line for each kernel."""


def compile_text(request: compile_server.Request) -> CompiledKernel:
    _together()
    kernel = parse_kernel(request.text)
    size = kernel.buffers[0].size
    if size == ABORT:
        sys.stderr.write("noise\nLLVM ERROR: Cannot select: t1: f32 = fexp\n")
        sys.stderr.flush()
        os.abort()
    if size == REFUSE:
        raise LoweringError("a scan over 3 axes", hint="none")
    if size in (REFUSE_LATE, REFUSE_NO_TEXT) and not request.to_text:
        raise LoweringError("too many registers")
    if size == REFUSE_NO_TEXT:
        while True:
            pass
    if request.to_text:
        return CompiledKernel(request.entry, "cpu", request.entry, b"define void", kernel.grid)
    if size == DEFECT:
        raise ZeroDivisionError("division by zero")
    if size == HANG:
        time.sleep(1000)
    if size in (KILLED, STOPPED) and _first_time():
        os.kill(os.getpid(), signal.SIGKILL if size == KILLED else signal.SIGSTOP)
    if size == SPIN:
        _long_in_llvm()
    code = f"{os.getpid()}".encode()
    return CompiledKernel(request.entry, "cpu", request.entry, code, kernel.grid)


def _together() -> None:
    count, _, folder = os.environ.get(TOGETHER, "0").partition(":")
    if folder:
        open(os.path.join(folder, f"begun {os.getpid()}"), "w").close()
    while folder and len([n for n in os.listdir(folder) if n.startswith("begun")]) < int(count):
        time.sleep(0.01)


def _first_time() -> bool:
    """Whether this did not happen before; always without the variable."""
    path = os.environ.get(ONCE)
    if not path:
        return True
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _long_in_llvm() -> None:
    """One call into LLVM that takes minutes: a block of 400,000 dependent instructions."""
    lines = [f"%v{i + 1} = mul i64 %v{i}, %v{i // 2}" for i in range(400_000)]
    body = "\n".join(lines)
    emit_object(f"define i64 @f(i64 %v0) {{\n{body}\nret i64 %v400000\n}}\n", Machine())


def compile_choosily(request: compile_server.Request) -> CompiledKernel:
    what, most, seconds, log = os.environ[CHOOSY].split(":")
    with open(log, "a") as file:
        file.write(f"{request.entry}\n")
    if request.text.count(" = map.") >= int(most):
        if what == "refuse":
            raise LoweringError("too many maps for one kernel", hint="none")
        end = time.process_time() + float(seconds)
        while time.process_time() < end:
            pass
    return _compile_text(request)


_compile_text = compile_server.compile_text


def main_choosy() -> None:
    compile_server.compile_text = compile_choosily
    compile_server.main()


def main() -> None:
    compile_server.compile_text = compile_text
    compile_server._preload = lambda target: None
    compile_server.main()
