"""The tables of rules and rewrites in docs/numerics.md, made from the rules themselves."""

from __future__ import annotations

import re
from pathlib import Path

from fuser.graph.passes.canonicalise import RULES
from fuser.graph.rewrites import REWRITES

PAGE = Path(__file__).parents[2] / "docs" / "numerics.md"


def written(page: str) -> str:
    """The page with its tables as the rules are now."""
    rules = [f"| `{rule.name}` | {rule.kind} | {_text(rule.what)} |" for rule in RULES]
    rewrites = [
        f"| `{item.name}` | {item.kind} | {_text(item.what)} | `{item.where}` |"
        for item in REWRITES
    ]
    page = _filled(page, "rules", ["| rule | class | what |", "| --- | --- | --- |", *rules])
    head = ["| rewrite | class | what | where |", "| --- | --- | --- | --- |"]
    return _filled(page, "rewrites", [*head, *rewrites])


def _text(what: str) -> str:
    return what.replace("|", "\\|")


def _filled(page: str, name: str, lines: list[str]) -> str:
    found = re.compile(f"<!-- {name} -->\n.*?<!-- end of {name} -->", re.DOTALL)
    text = "\n".join([f"<!-- {name} -->", *lines, f"<!-- end of {name} -->"])
    return found.sub(lambda _: text, page)
