"""Run a script whose `import triton`, and that of some packages, is fuser.triton:

python -m fuser.triton [--packages a,b] script.py [arguments]
"""

from __future__ import annotations

import sys
from pathlib import Path

from fuser.errors import UsageError
from fuser.triton.imports import bind, imports

USAGE = "python -m fuser.triton [--packages a,b] script.py [arguments]"


def main(arguments: list[str]) -> None:
    """Run the script; its own arguments follow it."""
    packages: list[str] = []
    while arguments and arguments[0].startswith("-"):
        first, _, text = arguments.pop(0).partition("=")
        if first != "--packages":
            raise UsageError(f"unknown option {first}", hint=USAGE)
        if not text:
            if not arguments:
                raise UsageError("--packages without names", hint=USAGE)
            text = arguments.pop(0)
        packages += [name for name in text.split(",") if name]
    if not arguments:
        raise UsageError("no script", hint=USAGE)
    script = Path(arguments[0])
    if not script.is_file():
        raise UsageError(f"there is no file {script}", hint=USAGE)
    sys.argv = list(arguments)
    sys.path[0] = str(script.resolve().parent)
    names = vars(sys.modules["__main__"])
    with imports(*packages):
        bind(names)
        names.update(__file__=str(script), __spec__=None, __package__=None, __doc__=None)
        exec(compile(script.read_bytes(), str(script), "exec"), names)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f"error: {error}")
