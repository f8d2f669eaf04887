"""Imports follow the data: a stage never imports a later one."""

import ast
from pathlib import Path

import fuser

STAGES = ("graph", "partition", "tilegen", "backend", "runtime")
ROOT = Path(fuser.__file__).parent
# leaves that every stage may read
LEAVES = {"dtypes", "errors", "limits", "target", "config", "report", "forks"}


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("fuser.")}


def test_imports_go_one_way() -> None:
    for position, stage in enumerate(STAGES):
        allowed = {*STAGES[: position + 1], *LEAVES, "__version__"}
        for path in (ROOT / stage).rglob("*.py"):
            assert _imports(path) <= allowed, f"{path.relative_to(ROOT)} imports a later stage"
