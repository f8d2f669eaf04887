"""What a launch computes from its grid and its integers, as LLVM IR: the code of `Formulas`."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.function import Module
from fuser.backend.text import Reg, integer
from fuser.runtime.native_words import MOST, Writer


def write_formulas(module: Module) -> None:
    """code, values, results -> whether every check holds and no number is too large."""
    f = Writer(module, "formulas", "i1", "ptr", "ptr", "ptr")
    code, values, results = f.args
    stack, here, above = f.room(MOST), f.room(1), f.room(1)
    f.store(code, here, 8)
    f.store(stack, above, 8)
    head, body, out = f.block("next"), f.block("op"), f.block("out")
    f.br(head)
    f.enter(head)
    at, top = f.load("ptr", here, 8), f.load("ptr", above, 8)
    op, operand = f.load("i64", at, 8), f.word(at, 1)
    f.store(f.gep(at, 16), here, 8)
    b, a = f.gep(top, -8), f.gep(top, -16)
    f.cbr(f.icmp("eq", op, 0), out, body)
    f.enter(body)

    def push(make: Callable[[], Reg]) -> Callable[[], None]:
        def case() -> None:
            f.store(make(), top, 8)
            f.store(f.gep(top, 8), above, 8)

        return case

    def two(make: Callable[[Reg, Reg], Reg]) -> Callable[[], None]:
        def case() -> None:
            value = make(f.load("i64", a, 8), f.load("i64", b, 8))
            f.store(value, a, 8)
            f.store(b, above, 8)

        return case

    def exact(name: str) -> Callable[[Reg, Reg], Reg]:
        def make(x: Reg, y: Reg) -> Reg:
            both = "{ i64, i1 }"
            pair = f.op(both, f"call {both} @llvm.{name}.with.overflow.i64({x.typed}, {y.typed})")
            over = f.op("i1", f"extractvalue {both} {pair}, 1")
            f.need(f.icmp("eq", over, 0))
            return f.op("i64", f"extractvalue {both} {pair}, 0")

        return make

    def divided(x: Reg, y: Reg) -> tuple[Reg, Reg]:
        """Quotient and rest, rounded down; only by what is above 0."""
        f.need(f.icmp("sgt", y, 0))
        rest = f.binary("srem", x, y)
        below = f.icmp("slt", rest, 0)
        quotient = f.binary("sdiv", x, y)
        return (
            f.select(below, f.add(quotient, -1), quotient), f.select(below, f.add(rest, y), rest)
        )  # fmt: skip

    def out_of() -> None:
        f.store(f.load("i64", b, 8), f.gep(results, operand, "i64"), 8)
        f.store(b, above, 8)

    def check() -> None:
        value = f.load("i64", b, 8)
        f.store(b, above, 8)
        kinds = [f.icmp(name, value, 0) for name in ("sge", "eq", "ne")]
        other = f.select(f.icmp("eq", operand, 1), kinds[1], kinds[2])
        f.need(f.select(f.icmp("eq", operand, 0), kinds[0], other))

    f.switch(
        op,
        [
            lambda: None,
            push(lambda: operand),
            push(lambda: f.load("i64", f.gep(values, operand, "i64"), 8)),
            two(exact("sadd")),
            two(exact("smul")),
            two(lambda x, y: divided(x, y)[0]),
            two(lambda x, y: divided(x, y)[1]),
            two(lambda x, y: f.intrinsic("smin", x, y)),
            two(lambda x, y: f.intrinsic("smax", x, y)),
            out_of,
            check,
        ],
    )
    f.br(head)
    f.enter(out)
    f.finish(integer(1, "i1"))
