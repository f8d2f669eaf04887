"""`while`: the condition and the body are parts of one op of the Tile IR."""

from __future__ import annotations

import ast

from fuser.language.arithmetic import as_tensor, to_bool
from fuser.language.carried import Carry, Trial, Walker, forget
from fuser.language.exits import Flags, until
from fuser.language.leaves import rebuilt
from fuser.language.tensors import Tensor
from fuser.tilegen import ops
from fuser.tilegen.ir import Block
from fuser.tilegen.value import TileType, Value


class WhileLoop:
    """One `while`."""

    def __init__(self, w: Walker, node: ast.While, flags: Flags | None = None) -> None:
        """flags: of a loop that may be left in its middle."""
        self.w, self.node, self.flags = w, node, flags

    def compile(self) -> None:
        w, node, flags = self.w, self.node, self.flags
        carry = Carry(w, node.body, flags)
        if self._known_condition(carry) is False:
            return
        ends = carry.learn(self._iteration)
        if w.e.trials:
            carry.leave_unknown()
        elif ends:
            assert flags is not None
            w.names[flags.go] = w.runtime(w.condition(node.test))
            WhileLoop(w, until(node, node.body, flags, node.test)).compile()
        else:
            self._emit(carry)

    def _iteration(self) -> None:
        self.w.condition(self.node.test)
        self.w.run(self.node.body)

    def _known_condition(self, carry: Carry) -> bool | None:
        """Whether the condition is known never to hold."""
        names = (item.id for item in ast.walk(self.node.test) if isinstance(item, ast.Name))
        if any(name in carry.before for name in names):
            return None
        with Trial(self.w):
            found = self.w.condition(self.node.test)
        return found if isinstance(found, bool) else None

    def _emit(self, carry: Carry) -> None:
        w, e, node = self.w, self.w.e, self.node
        kept = [c for c in carry.all if c.step is None]
        inits = tuple(e.value_of(c.first) for c in kept)
        before = dict(w.names)
        blocks = []
        for part in (self._condition, self._body):
            block = self._block(carry)
            with e.inside(block):
                w.names = dict(before)
                carry.enter()
                e.builder.append(ops.Yield(args=tuple(part(carry))))
            blocks.append(block)
        op = ops.While(inits=inits, condition=blocks[0], body=blocks[1])
        results = e.builder.append(op, *(value.type for value in inits))
        made = {
            id(c): e.tensor(result, c.first.dtype) for c, result in zip(kept, results, strict=True)
        }
        w.names = before
        for name, leaves in carry.leaves.items():
            w.names[name] = rebuilt(carry.before[name], [made.get(id(c), c.first) for c in leaves])
        forget(w, node.body, carry.before)

    def _block(self, carry: Carry) -> Block:
        """An empty block with a parameter for each leaf that changes, which it stands for."""
        e, block = self.w.e, Block()
        for carried in carry.all:
            if carried.step is not None:
                carried.inside = carried.first
                continue
            first = carried.first
            value = e.builder.value(TileType(first.dtype.ir, first.shape), "a")
            carried.inside = Tensor(first.dtype, first.shape)
            carried.inside.made[block] = value
            e.counted(carried.inside, value)
            block.params.append(value)
        return block

    def _condition(self, carry: Carry) -> list[Value]:
        e = self.w.e
        found = self.w.condition(self.node.test)
        test = as_tensor(e, found) if isinstance(found, bool) else found
        return [e.value_of(to_bool(e, test))]

    def _body(self, carry: Carry) -> list[Value]:
        e = self.w.e
        self.w.run(self.node.body)
        return [
            e.value_of(new)
            for name, leaves in carry.leaves.items()
            for carried, new in zip(leaves, carry.check(name), strict=True)
            if carried.step is None
        ]
