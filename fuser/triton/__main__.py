"""Run a script whose `import triton`, and that of some packages, is fuser.triton:

python -m fuser.triton [--packages a,b] script.py [arguments]
"""

from __future__ import annotations

import sys

from fuser.base.imports import run_script
from fuser.errors import UsageError
from fuser.triton.imports import TABLE

if __name__ == "__main__":
    try:
        run_script(TABLE, "python -m fuser.triton", sys.argv[1:])
    except UsageError as error:
        sys.exit(f"error: {error}")
