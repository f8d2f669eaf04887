"""Kernels to native code: the entry function around the lowered program."""

from __future__ import annotations

from typing import Any

from fuser.backend import llvm, math
from fuser.backend.cpu.analysis.decisions import print_decisions
from fuser.backend.cpu.analysis.in_place import in_place_pairs
from fuser.backend.cpu.analysis.placement import analyse
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.lowering.rules import RULES
from fuser.backend.cpu.memory.bounds import idle
from fuser.backend.cpu.memory.storage import One, alignment
from fuser.backend.cpu.verify import verify_tiles
from fuser.backend.function import Function, Module, read_scalars, read_sizes
from fuser.backend.module import CompiledKernel
from fuser.backend.text import Reg, integer, symbolic_dims
from fuser.base.target import Target
from fuser.graph import dims
from fuser.graph.dims import DimExpr
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen import ops
from fuser.tilegen.ir import Buffer, Kernel


def entry_name(kernel: Kernel) -> str:
    """The symbol of a kernel's entry function: its name, as a C identifier."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in kernel.name) or "kernel"


def machine(target: Target) -> llvm.Machine:
    """LLVM's description of a CPU target."""
    triple = ""
    if target.arch == "aarch64":
        triple = "aarch64-unknown-linux-gnu"
        return llvm.Machine(triple, "generic", target.features)
    if target.arch.startswith("x86-64"):
        triple = "x86_64-unknown-linux-gnu"
    return llvm.Machine(triple, target.arch, target.features)


def compile_kernel(kernel: Kernel, target: Target) -> CompiledKernel:
    """Native code of a kernel. Raises LoweringError, CompileError, and VerifyError for a lowered
    program that reads what it has not written.

    With symbolic dims (and their Sizes active), or scalars, the entry finds, after the buffers, an
    array of 8-byte slots: i64 with the values of facts["sizes"], then the bits of the scalars that
    facts["scalars"] names, in the low bytes. The grid at other sizes is facts["grid"].
    facts["in_place"]: pairs of an operand and a result that may be one buffer, by their positions.
    """
    with symbolic_dims() as read:
        module, low, scratch = _lower(kernel, target, read)
        pairs = in_place_pairs(low.known)
    code = llvm.emit_object(str(module), machine(target))
    facts: dict[str, Any] = {}
    if dims.active() is not None:
        facts = {"sizes": list(map(str, read)), "grid": list(map(str, kernel.grid))}
    if kernel.scalars:
        facts["scalars"] = [value.name for value in kernel.scalars]
    if pairs:
        facts["in_place"] = [[kernel.buffers.index(buffer) for buffer in pair] for pair in pairs]
    return CompiledKernel(
        name=kernel.name, target=target.name, entry=entry_name(kernel), code=code,
        grid=tuple(map(size_hint, kernel.grid)), scratch_bytes=scratch, facts=facts,
    )  # fmt: skip


def lower_to_llvm(kernel: Kernel, target: Target) -> str:
    """The LLVM IR text that compile_kernel hands to LLVM."""
    with symbolic_dims() as read:
        return str(_lower(kernel, target, read)[0])


def decisions_text(kernel: Kernel, target: Target) -> str:
    """Where values live, how dots are blocked and loops vectorised: `fuser dump --stage cpu`."""
    with symbolic_dims() as read:
        _, low, scratch = _lower(kernel, target, read)
    return print_decisions(low.known, low.nests, scratch)


def assembly(kernel: Kernel, target: Target) -> str:
    """Assembly of a kernel, for dumps and tests."""
    return llvm.emit_assembly(lower_to_llvm(kernel, target), machine(target))


def _access(kernel: Kernel, buffer: Buffer, shared: bool) -> str:
    """What LLVM may take for granted of the pointer to a buffer. shared: another may be to the
    same."""
    writes = [op.view.buffer for op in kernel.walk() if isinstance(op, ops.WRITES)]
    if buffer.alias:
        shared = any(other.alias == buffer.alias for other in writes)
    words = ["" if shared else " noalias", "" if buffer in writes else " readonly"]
    return f"ptr{''.join(words)} align {alignment(buffer)}"


def _has_numbers(kernel: Kernel) -> bool:
    """Whether a launch gives numbers after the buffers."""
    return dims.active() is not None or bool(kernel.scalars)


def _numbers_type(kernel: Kernel) -> str:
    ours = not kernel.scalars and not any(buffer.open for buffer in kernel.buffers)
    return f"ptr noalias readonly align {64 if ours else 8}"


