"""The access log of a server: a line for each request, once it is answered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import unquote

MOST_LETTERS = 200
"""Letters of a request in a line: clients choose the path, and how long it is."""

AccessLog = Callable[[str], None]
"""What takes a line, without its end."""


def line(client: str, protocol: str, asked: str, status: int | str, seconds: float) -> str:
    """Time (UTC), client, protocol, request, status, milliseconds, with blanks between them. What
    clients choose is a string of JSON: it ends no line and hides nothing.

        2026-11-28T09:30:00.125Z 127.0.0.1 http "POST /v2/models/mlp/infer" 200 1.204 ms
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
    shown = asked if len(asked) <= MOST_LETTERS else f"{asked[:MOST_LETTERS]}..."
    return f"{now}Z {client} {protocol} {json.dumps(shown)} {status} {seconds * 1e3:.3f} ms"


def write(log: AccessLog | None, client: str, protocol: str, asked: str, status: int | str,
          began: float) -> None:  # fmt: skip
    """Give a line to the log, if there is one. began: of time.monotonic()."""
    if log is not None:
        log(line(client, protocol, asked, status, time.monotonic() - began))


def address_of(peer: str) -> str:
    """The address of a client as gRPC tells it: "ipv4:127.0.0.1:5000" -> "127.0.0.1"."""
    kind, colon, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind if colon else "-"
    return rest.rpartition(":")[0].strip("[]")
