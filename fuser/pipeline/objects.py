"""A program of a CPU as an object that any toolchain links, with a C header.

    void model_run(const void *const *inputs, void *const *outputs, const void *weights,
                   void *workspace, int64_t threads, model_spread *spread, void *user);

The kernels are those of a plan. What launches them is written here as LLVM IR: for each launch the
addresses of its arguments, then the kernel on chunks of its programs, which `spread` may run on
threads of the caller's. Chunks are those of the runtime (runtime/cpu.py), and no choice of them
changes a bit. The object wants memcpy and memset of the C library, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fuser.backend.elf import is_x86_64
from fuser.backend.elf_merge import Part, merge
from fuser.backend.llvm import Machine, emit_object
from fuser.backend.module import CompiledKernel
from fuser.errors import UnsupportedError, UsageError
from fuser.pipeline.c_header import header
from fuser.runtime.cpu import ALONE_SECONDS, CHUNKS_PER_THREAD
from fuser.runtime.jit import X86_64
from fuser.runtime.memory import align
from fuser.runtime.program import BufferRef, Launch, Program, TensorSpec

ALIGNMENT = 64
_TASK_WORDS = 8
"""Words of the record that a launch passes to its tasks: kernel, buffers, programs, chunks,
scratch."""


@dataclass(frozen=True)
class Layout:
    """Memory that a run needs beside inputs and outputs, in bytes. arena, buffers and the task's
    record come first in the workspace, then scratch for each thread."""

    weights: int
    shared: int
    scratch: int
    offsets: tuple[int, ...]
    """Where each constant lies in the weights."""
    arguments: int
    """Where the addresses of arguments are in the workspace."""


def write_object(
    program: Program, folder: Path, name: str, *, embed: bool, dims: Mapping[str, int]
) -> list[Path]:
    """Write NAME.o, NAME.h and, unless they are embedded, NAME.weights; for a GPU what
    `write_gpu_objects` does. dims: sizes of symbolic dims, for the header. Raises UnsupportedError
    for another processor, UsageError, OSError."""
    symbol = identifier(name)
    if program.target.is_cuda:
        from fuser.pipeline.gpu_objects import write_gpu_objects

        if embed:
            raise UsageError("--embed is for CPUs: a GPU has its weights in memory of its own")
        return write_gpu_objects(program, folder, symbol, dims)
    kernels = _kernels(program)
    if not all(is_x86_64(kernel.code) for kernel in kernels):
        raise UnsupportedError(
            "objects are written for x86-64 and NVIDIA GPUs", where=program.target.arch,
            hint="--emit plan",
        )  # fmt: skip
    layout = lay_out(program)
    weights = _weights(program, layout)
    parts = [
        Part(kernel.code, {kernel.entry: f"{symbol}.kernel.{number}"})
        for number, kernel in enumerate(kernels)
    ]
    text = driver_ir(program, symbol, layout)
    parts.append(Part(emit_object(text, Machine(X86_64, "x86-64", opt=2)), {}))
    data = {f"{symbol}_weights": weights} if embed else {}
    exports = [f"{symbol}_{what}" for what in ("run", "inputs", "outputs")]
    folder.mkdir(parents=True, exist_ok=True)
    files = {f"{symbol}.o": merge(parts, exports, data)}
    files[f"{symbol}.h"] = [header(program, symbol, layout, embed, dims).encode()]
    if not embed:
        files[f"{symbol}.weights"] = [weights]
    for file, pieces in files.items():
        with open(folder / file, "wb") as opened:
            opened.writelines(pieces)
    return [folder / file for file in files]


def identifier(name: str) -> str:
    """A name as one of C, in lower case."""
    text = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower() or "model"
    return f"m_{text}" if text[0].isdigit() else text


def lay_out(program: Program) -> Layout:
    offsets, top = [], 0
    for array in program.constants:
        offsets.append(top)
        top += align(array.nbytes, ALIGNMENT)
    arguments = align(program.arena_bytes, ALIGNMENT)
    most = max((len(launch.arguments) for launch in program.launches), default=0)
    shared = arguments + align(8 * (_TASK_WORDS + most), ALIGNMENT)
    scratch = [align(launch.kernel.scratch_bytes, ALIGNMENT) for launch in program.launches]
    return Layout(top, shared, max(scratch, default=0), tuple(offsets), arguments)


def _weights(program: Program, layout: Layout) -> bytes:
    held = np.zeros(layout.weights, np.uint8)
    for array, offset in zip(program.constants, layout.offsets, strict=True):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        held[offset : offset + flat.size] = flat
    return held.tobytes()


def _kernels(program: Program) -> list[CompiledKernel]:
    """Those with different code, in the order of launches."""
    found: dict[tuple[str, bytes], CompiledKernel] = {}
    for launch in program.launches:
        found.setdefault((launch.kernel.entry, launch.kernel.code), launch.kernel)
    return list(found.values())


_RUNTIME = """
declare ptr @memset(ptr, i32, i64)
declare ptr @memcpy(ptr, ptr, i64)

