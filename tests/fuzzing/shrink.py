"""Make a failing program small: fewer results, fewer lines, computed values as inputs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.fuzzing.program import Input, Program, renamed, without_dead

Fails = Callable[[Program], bool]


def shrunk(
    program: Program, fails: Fails, values: Callable[[Program], Mapping[str, Input]],
    seconds: float = 20.0,
) -> Program:  # fmt: skip
    """A smaller program that fails; the same one where none does. values: by name what a program
    computes, as inputs, without those that cannot be one."""
    ends = time.monotonic() + seconds

    def better(trial: Program) -> bool:
        if time.monotonic() > ends or weight(trial) >= weight(best):
            return False
        try:
            return fails(trial)
        except Exception:  # no program any more
            return False

    best = program
    changed = True
    while changed and time.monotonic() < ends:
        changed = False
        for trial in (*_fewer_results(best), *_fewer_lines(best)):
            if better(trial):
                best, changed = trial, True
                break
        if changed:
            continue
        for trial in (*_fed(best, values), *_plain(best), *_shorter(best)):
            if better(trial):
                best, changed = trial, True
                break
    return best


def weight(program: Program) -> tuple[int, int, int]:
    """What is made less: lines and results first."""
    odd = sum(given.layout != "{0}" for given in program.inputs)
    return (
        10 * len(program.statements) + 5 * len(program.outputs) + len(program.inputs) + odd,
        sum(given.array.size for given in program.inputs), len(program.text()),
    )  # fmt: skip


def _fewer_results(program: Program) -> list[Program]:
    if len(program.outputs) < 2:
        return []
    alone = [replace(program, outputs=(name,)) for name in program.outputs]
    fewer = [
        replace(program, outputs=tuple(x for x in program.outputs if x != name))
        for name in program.outputs
    ]
    return [without_dead(trial) for trial in (*alone, *fewer)]


def _fewer_lines(program: Program) -> list[Program]:
    """Without each line; what read its name reads one of the names that it was made of."""
    found = []
    for place in reversed(range(len(program.statements))):
        statement = program.statements[place]
        rest = program.statements[:place] + program.statements[place + 1 :]
        if statement.in_place:
            found.append(without_dead(replace(program, statements=rest)))
            continue
        for name in [n for n in statement.names if n != statement.target]:
            later = [
                replace(s, text=renamed(s.text, statement.target, name),
                        target=name if s.target == statement.target else s.target)
                for s in rest
            ]  # fmt: skip
            outputs = tuple(name if x == statement.target else x for x in program.outputs)
            outputs = tuple(dict.fromkeys(outputs))
            trial = replace(program, statements=tuple(later), outputs=outputs)
            found.append(without_dead(trial))
    return found


def _fed(program: Program, values: Callable[[Program], Mapping[str, Input]]) -> list[Program]:
    """With a computed value as an input instead."""
    try:
        known = values(program)
    except Exception:
        return []
    found = []
    for place, statement in reversed(list(enumerate(program.statements))):
        if statement.in_place or statement.target not in known:
            continue
        name = "x" + re.sub(r"\D", "", statement.target) + "0"
        if any(given.name == name for given in program.inputs):
            continue
        rest = [s for i, s in enumerate(program.statements) if i != place]
        rest = [
            replace(s, text=renamed(s.text, statement.target, name),
                    target=name if s.target == statement.target else s.target)
            for s in rest
        ]  # fmt: skip
        outputs = tuple(name if x == statement.target else x for x in program.outputs)
        given = replace(known[statement.target], name=name)
        found.append(without_dead(replace(
            program, inputs=(*program.inputs, given), statements=tuple(rest), outputs=outputs
        )))  # fmt: skip
    return found


def _plain(program: Program) -> list[Program]:
    """With inputs that lie in memory as usual."""
    return [
        replace(program, inputs=tuple(
            replace(x, layout="{0}") if x.name == given.name else x for x in program.inputs
        ))
        for given in program.inputs if given.layout != "{0}"
    ]  # fmt: skip


def _shorter(program: Program) -> list[Program]:
    """With every axis of one size made shorter."""
    if any(given.other is not None for given in program.inputs):
        return []
    sizes = {n for given in program.inputs for n in given.array.shape if n > 1}
    found = []
    for size in sorted(sizes, reverse=True):
        parts = {(0, 1), (0, size // 2), (size // 2, size), (1, size), (0, size - 1)}
        for part in (slice(*ends) for ends in sorted(parts)):
            found.append(replace(program, inputs=tuple(
                replace(given, array=given.array[tuple(
                    part if n == size else slice(None) for n in given.array.shape
                )].copy())
                for given in program.inputs
            )))  # fmt: skip
    return found
