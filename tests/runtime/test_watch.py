"""Native comparisons of memory, and what a native replay of a graph hands to the CUDA driver."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from fuser.errors import DeviceError
from fuser.runtime import door, driver, replay
from fuser.runtime.memory import address
from fuser.runtime.native_calls import Replay
from fuser.runtime.watch import dicts_tell, make_watch, version_address

pytestmark = pytest.mark.skipif(bool(door.problem()), reason=door.problem())


def test_words_and_ranges_are_compared() -> None:
    words, pages = np.arange(40), np.arange(30, dtype=np.int64)
    watch = make_watch(
        [(8, [address(words[i:]) for i in (0, 7, 39)]), (80, [address(pages), address(pages[10:])])]
    )
    assert watch(None)
    for array, seen, unseen in ((words, (0, 7, 39), (1, 38)), (pages, (0, 9, 10, 19), (20,))):
        for places, same in ((seen, False), (unseen, True)):
            for place in places:
                array[place] += 1
                assert watch(None) is same
                array[place] -= 1
                assert watch(None)


def test_an_address_is_read_only_where_the_words_before_it_hold() -> None:
    """A pointer that changed is not followed: what it pointed at may be gone."""
    pointer = np.zeros(1, np.int64)
    value = np.full(1, 5)
    pointer[0] = address(value)
    watch = make_watch([(8, [address(pointer)]), (8, [address(value)])])
    value[0] = 6
    assert not watch(None)
    value[0] = 5
    assert watch(None)
    pointer[0] = 8
    assert not watch(None)


def test_items_of_a_list_or_tuple_are_compared() -> None:
    items: list[Any] = [object() for _ in range(5)]
    watch = make_watch([], objects=[(1, items[1]), (4, items[4])], length=5)
    assert watch(items) and watch(tuple(items))
    assert watch([None, items[1], 3, [], items[4]])
    for other in (items[:4], [*items, 1], [*items[:4], object()], tuple(items[1:]), None, 7):
        assert not watch(other)


def test_versions_of_dicts() -> None:
    if not dicts_tell():
        pytest.skip("dicts of this Python have no versions")
    table: dict[str, Any] = {"a": 1}
    watch = make_watch([(8, [version_address(table)])], table)
    assert watch(None)
    table["b"] = 2
    assert not watch(None)
    del table["b"]
    assert not watch(None)  # no version comes again


CONTEXT, OTHER, STREAM, GRAPH, EVENT = 0x1111, 0x2222, 0x3333, 0x4444, 0x5555


class Driver:
    """Answers calls, and keeps what it was called with. fails: a function that refuses."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.current, self.capturing, self.fails = CONTEXT, 0, ""
        pointer = ctypes.c_void_p

        def make(name: str, types: tuple[Any, ...]) -> Any:
            return ctypes.CFUNCTYPE(ctypes.c_int32, *types)(
                lambda *values: self.answer(name, *values)
            )

        self.kept = {
            Replay.GET_CONTEXT: make("get", (pointer,)),
            Replay.PUSH_CONTEXT: make("push", (pointer,)),
            Replay.POP_CONTEXT: make("pop", (pointer,)),
            Replay.IS_CAPTURING: make("capturing", (pointer, pointer)),
            Replay.WAIT: make("wait", (pointer, pointer, ctypes.c_int32)),
            Replay.LAUNCH: make("launch", (pointer, pointer)),
            Replay.RECORD: make("record", (pointer, pointer)),
        }

    def answer(self, name: str, *values: Any) -> int:
        if name == "get":
            ctypes.c_uint64.from_address(values[0]).value = self.current
        elif name == "capturing":
            ctypes.c_int32.from_address(values[1]).value = self.capturing
            self.calls.append((name, values[0]))
        elif name == "pop":
            self.calls.append(name)
        else:
            self.calls.append((name, *values))
        return 1 if name == self.fails else 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    functions = {
        word: ctypes.cast(function, ctypes.c_void_p).value or 0
        for word, function in made.kept.items()
    }
    monkeypatch.setattr(replay, "_driver", lambda: functions)
    monkeypatch.setattr(driver, "context", lambda ordinal: CONTEXT)
    return made


ALL = [
    ("capturing", STREAM), ("wait", STREAM, EVENT, 0), ("launch", GRAPH, STREAM),
    ("record", EVENT, STREAM),
]  # fmt: skip


def test_a_replay_is_in_the_order_of_its_event(fake: Driver) -> None:
    run = replay.make_replay(0, GRAPH, EVENT)
    assert run is not None
    assert run(STREAM) is True
    assert fake.calls == ALL
    fake.calls.clear()
    assert run(0) is True  # the default stream
    assert fake.calls[1] == ("wait", None, EVENT, 0)
    with pytest.raises(TypeError):
        run("a stream")  # type: ignore[arg-type]


def test_a_replay_brings_its_context(fake: Driver) -> None:
    run = replay.make_replay(0, GRAPH, EVENT)
    assert run is not None
    fake.current = OTHER
    assert run(STREAM)
    assert fake.calls == [("push", CONTEXT), *ALL, "pop"]


def test_a_stream_that_is_captured_is_left_alone(fake: Driver) -> None:
    run = replay.make_replay(0, GRAPH, EVENT)
    assert run is not None
    fake.capturing = 1
    assert run(STREAM) is False
    assert fake.calls == ALL[:1]


@pytest.mark.parametrize(
    ("step", "name", "done"),
    [
        ("capturing", "cuStreamIsCapturing", 1), ("wait", "cuStreamWaitEvent", 2),
        ("launch", "cuGraphLaunch", 3), ("record", "cuEventRecord", 4),
    ],
)  # fmt: skip
def test_what_the_driver_refuses_is_named(
    fake: Driver, monkeypatch: pytest.MonkeyPatch, step: str, name: str, done: int
) -> None:
    monkeypatch.setattr(driver, "call", lambda *_: None)

    class Codes:
        @staticmethod
        def CUresult(status: int) -> Any:
            raise ValueError(status)

    monkeypatch.setattr(driver, "api", lambda: Codes)
    run = replay.make_replay(0, GRAPH, EVENT)
    assert run is not None
    fake.fails = step
    with pytest.raises(DeviceError, match=f"{name} failed: 1"):
        run(STREAM)
    assert fake.calls == ALL[:done]
    fake.calls.clear()
    fake.current, fake.fails = OTHER, "push"
    with pytest.raises(DeviceError, match="cuCtxPushCurrent failed: 1"):
        run(STREAM)
    assert fake.calls == [("push", CONTEXT)]
