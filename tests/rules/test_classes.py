"""Every rule is of the class that it says."""

from __future__ import annotations

import pytest

from fuser.graph.passes.canonicalise import RULES
from fuser.graph.passes.rule import Rule
from tests.rules.check import check_rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_class(rule: Rule) -> None:
    check_rule(rule)


def test_names_are_distinct() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
