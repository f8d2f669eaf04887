"""The processes of the ranks, as their parent sees them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuser.errors import DeviceError
from fuser.runtime.program import Program
from fuser.runtime.rank_memory import SLOT, mapped, shared_file
from fuser.runtime.rank_process import ends_of, views

_START = "from fuser.runtime.rank_process import main\nmain(int(sys.argv[1]))"


class Ranks:
    """One process a rank, each with its plan loaded. inputs, outputs: by rank, in memory that it
    shares with its process. answers: what each said of its plan.

    plans: a plan file a rank; programs: what is in them. threads: of a rank on a CPU; devices: the
    GPU of each rank. Raises DeviceError where a rank does not start.
    """

    def __init__(
        self, plans: Sequence[Path], programs: Sequence[Program], threads: int | None,
        devices: Sequence[int],
    ) -> None:  # fmt: skip
        self.count = len(plans)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controls: list[socket.socket] = []
        self.inputs: list[list[np.ndarray]] = []
        self.outputs: list[list[np.ndarray]] = []
        held: list[int] = []  # descriptors that the children have now
        try:
            peers: list[dict[int, int]] = [{} for _ in plans]
            for one, other in itertools.combinations(range(self.count), 2):
                ends = socket.socketpair()
                for mine, theirs, end in ((one, other, ends[0]), (other, one, ends[1])):
                    peers[mine][theirs] = end.detach()
                    held.append(peers[mine][theirs])
            slots = shared_file(SLOT * self.count)
            held.append(slots)
            for rank, (plan, program) in enumerate(zip(plans, programs, strict=True)):
                _, size = ends_of(program)
                ends_fd = shared_file(size)
                held.append(ends_fd)
                inputs, outputs = views(mapped(ends_fd, size), program)
                self.inputs.append(inputs)
                self.outputs.append(outputs)
                control = self._start([*peers[rank].values(), slots, ends_fd])
                _send(control, {
                    "rank": rank, "ranks": self.count, "plan": str(plan), "threads": threads,
                    "device": devices[rank], "peers": peers[rank], "slots": slots,
                    "slots_bytes": SLOT * self.count, "ends": ends_fd,
                })  # fmt: skip
            self.answers = self._collect()
            if programs[0].target.is_cuda:
                _send(self._controls[0], {"do": "id"})
                token = self._collect(self._controls[:1])[0]["id"]
                self.ask({"do": "join", "id": token})
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _start(self, descriptors: Sequence[int]) -> socket.socket:
        mine, theirs = socket.socketpair()
        paths = [path for path in sys.path if isinstance(path, str)]
        paths.append(str(Path(__file__).parents[2]))  # where fuser itself is
        program = f"import sys; sys.path[:] = {paths!r}\n{_START}"
        with theirs:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-S", "-c", program, str(theirs.fileno())],
                    pass_fds=[theirs.fileno(), *descriptors],
                    stdin=subprocess.DEVNULL,
                )
            )
        self._controls.append(mine)
        return mine

    def ask(self, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give all ranks an order; their answers. Raises DeviceError where a rank fails; then none
        is left."""
        if not self._controls:
            raise DeviceError("the ranks have ended", hint="compile or load the model again")
        try:
            for control in self._controls:
                _send(control, order)
            return self._collect()
        except BaseException:  # whoever waits for the one that failed would wait for ever
            self.close()
            raise

    def _collect(self, controls: Sequence[socket.socket] | None = None) -> list[dict[str, Any]]:
        asked = self._controls if controls is None else controls
        found: dict[int, dict[str, Any]] = {}
        received = [b""] * len(asked)
        with selectors.DefaultSelector() as selector:
            for rank, control in enumerate(asked):
                selector.register(control, selectors.EVENT_READ, rank)
            while len(found) < len(asked):
                for key, _ in selector.select():
                    data = b""
                    with contextlib.suppress(OSError):
                        data = asked[key.data].recv(1 << 16)
                    if not data:
                        raise DeviceError(f"rank {key.data} is gone")
                    received[key.data] += data
                    if received[key.data].endswith(b"\n"):
                        answer = json.loads(received[key.data])
                        if "error" in answer:
                            raise DeviceError(
                                f"rank {key.data}: {answer['error']}",
                                where=answer.get("where", ""), hint=answer.get("hint", ""),
                            )  # fmt: skip
                        found[key.data] = answer
                        selector.unregister(asked[key.data])
        return [found[rank] for rank in range(len(asked))]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def close(self) -> None:
        """End the processes: they end with their sockets, or at once where they are stuck."""
        for control in self._controls:
            control.close()
        self._controls = []
        for process in self._processes:
            try:
                process.wait(0.5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []


def _send(control: socket.socket, order: Mapping[str, Any]) -> None:
    try:
        control.sendall(json.dumps(order).encode() + b"\n")
    except OSError as error:
        raise DeviceError("a rank is gone") from error
