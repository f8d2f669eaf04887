"""`python -m fuser` and the `fuser` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; returns through SystemExit with the documented exit code."""
    from fuser.cli.main import run

    sys.exit(run())


if __name__ == "__main__":
    main()
