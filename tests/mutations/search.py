"""python search.py FIRST COUNT: the first seed whose graph fails, by the tree of PYTHONPATH.

Fused programs alone, through the Tile IR interpreter, on the schedules of the three targets in
turn; half of a tile or a lost bound needs no machine code to show. The last line is the result.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(first: int, count: int) -> dict[str, Any]:
    from tests.random_graphs.check import check, routes_of
    from tests.random_graphs.draw import draw

    for seed in range(first, first + count):
        try:
            drawing = draw(seed)
            routes = {
                name: route for name, route in routes_of(None, seed).items()
                if name.startswith("interpreted")
            }  # fmt: skip
            failures = check(drawing, routes)
        except Exception as error:
            return found("proof", seed, first, f"{type(error).__name__}: {error}")
        if failures:
            one = failures[0]
            by = "numbers"
            if one.trace:
                by = "interpreter" if "interpret.py" in one.trace else "proof"
            return found(by, seed, first, one.what)
    return found("nothing", first + count, first, "")


def found(by: str, seed: int, first: int, what: str) -> dict[str, Any]:
    return {"by": by, "seed": seed, "graphs": seed - first + 1, "what": what[:200]}


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))), flush=True)
