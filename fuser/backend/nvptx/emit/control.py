"""Loops, branches and warp roles: each yields its blocks where their code belongs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from fuser.backend.function import Block as Label
from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.alike import alike_registers
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.values import Operand, Tile

Steps = Generator[Block, None, None]


def nothing(code: Code, op: Op) -> None:
    """The op around it has the code."""


def _end(block: Block) -> ops.Yield:
    last = block.ops[-1]
    assert isinstance(last, ops.Yield)
    return last


def _names(code: Code, tiles: Sequence[Tile]) -> None:
    """Registers for what a loop hands to its body."""
    for tile in tiles:
        tile.assign(code.emitter.name_of() for _ in tile.layout.regs)


def _phis(
    op: ops.For | ops.While, types: Sequence[str], before: Label, latch: Label, end: ops.Yield
) -> list[str]:
    lines = [
        f"{name} = phi {type} [ {first}, %{before.label} ], [ {last}, %{latch.label} ]"
        for name, type, first, last in zip(op.scalars, types, op.firsts, end.scalars, strict=True)
    ]
    for param, init, last in zip(op.params, op.inits, end.values, strict=True):
        ends = zip(param.regs, init.regs, last.regs, strict=True)
        for name, (a, b) in {name: (a, b) for name, a, b in ends}.items():
            lines.append(
                f"{name} = phi {param.type} [ {a}, %{before.label} ], [ {b}, %{latch.label} ]"
            )
    return lines


def _share_loaded(op: ops.For) -> None:
    """Let registers of a carried tile be one where they are one number in memory, each time that
    the tile is loaded for the next iteration."""
    loads = {item.tile: item for item in op.body.ops if isinstance(item, ops.Load)}
    for param, init, value in zip(op.params, op.inits, _end(op.body).values, strict=True):
        if value in loads:
            firsts = alike_registers(loads[value].at.access, param.layout)
            if all(init.regs[first] == reg for first, reg in zip(firsts, init.regs, strict=True)):
                param.assign(param.regs[first] for first in firsts)


def for_(code: Code, op: ops.For) -> Steps:
    """Phis, the body, a branch: at the end where there surely is an iteration."""
    e = code.emitter
    before, head = e.at, e.block("loop")
    body, done = e.block("body"), e.block("loop.end")
    e.jump(head)
    e.enter(head)
    mark = len(head.lines)
    _names(code, op.params)
    _share_loaded(op)
    if op.certain:
        e.jump(body)
    else:
        e.branch(e.value(f"icmp slt i32 {op.scalars[0]}, {op.stop}"), body, done)
    e.enter(body)
    yield op.body
    end, latch = _end(op.body), e.at
    head.lines[mark:mark] = _phis(op, ["i32"] * len(op.scalars), before, latch, end)
    if op.certain:
        again = e.value(f"icmp slt i32 {end.scalars[0]}, {op.stop}")
        e.do(f"br i1 {again}, label %{head.label}, label %{done.label}, !llvm.loop !0")
    else:
        e.do(f"br label %{head.label}, !llvm.loop !0")
    e.enter(done)
    for result, param, last in zip(op.results, op.params, end.values, strict=True):
        result.assign(last.regs if op.certain else param.regs)


def while_(code: Code, op: ops.While) -> Steps:
    """Phis, the head, a branch, the body."""
    e = code.emitter
    before, head = e.at, e.block("while")
    inside, done = e.block("turn"), e.block("while.end")
    e.jump(head)
    e.enter(head)
    mark = len(head.lines)
    _names(code, op.params)
    yield op.head
    test = op.head.ops[-1]
    assert isinstance(test, ops.Condition)
    e.branch(_bit(test.value), inside, done)
    e.enter(inside)
    yield op.body
    head.lines[mark:mark] = _phis(op, op.types, before, e.at, _end(op.body))
    e.do(f"br label %{head.label}, !llvm.loop !0")
    e.enter(done)
    for result, param in zip(op.results, op.params, strict=True):
        result.assign(param.regs)


def _bit(condition: Operand | Tile) -> Operand:
    return condition.regs[0] if isinstance(condition, Tile) else condition


def _bare(block: Block) -> bool:
    return isinstance(block.ops[0], ops.Yield)


def if_(code: Code, op: ops.If) -> Steps:
    """Both blocks, or one where the other does nothing; phis of what they yield."""
    e = code.emitter
    before, then, done = e.at, e.block("if"), e.block("if.end")
    alone = bool(op.other.ops) and _bare(op.other)
    other = done if alone else e.block("else")
    e.branch(_bit(op.condition), then, other)
    e.enter(then)
    yield op.then
    left = e.at
    e.jump(done)
    if alone:
        right = before
    else:
        e.enter(other)
        yield op.other
        right = e.at
        e.jump(done)
    e.enter(done)
    a, b = _end(op.then), _end(op.other)
    ends = f"%{left.label} ], [ {{}}, %{right.label} ]"
    for name, x, y in zip(op.names, a.scalars, b.scalars, strict=True):
        e.define(name, f"phi i32 [ {x}, {ends.format(y)}")
    for result, one, two in zip(op.results, a.values, b.values, strict=True):
        result.assign(
            e.value(f"phi {result.type} [ {x}, {ends.format(y)}")
            for x, y in zip(one.regs, two.regs, strict=True)
        )


def where(code: Code, op: ops.Where) -> Steps:
    """A branch around the body."""
    with code.emitter.where(op.condition):
        yield op.body


def warp_roles(code: Code, op: ops.WarpRoles) -> Steps:
    """A branch by the number of the warp, which ptxas knows to be the same in a warp: it would else
    take warps after the branch for divided, and move descriptors of matmuls from the registers of
    threads. The producer is elected: ptxas then knows that one thread is left, addresses are in
    uniform registers, and a copy is no loop over the values that threads may have."""
    e = code.emitter
    producer, consumer, out = e.block("producer"), e.block("consumer"), e.block("exit")
    warp = e.uniform(e.hoisted(f"lshr i32 {e.tid}, 5"))
    e.branch(e.value(f"icmp uge i32 {warp}, {op.threads // 32}"), producer, consumer)
    e.enter(producer)
    _set_registers(code, op, 0)
    issue = e.block("issue")
    chosen = e.value("call {i32, i1} @llvm.nvvm.elect.sync(i32 -1)")
    alone = e.value(f"extractvalue {{i32, i1}} {chosen}, 1")
    if op.warps > 1:
        first = e.value(f"icmp eq i32 {warp}, {op.threads // 32}")
        alone = e.value(f"and i1 {alone}, {first}")
    e.branch(alone, issue, out)
    e.enter(issue)
    yield op.producer
    e.jump(out)
    e.enter(consumer)
    _set_registers(code, op, 1)
    yield op.consumer
    e.jump(out)
    e.enter(out)


def _set_registers(code: Code, op: ops.WarpRoles, role: int) -> None:
    if op.registers is not None:
        verb = ("dec", "inc")[role]
        code.emitter.do(
            f"call void @llvm.nvvm.setmaxnreg.{verb}.sync.aligned.u32(i32 {op.registers[role]})"
        )


def launch_dependents(code: Code, op: ops.LaunchDependents) -> None:
    """One instruction."""
    code.emitter.do(
        'call void asm sideeffect "griddepcontrol.launch_dependents;", "~{memory}"() #1'
    )


def await_previous(code: Code, op: ops.AwaitPrevious) -> None:
    """The pointers to data go through the wait: no load can be moved before it."""
    e, text = code.emitter, "griddepcontrol.wait;"
    if op.trigger:
        text = f"griddepcontrol.launch_dependents; {text}"
    data, type = op.buffers, "ptr addrspace(1)"
    listed = ",".join(["=l"] * len(data) + [str(i) for i in range(len(data))] + ["~{memory}"])
    operands = ", ".join(f"{type} {code.pointer(buffer)}" for buffer in data)
    if len(data) <= 1:
        kind = type if data else "void"
        call = f'call {kind} asm sideeffect "{text}", "{listed}"({operands}) #1'
        if data:
            code.ready[data[0]] = e.value(call)
        else:
            e.do(call)
        return
    kind = "{" + ", ".join([type] * len(data)) + "}"
    result = e.value(f'call {kind} asm sideeffect "{text}", "{listed}"({operands}) #1')
    for number, buffer in enumerate(data):
        code.ready[buffer] = e.value(f"extractvalue {kind} {result}, {number}")


def read_table(code: Code, op: ops.ReadTable) -> None:
    """A load from constant memory."""
    e = code.emitter
    pointer = e.value(f"getelementptr i32, ptr addrspace(4) {op.table}, i32 {op.at}")
    e.define(op.names[0], f"load i32, ptr addrspace(4) {pointer}, align 4")


def read_register(code: Code, op: ops.ReadRegister) -> None:
    """One move."""
    code.emitter.define(op.names[0], code.register_text(op.register))


def opaque(code: Code, op: ops.Opaque) -> None:
    """One move."""
    text = f'call i32 asm sideeffect "mov.u32 $0, {op.value};", "=r"()'
    code.emitter.define(op.names[0], text)


def seam(code: Code, op: ops.Seam) -> None:
    """See `seam_code`."""
    seam_code(code)


def seam_code(code: Code) -> None:
    """A branch that is always taken, which ptxas cannot know: it moves no code across, where it
    would otherwise begin with the arithmetic of all strips at once, and spill."""
    e = code.emitter
    more, never = e.block("strip"), e.block("never")
    number = e.value('call i32 asm sideeffect "mov.u32 $0, %nctaid.y;", "=r"()')
    e.branch(e.value(f"icmp ne i32 {number}, 0"), more, never)
    e.enter(never)
    e.do("ret void")
    e.enter(more)


RULES: dict[type[Op], Callable[..., Steps | None]] = {
    ops.Yield: nothing,
    ops.Condition: nothing,
    ops.For: for_,
    ops.While: while_,
    ops.If: if_,
    ops.Where: where,
    ops.WarpRoles: warp_roles,
    ops.AwaitPrevious: await_previous,
    ops.LaunchDependents: launch_dependents,
    ops.ReadTable: read_table,
    ops.ReadRegister: read_register,
    ops.Opaque: opaque,
    ops.Seam: seam,
}
