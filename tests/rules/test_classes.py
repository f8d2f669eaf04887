"""Every rule is of the class that it says."""

from __future__ import annotations

import pytest

from fuser.graph.passes.canonicalise import RULES
from fuser.graph.passes.rule import Rule
from fuser.graph.rewrites import REWRITES
from tests.rules.check import check_rule
from tests.rules.document import PAGE, written


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_class(rule: Rule) -> None:
    check_rule(rule)


def test_names_are_distinct() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))


def test_the_page_lists_every_rule_and_rewrite() -> None:
    """`python -m tests.rules` writes its tables."""
    page = PAGE.read_text()
    assert page == written(page)
    for item in (*RULES, *REWRITES):
        assert f"| `{item.name}` | {item.kind} |" in page
