"""What a steady call does natively, as LLVM IR: is anything changed, and the replay of a graph.

Both are builtin functions of Python (METH_O) whose self is an array of words.

`fuser_same`: are words of memory as they were, and are the items of a list or tuple the objects
that they were? `fuser.runtime.watch` writes the words.
`fuser_replay`: a CUDA graph on a stream, in the order of an event. `fuser.runtime.replay` does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from enum import IntEnum

from fuser.backend.function import Module
from fuser.backend.text import Reg, integer
from fuser.runtime.native_guards import NUMPY_DATA
from fuser.runtime.native_words import NULL, Writer, symbol

IMPORTS = (
    "PyList_GetItem", "PyTuple_GetItem", "PyLong_AsVoidPtr", "PyLong_FromLong", "PyErr_Occurred",
    "PyObject_CallOneArg", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef", "Py_DecRef",
)  # fmt: skip
"""Functions of Python."""
DATA_IMPORTS = ("PyList_Type", "PyTuple_Type", "_Py_TrueStruct", "_Py_FalseStruct")
"""Objects of Python."""
EXPORTS = ("fuser_same", "fuser_replay")

SIZE_AT = 16
"""Of a list or a tuple: how many items it has."""

_DECLARATIONS = """
declare ptr @PyList_GetItem(ptr, i64)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyErr_Occurred()
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i32 @memcmp(ptr, ptr, i64)
"""


class Same(IntEnum):
    """Words of a watch. A group is (bytes, rows, their address), a row is an address and what was
    there; a place is an index of the list and the object that was there."""

    GROUPS = 0
    GROUP_TABLE = 1
    PLACES = 2
    PLACE_TABLE = 3
    LENGTH = 4  # of the list


SAME_WORDS = 8
GROUP_WORDS = 3


class Replay(IntEnum):
    """Words of a replay: functions of the driver, and what they are called with."""

    GET_CONTEXT = 0
    PUSH_CONTEXT = 1
    POP_CONTEXT = 2
    IS_CAPTURING = 3
    WAIT = 4
    LAUNCH = 5
    RECORD = 6
    CONTEXT = 7
    GRAPH = 8
    EVENT = 9
    FAILED = 10


REPLAY_WORDS = 12
STEPS = (
    "cuCtxPushCurrent", "cuStreamIsCapturing", "cuStreamWaitEvent", "cuGraphLaunch",
    "cuEventRecord",
)  # fmt: skip
"""What a replay does, in order."""
FAILED_SHIFT = 32
"""Above these bits of the number that FAILED is called with: which step it was."""


def calls_ir(data: Mapping[str, int]) -> str:
    """The text. data: the addresses of DATA_IMPORTS."""
    module = Module()
    _write_words(module)
    _write_objects(module)
    _write_same(module)
    _write_replay(module)
    text = str(module)
    for name, address in data.items():  # may be farther away than a reference to data reaches
        text = text.replace(f"@{name}", f"inttoptr (i64 {address} to ptr)")
    return _DECLARATIONS + text


def _write_words(module: Module) -> None:
    """record -> whether all words are as they were."""
    f = Writer(module, "words_same", "i1", "ptr")
    (record,) = f.args
    table = f.word(record, Same.GROUP_TABLE, "ptr")

    def group(i: Reg, _: list[Reg]) -> list[Reg]:
        entry = f.gep(table, f.mul(i, 8 * GROUP_WORDS))
        size, count, rows = f.word(entry, 0), f.word(entry, 1), f.word(entry, 2, "ptr")

        def words() -> list[Reg]:
            def one(j: Reg, _: list[Reg]) -> list[Reg]:
                row = f.gep(rows, f.mul(j, 16))
                f.need(f.icmp("eq", f.load("i64", f.word(row, 0, "ptr"), 8), f.word(row, 1)))
                return []

            f.loop(integer(0), count, 1, [], one)
            return []

        def ranges() -> list[Reg]:
            def one(j: Reg, _: list[Reg]) -> list[Reg]:
                row = f.gep(rows, f.mul(j, f.add(size, 8)))
                differs = f.call("i32", "memcmp", f.word(row, 0, "ptr"), f.gep(row, 8), size)
                f.need(f.icmp("eq", differs, 0))
                return []

            f.loop(integer(0), count, 1, [], one)
            return []

        f.when(f.icmp("eq", size, 8), words, ranges)
        return []

    f.loop(integer(0), f.word(record, Same.GROUPS), 1, [], group)
    f.finish(integer(1, "i1"))


def _write_objects(module: Module) -> None:
    """record, list or tuple -> whether its items are those that they were, at the places that
    count."""
    f = Writer(module, "objects_same", "i1", "ptr", "ptr")
    record, given = f.args
    kind = f.field(given, 8)
    listed = f.icmp("eq", kind, symbol("PyList_Type"))
    f.need(f.either(listed, f.icmp("eq", kind, symbol("PyTuple_Type"))))
    f.need(f.icmp("eq", f.field(given, SIZE_AT, "i64"), f.word(record, Same.LENGTH)))
    table = f.word(record, Same.PLACE_TABLE, "ptr")

    def compare(get: str) -> Callable[[], list[Reg]]:
        def one(i: Reg, _: list[Reg]) -> list[Reg]:
            row = f.gep(table, f.mul(i, 16))
            item = f.call("ptr", get, given, f.word(row, 0))
            f.need(f.icmp("eq", item, f.word(row, 1, "ptr")))
            return []

        return lambda: f.loop(integer(0), f.word(record, Same.PLACES), 1, [], one)

    f.when(listed, compare("PyList_GetItem"), compare("PyTuple_GetItem"))
    f.finish(integer(1, "i1"))


def _write_same(module: Module) -> None:
    """self, a list or anything else -> True or False."""
    f = Writer(module, "fuser_same", "ptr", "ptr", "ptr")
    f.linkage = ""
    self, given = f.args
    record = f.field(self, NUMPY_DATA)
    some = f.icmp("ne", f.word(record, Same.PLACES), 0)
    (objects,) = f.when(
        some, lambda: [f.call("i1", "objects_same", record, given)], lambda: [integer(1, "i1")]
    )
    (same,) = f.when(
        objects, lambda: [f.call("i1", "words_same", record)], lambda: [integer(0, "i1")]
    )
    f.finish(_truth(f, same))


def _truth(f: Writer, condition: Reg) -> Reg:
    found = f.select(condition, symbol("_Py_TrueStruct"), symbol("_Py_FalseStruct"))
    f.call_void("Py_IncRef", found)
    return found


def _write_replay(module: Module) -> None:
    """self, stream -> True; False, having done nothing, where the stream is being captured."""
    f = Writer(module, "fuser_replay", "ptr", "ptr", "ptr")
    f.linkage = ""
    got = f.room(1)
    self, given = f.args
    record = f.field(self, NUMPY_DATA)
    stream = f.call("ptr", "PyLong_AsVoidPtr", given)

    def refused() -> list[Reg]:
        f.need(f.icmp("eq", f.call("ptr", "PyErr_Occurred"), NULL))
        return []

    f.when(f.icmp("eq", stream, NULL), refused)
    none = integer(0, "i32")
    thread = f.call("ptr", "PyEval_SaveThread")
    context, event = f.word(record, Replay.CONTEXT, "ptr"), f.word(record, Replay.EVENT, "ptr")
    f.store(NULL, got, 8)
    f.through("i32", f.word(record, Replay.GET_CONTEXT, "ptr"), got)
    elsewhere = f.icmp("ne", f.load("ptr", got, 8), context)
    done = idle = integer(0)

    def through(word: Replay, *args: Reg) -> Callable[[], list[Reg]]:
        return lambda: [f.through("i32", f.word(record, word, "ptr"), *args)]

    f.store(integer(0), got, 8)
    (status,) = f.when(elsewhere, through(Replay.PUSH_CONTEXT, context), lambda: [none])
    pushed = f.both(elsewhere, f.icmp("eq", status, 0))
    steps = (
        (Replay.IS_CAPTURING, (stream, got)),
        (Replay.WAIT, (stream, event, none)),
        (Replay.LAUNCH, (f.word(record, Replay.GRAPH, "ptr"), stream)),
        (Replay.RECORD, (event, stream)),
    )
    for word, args in steps:
        # what failed, or is being captured, does no more
        succeeded = f.icmp("eq", status, 0)
        done = f.add(done, f.convert("zext", succeeded, "i64"))
        go = succeeded if word is Replay.IS_CAPTURING else f.both(succeeded, idle)
        (status,) = f.when(go, through(word, *args), functools.partial(list, [status]))
        if word is Replay.IS_CAPTURING:
            idle = f.icmp("eq", f.load("i32", got, 8), 0)
    failed = f.icmp("ne", status, 0)

    def pop() -> list[Reg]:
        f.through("i32", f.word(record, Replay.POP_CONTEXT, "ptr"), got)
        return []

    f.when(pushed, pop)
    f.call_void("PyEval_RestoreThread", thread)

    def fail() -> list[Reg]:
        code = f.add(f.convert("zext", status, "i64"), f.mul(done, 1 << FAILED_SHIFT))
        number = f.call("ptr", "PyLong_FromLong", code)
        function = f.word(record, Replay.FAILED, "ptr")
        raised = f.call("ptr", "PyObject_CallOneArg", function, number)
        f.call_void("Py_DecRef", number)
        return [raised]  # null, and Python's error is set

    (answer,) = f.when(failed, fail, lambda: [_truth(f, idle)])
    f.finish(answer)
