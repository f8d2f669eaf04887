"""python -m tests.opinfo.worker DTYPE DIRECTION: the child process that checks samples; an item is
the name of an operator and the place of a sample."""

from __future__ import annotations

import functools
import sys
import time
from dataclasses import asdict
from typing import Any

import torch

from tests.opinfo.cases import samples
from tests.opinfo.check import Outcome, check
from tests.worker_pool import serve


def main(dtype: str, direction: str) -> None:
    torch.set_num_threads(1)

    @functools.lru_cache(maxsize=2)
    def listed(name: str) -> dict[int, Any]:
        return dict(samples(name, dtype, direction))

    def handle(item: str) -> dict[str, Any]:
        name, _, place = item.partition(" ")
        started = time.process_time()
        try:
            outcome = check(name, int(place), listed(name)[int(place)], dtype, direction)
        except Exception as error:  # of the check itself
            text = f"the check raises {type(error).__name__}: {error}"
            outcome = Outcome(name, int(place), "error", text)
        return {**asdict(outcome), "seconds": round(time.process_time() - started, 3)}

    serve(handle)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
