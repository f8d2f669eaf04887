"""What must hold of a lowered program, beside what LLVM verifies of its registers.

Every register that code names is defined before it, on all paths: LLVM checks that of all modules.
Tiles in scratch are memory, of which LLVM knows nothing. Here, no program reads a tile that no nest
has written before, whatever branches it took:

    if c: write %t0                     read %t0        refused: where c is false, nobody wrote it
    for rows: write %t0                 read %t0        right: a nest has iterations
    for i in 0 .. n: write %t0          read %t0        refused: a loop of the tile program may have
                                                        none

That a nest writes all elements of a tile is not asked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fuser.backend.function import Block, Function
from fuser.errors import VerifyError

_NAME = re.compile(r"%([\w.]+)")
_LABEL = re.compile(r"label %([\w.]+)")
_CALL = re.compile(r"call (?:fastcc )?[^@]*@([\w.]+)\(")
_ADDRESSES = ("getelementptr ", "select ", "extractelement ", "insertelement ", "shufflevector ")
"""What computes addresses from others."""
_READS = ("llvm.masked.load.", "llvm.masked.gather.", "llvm.x86.tileloadd64")
_WRITES = ("llvm.masked.store.", "llvm.masked.scatter.", "llvm.x86.tilestored64", "llvm.memset.")
_NEITHER = ("llvm.prefetch.",)
_OF_PROGRAM = "for."
"""How labels of loops of the tile program begin: they may have no iterations."""


@dataclass(frozen=True)
class _Access:
    """A line that reads or writes tiles. tiles: a bit for each of these."""

    line: str
    tiles: int
    writes: bool


@dataclass(eq=False)
class _Node:
    """A block, what it does to tiles, and the blocks that may run before it."""

    accesses: list[_Access] = field(default_factory=list)
    targets: tuple[str, ...] = ()
    before: list[str] = field(default_factory=list)
    written: int = 0

    def after(self, written: int) -> int:
        return written | self.written


def verify_tiles(function: Function, tiles: int) -> None:
    """Raises VerifyError, with the line, where a finished function reads one of the tiles %t0 ...
    that nobody has written. Takes time in proportion to the lines of the function."""
    if not tiles:
        return
    bits = {f"t{number}": 1 << number for number in range(tiles)}
    nodes = {block.label: _Node() for block in function.blocks}
    if any(phi.reg.type.startswith("ptr") for block in function.blocks for phi in block.phis):
        _follow_phis(function, bits)
    for block in function.blocks:
        node = nodes[block.label]
        node.accesses = list(_accesses(block, bits))
        node.targets = tuple(_LABEL.findall(block.lines[-1])) if block.lines else ()
        for access in node.accesses:
            node.written |= access.tiles if access.writes else 0
    if not any(not access.writes for node in nodes.values() for access in node.accesses):
        return
    _connect(function, nodes)
    for label, have in _written(function, nodes, (1 << tiles) - 1).items():
        for access in nodes[label].accesses:
            if not access.writes and access.tiles & ~have:
                raise VerifyError(
                    f"a tile is read that nothing has written before: {access.line}",
                    where=f"block {label}",
                )
            have |= access.tiles if access.writes else 0


def _follow_phis(function: Function, bits: dict[str, int]) -> None:
    """Give phis of addresses the tiles that these are of."""
    while True:
        before = dict(bits)
        for block in function.blocks:
            for phi in block.phis:
                _add(bits, phi.reg.ref[1:], _tiles(str(phi), bits))
            list(_accesses(block, bits))
        if bits == before:
            return


def _accesses(block: Block, bits: dict[str, int]) -> Iterator[_Access]:
    """What the lines of a block do with tiles; `bits` learns of addresses."""
    for line in block.lines:
        if "ptr" not in line:
            continue
        tiles = _tiles(line, bits)
        if not tiles:
            continue
        result, _, text = line.partition(" = ") if line[0] == "%" else ("", "", line)
        if text.startswith("load "):
            yield _Access(line, tiles, writes=False)
        elif text.startswith("store "):
            yield _Access(line, tiles, writes=True)
        elif text.startswith(_ADDRESSES):
            _add(bits, result[1:], tiles)
        else:
            yield from _calls(line, tiles)


def _calls(line: str, tiles: int) -> Iterator[_Access]:
    found = _CALL.search(line)
    name = found[1] if found else ""
    if name.startswith(_READS):
        yield _Access(line, tiles, writes=False)
    elif name.startswith(_WRITES):
        yield _Access(line, tiles, writes=True)
    elif not name.startswith(_NEITHER):
        raise VerifyError(f"it is not known what this does to a tile: {line}")


def _tiles(line: str, bits: dict[str, int]) -> int:
    total = 0
    for name in _NAME.findall(line):
        total |= bits.get(name, 0)
    return total


def _add(bits: dict[str, int], name: str, tiles: int) -> None:
    if tiles:
        bits[name] = bits.get(name, 0) | tiles


def _connect(function: Function, nodes: dict[str, _Node]) -> None:
    """Note which blocks run before which, but for the way around a nest without iterations."""
    order = {block.label: number for number, block in enumerate(function.blocks)}
    ends: dict[str, set[str]] = {}
    for block in function.blocks:
        for target in nodes[block.label].targets:
            if order[target] <= order[block.label]:  # a loop ends here, or begins again
                ends.setdefault(target, set()).update(nodes[block.label].targets)
    for block in function.blocks:
        targets = nodes[block.label].targets
        for target in targets:
            around = any(
                other != target
                and order[other] > order[block.label]
                and target in ends.get(other, ())
                and not other.startswith(_OF_PROGRAM)
                for other in targets
            )
            if not around:
                nodes[target].before.append(block.label)


def _written(function: Function, nodes: dict[str, _Node], all_tiles: int) -> dict[str, int]:
    """The tiles that were written where a block begins, by all ways that lead there."""
    start = function.blocks[0].label
    found = dict.fromkeys(nodes, all_tiles) | {start: 0}
    changed = True
    while changed:
        changed = False
        for label, node in nodes.items():
            if label == start:
                continue
            have = all_tiles
            for before in node.before:
                have &= nodes[before].after(found[before])
            if have != found[label]:
                found[label], changed = have, True
    return found
