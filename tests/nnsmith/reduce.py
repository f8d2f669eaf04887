"""A wrong model made small: the graph it is imported as, by the reducer of the random graphs."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from fuser.graph.text import print_graph
from tests.nnsmith.check import drawings_of
from tests.nnsmith.storage import load
from tests.random_graphs.check import Native, check, native_routes, oracle
from tests.random_graphs.reduce import reduced


def print_reduced(path: Path) -> int:
    """Print a small graph and feeds for the first route that is wrong; 0 if none is."""
    drawings = drawings_of(load(path), zlib.crc32(path.stem.encode()))
    routes = {"numpy": oracle, **native_routes(Native(), "cpu")}
    with np.errstate(all="ignore"):
        for kind, d in drawings.items():
            for name, route in routes.items():
                only = {name: route}
                if not check(d, only):
                    continue
                small = reduced(d, lambda trial, only=only: bool(check(trial, only)))
                print(f"{path.stem}, {kind} feeds, {name}")
                print(print_graph(small.graph))
                for key, array in small.feeds.items():
                    print(f"  {key}: {array.dtype}{list(array.shape)} {array.reshape(-1)[:8]}")
                for failure in check(small, only):
                    print(f"  {failure.what}\n{failure.trace}")
                return 1
    print("nothing is wrong")
    return 0
