"""Run a script whose `import onnxruntime`, and that of some packages, is fuser.onnxruntime:

python -m fuser.onnxruntime [--packages a,b] script.py [arguments]
"""

from __future__ import annotations

import sys

from fuser.base.imports import run_script
from fuser.errors import UsageError

if __name__ == "__main__":
    try:
        run_script(
            {"onnxruntime": "fuser.onnxruntime"}, "python -m fuser.onnxruntime", sys.argv[1:]
        )
    except UsageError as error:
        sys.exit(f"error: {error}")
