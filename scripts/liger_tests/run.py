"""Start pytest in a checkout of Liger-Kernel, with its `import triton` answered by fuser.triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEFAULT = "test/transformers"
LEFT_AWAY = ("--deselect", "--ignore")
FILES = ("--counts", "--compare")


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, "\nusage: liger-tests CHECKOUT [pytest arguments]", file=sys.stderr)
        return 2
    checkout = Path(arguments[0]).resolve()
    if not (checkout / DEFAULT).is_dir():
        print(f"error: {checkout} has no {DEFAULT}; name a checkout", file=sys.stderr)
        return 2
    rest = _absolute(arguments[1:])
    before = ["", *rest]
    if not any(
        item.startswith("test/") and option not in LEFT_AWAY
        for option, item in zip(before, rest, strict=False)
    ):
        rest.append(DEFAULT)
    paths = [
        str(checkout / "src"), str(checkout), str(HERE), str(HERE.parent), str(HERE.parent.parent),
        os.environ.get("PYTHONPATH", ""),
    ]  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", "-p", "liger_plugin", "-p", "no:cacheprovider",
        "-o", "addopts=", "-o", "log_cli=false", f"--rootdir={checkout}", "-q", "--tb=short",
        "-W", "ignore", "--continue-on-collection-errors", *rest,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return subprocess.run(command, env=environment, cwd=checkout).returncode


def _absolute(arguments: list[str]) -> list[str]:
    """Files of ours seen from the checkout, where pytest runs."""
    found: list[str] = []
    for item in arguments:
        option, equals, path = item.partition("=")
        if option in FILES and equals:
            item = f"{option}={Path(path).resolve()}"
        elif found and found[-1] in FILES:
            item = str(Path(item).resolve())
        found.append(item)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