def _lower(
    kernel: Kernel, target: Target, read: dict[DimExpr, int]
) -> tuple[Module, Lowering, int]:
    """The module, what it was lowered with, and bytes of scratch."""
    where = machine(target)
    module = Module(where.triple or llvm.host_triple(), llvm.data_layout(where))
    attributes = module.attributes("nounwind nofree norecurse")
    facts = analyse(kernel, target)
    shared = {buffer for pair in in_place_pairs(facts) for buffer in pair}
    params = [
        (_access(kernel, buffer, buffer in shared), f"b{i}")
        for i, buffer in enumerate(kernel.buffers)
    ]
    params += [("i64", f"pid{axis}") for axis in range(len(kernel.grid))]
    if _has_numbers(kernel):
        params.append((_numbers_type(kernel), "sizes"))
    program = module.function(
        f"{entry_name(kernel)}.program",
        "void",
        params,
        attributes=attributes + " noinline",
        linkage="internal",
    )
    if "+avx512f" in target.features and "+avx512vl" in target.features:
        program.traits = frozenset({math.SCALEF, math.LOOKUP})
        if "+avx512bf16" in target.features:
            program.traits |= {math.ROUND_BF16}
    if target.dp4a:
        program.traits |= {math.DP4A}
    buffers = dict(zip(kernel.buffers, program.args, strict=False))
    low = Lowering(RULES, module, program, target, facts, buffers)
    for position, value in enumerate(kernel.scalars):
        low.places[value] = One(Reg(value.dtype.llvm, f"%scalar.{position}"))
    for op in kernel.body.ops:
        if isinstance(op, ops.ProgramId):
            low.bind(op.result, program.args[len(kernel.buffers) + op.axis])
    spare = idle(low, kernel)
    if spare is not None:
        done, work = program.block("idle"), program.block("work")
        program.cbr(spare, done, work)
        program.enter(done)
        program.ret()
        program.enter(work)
    low.block(kernel.body)
    program.ret()
    verify_tiles(program, len(low.tiles))
    offsets: list[int] = []
    scratch = 0
    for size in low.tiles:
        program.params.append(("ptr noalias align 64", f"t{len(offsets)}"))
        offsets.append(scratch)
        scratch += -(-size // 64) * 64
    if low.zero_bytes:
        count = -(-low.zero_bytes // 64) * 64
        module.add_global(f"@zeros = internal constant [{count} x i8] zeroinitializer, align 64")
    units = [plan.unit.name for plan in facts.dots.values() if plan.unit is not None]
    _entry(module, kernel, attributes, offsets, "amx" in units)
    # Scalars follow the sizes, of which the entry may read more than the program does.
    if kernel.scalars:
        read_scalars(program, Reg("ptr", "%sizes"), [v.dtype for v in kernel.scalars], len(read))
    read_sizes(program, Reg("ptr", "%sizes"))
    return module, low, scratch


def _entry(
    module: Module, kernel: Kernel, attributes: str, offsets: list[int], tiles: bool
) -> None:
    """The loop over programs first <= p < last of the row-major grid. tiles: whether they use tile
    registers."""
    f: Function = module.function(
        entry_name(kernel), "void",
        [("ptr", "buffers"), ("i64", "first"), ("i64", "last"), ("ptr", "scratch")],
        attributes=attributes,
    )  # fmt: skip
    buffers, first, last, scratch = f.args
    if tiles:
        f.call_void("llvm.x86.ldtilecfg", _tile_shapes(module))
    pointers = [f.load("ptr", f.gep(buffers, i, "ptr"), 8) for i in range(len(kernel.buffers))]
    sizes = []
    if _has_numbers(kernel):
        sizes = [f.load("ptr", f.gep(buffers, len(kernel.buffers), "ptr"), 8)]
    areas = [f.gep(scratch, offset) for offset in offsets]

    def iteration(p: Reg, carried: list[Reg]) -> list[Reg]:
        ids: list[Reg] = []
        rest = p
        for extent in reversed(kernel.grid[1:]):
            if not is_symbolic(extent) and extent <= 1:
                ids.append(integer(0))
                continue
            ids.append(f.op("i64", f"urem {rest.typed}, {integer(extent)}"))
            rest = f.op("i64", f"udiv {rest.typed}, {integer(extent)}")
        ids.append(rest)
        ids.reverse()
        f.call_void(f"{entry_name(kernel)}.program", *pointers, *ids, *sizes, *areas)
        return []

    f.loop(first, last, 1, [], iteration, hint="programs")
    if tiles:
        f.call_void("llvm.x86.tilerelease")
    f.ret()
    for pointer in sizes:
        # after the load of the pointer, which is in the first block
        start = f.blocks[0].lines
        kept, start[:] = list(start), []
        read_sizes(f, pointer)
        at = next(i for i, line in enumerate(kept) if line.startswith(f"{pointer} ="))
        start[:] = [*kept[: at + 1], *start, *kept[at + 1 :]]


def _tile_shapes(module: Module) -> Reg:
    """What ldtilecfg reads: palette 1, and 16 rows of 64 bytes for each of the 8 tile registers."""
    row_bytes, rows = [64, 0] * 8 + [0] * 16, [16] * 8 + [0] * 8
    items = ", ".join(f"i8 {item}" for item in [1, *[0] * 15, *row_bytes, *rows])
    name = "@tile.shapes"
    module.add_global(f"{name} = private constant [64 x i8] [{items}], align 64")
    return Reg("ptr", name)
