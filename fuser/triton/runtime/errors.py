"""triton.runtime.errors."""

from __future__ import annotations

from fuser.triton.errors import AutotunerError, InterpreterError, OutOfResources, PTXASError

__all__ = ["AutotunerError", "InterpreterError", "OutOfResources", "PTXASError"]
