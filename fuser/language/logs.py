"""FUSER_LOG: what is told on the standard error stream."""

from __future__ import annotations

import functools
import logging

from fuser.config import Config
from fuser.errors import UsageError

NAMES = {"recompiles": "fuser.recompiles", "launches": "fuser.launches"}
"""What FUSER_LOG may name, and the logger that tells it."""


@functools.cache
def start() -> None:
    """Set the handlers up that FUSER_LOG asks for, once. Raises UsageError."""
    for name in filter(None, Config.from_environment().log.split(",")):
        logger = NAMES.get(name.strip())
        if logger is None:
            raise UsageError(f"FUSER_LOG={name} is unknown", hint=f"known: {', '.join(NAMES)}")
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"fuser {name.strip()}: %(message)s"))
        found = logging.getLogger(logger)
        found.addHandler(handler)
        found.setLevel(logging.INFO)