; One chunk of a launch: its share of the programs, with the scratch memory of a thread.
define internal void @task(ptr %task, i64 %chunk, i64 %thread) {
  %kernel = load ptr, ptr %task
  %at.programs = getelementptr i64, ptr %task, i64 1
  %programs = load i64, ptr %at.programs
  %at.chunks = getelementptr i64, ptr %task, i64 2
  %chunks = load i64, ptr %at.chunks
  %at.scratch = getelementptr i64, ptr %task, i64 3
  %scratch = load ptr, ptr %at.scratch
  %buffers = getelementptr i64, ptr %task, i64 $TASK
  %before = mul i64 %chunk, %programs
  %after = add i64 %before, %programs
  %first = udiv i64 %before, %chunks
  %last = udiv i64 %after, %chunks
  %skip = mul i64 %thread, $STRIDE
  %own = getelementptr i8, ptr %scratch, i64 %skip
  call void %kernel(ptr %buffers, i64 %first, i64 %last, ptr %own)
  ret void
}

; A launch whose arguments are in place. %most: chunks that are worth their while, 0: one alone.
define internal void @launch(ptr %task, ptr %kernel, i64 %programs, i64 %most, ptr %scratch,
                             i64 %threads, ptr %spread, ptr %user) {
  %buffers = getelementptr i64, ptr %task, i64 $TASK
  %no.spread = icmp eq ptr %spread, null
  %few.threads = icmp slt i64 %threads, 2
  %cheap = icmp eq i64 %most, 0
  %a = or i1 %no.spread, %few.threads
  %alone = or i1 %a, %cheap
  br i1 %alone, label %direct, label %post
direct:
  call void %kernel(ptr %buffers, i64 0, i64 %programs, ptr %scratch)
  ret void
post:
  %wanted = mul i64 %threads, $CHUNKS
  %least = call i64 @llvm.umax.i64(i64 %most, i64 %threads)
  %worth = call i64 @llvm.umin.i64(i64 %wanted, i64 %least)
  %up = add i64 %worth, %threads
  %above = sub i64 %up, 1
  %each = udiv i64 %above, %threads
  %even = mul i64 %each, %threads
  %chunks = call i64 @llvm.umin.i64(i64 %even, i64 %programs)
  store ptr %kernel, ptr %task
  %at.programs = getelementptr i64, ptr %task, i64 1
  store i64 %programs, ptr %at.programs
  %at.chunks = getelementptr i64, ptr %task, i64 2
  store i64 %chunks, ptr %at.chunks
  %at.scratch = getelementptr i64, ptr %task, i64 3
  store ptr %scratch, ptr %at.scratch
  call void %spread(ptr %user, ptr @task, ptr %task, i64 %chunks)
  ret void
}
"""


def driver_ir(program: Program, symbol: str, layout: Layout) -> str:
    """What runs the kernels, as LLVM IR text."""
    kernels = {(k.entry, k.code): number for number, k in enumerate(_kernels(program))}
    runtime = _RUNTIME.replace("$TASK", str(_TASK_WORDS)).replace("$STRIDE", str(layout.scratch))
    lines = [runtime.replace("$CHUNKS", str(CHUNKS_PER_THREAD))]
    for number in kernels.values():
        lines.append(f'declare void @"{symbol}.kernel.{number}"(ptr, i64, i64, ptr)')
    lines += _specs(f"{symbol}_inputs", program.inputs)
    lines += _specs(f"{symbol}_outputs", program.outputs)
    lines += [
        f"define void @{symbol}_run(ptr %input, ptr %output, ptr %weights, ptr %workspace,"
        " i64 %threads, ptr %spread, ptr %user) {",
        f"  %task = getelementptr i8, ptr %workspace, i64 {layout.arguments}",
        f"  %scratch = getelementptr i8, ptr %workspace, i64 {layout.shared}",
    ]
    body = _Body(lines, layout)
    for launch in program.launches:
        for zero in launch.zeros:
            at = body.address(zero.buffer)
            lines.append(f"  call ptr @memset(ptr {at}, i32 0, i64 {zero.bytes})")
        if not launch.kernel.programs:
            continue
        for place, ref in enumerate(launch.arguments):
            at = body.address(ref)
            slot = body.define(f"getelementptr i64, ptr %task, i64 {_TASK_WORDS + place}")
            lines.append(f"  store ptr {at}, ptr {slot}")
        kernel = kernels[launch.kernel.entry, launch.kernel.code]
        lines.append(
            f'  call void @launch(ptr %task, ptr @"{symbol}.kernel.{kernel}",'
            f" i64 {launch.kernel.programs}, i64 {_most_chunks(launch)}, ptr %scratch,"
            " i64 %threads, ptr %spread, ptr %user)"
        )
    for copy in program.copies:
        source, target = body.address(copy.source), body.address(BufferRef("output", copy.output))
        size = program.outputs[copy.output].bytes
        lines.append(f"  call ptr @memcpy(ptr {target}, ptr {source}, i64 {size})")
    lines += ["  ret void", "}"]
    return "\n".join(lines) + "\n"


def _most_chunks(launch: Launch) -> int:
    """Chunks of a launch that are worth claiming, 0 for a launch that one thread runs."""
    if launch.kernel.programs < 2 or 0 < launch.cost < ALONE_SECONDS:
        return 0
    return int(launch.cost / ALONE_SECONDS) if launch.cost else launch.kernel.programs


class _Body:
    """Names and addresses in the text of a function."""

    def __init__(self, lines: list[str], layout: Layout) -> None:
        self._lines, self._layout = lines, layout

    def define(self, text: str) -> str:
        """The name of the value of an instruction."""
        name = f"%v{len(self._lines)}"
        self._lines.append(f"  {name} = {text}")
        return name

    def address(self, ref: BufferRef) -> str:
        """The name that holds it."""
        if ref.space in ("input", "output"):
            slot = self.define(f"getelementptr ptr, ptr %{ref.space}, i64 {ref.index}")
            return self.define(f"load ptr, ptr {slot}")
        base, offset = "workspace", ref.index
        if ref.space == "constant":
            base, offset = "weights", self._layout.offsets[ref.index]
        return self.define(f"getelementptr i8, ptr %{base}, i64 {offset}")


def _specs(symbol: str, specs: Sequence[TensorSpec]) -> list[str]:
    """An array of the header's tensors: name, dtype, bytes, rank, shape."""
    lines: list[str] = []
    items: list[str] = []

    def text(content: str) -> str:
        data = content.encode() + b"\0"
        name = f'@"{symbol}.text.{len(lines)}"'
        escaped = "".join(f"\\{byte:02x}" for byte in data)
        lines.append(f'{name} = internal constant [{len(data)} x i8] c"{escaped}"')
        return name

    for spec in specs:
        names = f"ptr {text(spec.name)}, ptr {text(spec.dtype.numpy.name)}"
        sizes = ", ".join(f"i64 {size}" for size in spec.shape) or "i64 1"
        shape = f'@"{symbol}.shape.{len(lines)}"'
        lines.append(f"{shape} = internal constant [{max(1, len(spec.shape))} x i64] [{sizes}]")
        items.append(
            f"{{ ptr, ptr, ptr, i64, i64 }} {{ {names}, ptr {shape}, i64 {len(spec.shape)},"
            f" i64 {spec.bytes} }}"
        )
    kind = "{ ptr, ptr, ptr, i64, i64 }"
    return [*lines, f"@{symbol} = constant [{len(items)} x {kind}] [{', '.join(items)}]"]
