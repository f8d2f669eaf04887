"""`python -m fuser` and the `fuser` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; returns through SystemExit with the documented exit code."""
    try:
        from fuser.cli.main import run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("error: the commands need the package click; pip install click")
    sys.exit(run())


if __name__ == "__main__":
    main()
