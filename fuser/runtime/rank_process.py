"""What runs in the process of a rank: it loads the rank's plan and runs it when it is told to.

Orders and answers are lines of JSON on a socket; arrays lie in memory that the parent shares. The
process ends when the socket does.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np

from fuser.errors import FuserError
from fuser.runtime.memory import align
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program, TensorSpec
from fuser.runtime.rank_memory import ProcessRank, mapped

ALIGNMENT = 64


def ends_of(program: Program) -> tuple[list[int], int]:
    """Where inputs and outputs lie in a rank's shared memory, in order, and its bytes."""
    starts, top = [], 0
    for spec in (*program.inputs, *program.outputs):
        starts.append(top)
        top += align(spec.bytes, ALIGNMENT)
    return starts, top


def views(memory: np.ndarray, program: Program) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The inputs and the outputs in a rank's shared memory."""
    starts, _ = ends_of(program)
    specs = (*program.inputs, *program.outputs)
    arrays = [_view(memory, start, spec) for start, spec in zip(starts, specs, strict=True)]
    return arrays[: len(program.inputs)], arrays[len(program.inputs) :]


def _view(memory: np.ndarray, start: int, spec: TensorSpec) -> np.ndarray:
    return memory[start : start + spec.bytes].view(spec.dtype.numpy).reshape(spec.shape)


class Rank:
    """The rank of this process, as the first order says: its number, descriptors, plan file."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.rank, self.ranks = order["rank"], order["ranks"]
        self.device = order["device"]
        self.plan = Plan.load(order["plan"], threads=order["threads"], device=self.device)
        if not self.plan.target.is_cuda:
            peers = {int(rank): socket.socket(fileno=fd) for rank, fd in order["peers"].items()}
            slots = mapped(order["slots"], order["slots_bytes"])
            self.plan.join(ProcessRank(self.rank, peers, slots))
        _, size = ends_of(self.plan.program)
        self.inputs, self.outputs = views(mapped(order["ends"], size), self.plan.program)

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Do what the parent asks for."""
        match order["do"]:
            case "id":
                from fuser.runtime.nccl import unique_id

                return {"id": unique_id().hex()}
            case "join":
                from fuser.runtime.nccl import NcclRank

                token = bytes.fromhex(order["id"])
                self.plan.join(NcclRank(self.rank, self.ranks, token, self.device))
            case "run":
                self.run()
            case "time":
                times = self.plan.executor.time_replays(
                    self.inputs, order["iterations"], order["warmup"]
                )
                return {"seconds": times}
            case "kernels":
                runs = [self.plan.executor.time_kernels(self.inputs) for _ in range(order["runs"])]
                return {"seconds": runs}
        return {}

    def run(self) -> None:
        executor: Any = self.plan.executor
        if self.plan.target.is_cuda:
            for target, array in zip(self.outputs, executor.run(self.inputs), strict=True):
                target[...] = array
        else:
            executor.run_into(self.inputs, self.outputs)


def main(descriptor: int) -> None:
    """Serve the parent at the other end of a socket until it hangs up."""
    control = socket.socket(fileno=descriptor)
    rank: Rank | None = None
    with contextlib.suppress(ConnectionError), control, control.makefile("rw") as lines:
        for line in lines:
            try:
                if rank is None:
                    rank = Rank(json.loads(line))
                    found: dict[str, Any] = {
                        "device": rank.plan.device_name,
                        "peak_memory_bytes": rank.plan.peak_memory_bytes,
                    }
                else:
                    found = rank.answer(json.loads(line))
            except FuserError as error:
                found = {"error": error.what, "where": error.where, "hint": error.hint}
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}"}
            lines.write(json.dumps(found) + "\n")
            lines.flush()
