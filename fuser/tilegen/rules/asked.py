"""Which rules chose a schedule: each question that emitters ask, with the answer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from fuser.base.target import Target
from fuser.tilegen.rules.problem import Image, Problem
from fuser.tilegen.rules.record import Rules
from fuser.tilegen.schedule import Schedule


@dataclass(frozen=True)
class Asked:
    """One question. rule: the field of `Rules`; function: who answered, with its module;
    arguments: by name, as text, without the target; answer: a schedule, or a number."""

    rule: str
    function: str
    arguments: dict[str, str]
    answer: Schedule | int


def recording(rules: Rules, log: list[Asked]) -> Rules:
    """Rules that note what they are asked."""
    found = {item.name: getattr(rules, item.name) for item in fields(rules)}
    return Rules(**{name: rule and _noted(name, rule, log) for name, rule in found.items()})


def _noted(name: str, rule: Callable[..., Any], log: list[Asked]) -> Callable[..., Any]:
    @functools.wraps(rule)
    def ask(*args: Any, **kwargs: Any) -> Any:
        answer = rule(*args, **kwargs)
        given = inspect.signature(rule).bind(*args, **kwargs).arguments
        shown = {k: _text(v) for k, v in _sizes(given) if not isinstance(v, Target)}
        log.append(Asked(name, f"{rule.__module__}.{rule.__name__}", shown, answer))
        return answer

    return ask


def _sizes(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Arguments by name; of a problem what is not the default."""
    for name, value in given.items():
        if not isinstance(value, Problem | Image):
            yield name, value
            continue
        table = {item.name: (getattr(value, item.name), item.default) for item in fields(value)}
        yield from _sizes({key: one for key, (one, default) in table.items() if one != default})


def _text(value: Any) -> str:
    return str(value.to_dict()) if isinstance(value, Schedule) else str(value)
