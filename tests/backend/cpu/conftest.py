"""Programs emitted for GPUs run on the CPU too, but one target is enough for every day."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, dropped = [], []
    for item in items:
        params = (
            item.callspec.params
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else {}
        )
        foreign = (
            item.module.__name__.endswith("cpu.test_emitted")
            if isinstance(item, pytest.Function)
            else False
        )
        (dropped if foreign and params.get("target", "cpu") != "cpu" else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept
