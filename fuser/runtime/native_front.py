"""Kernels as builtin functions of Python, as LLVM IR: from `kernel[grid](...)` to a door.

`fuser_bind` (METH_O) is a kernel: its self is a record of the words of `Front`. It is called with a
grid and gives `fuser_launch` (METH_FASTCALL | METH_KEYWORDS), whose self is the tuple of the record
and the grid. That one looks for the form of the call, computes the grid where it is a function, and
asks the doors of the form, first the one that took the last call. Where none takes it, and where
anything that is watched is not as it was, it calls the kernel's function in Python with the grid
and the arguments, and gives what that gives.

Other threads may replace forms and doors while a grid is computed or a kernel is launched: the
tuples that hold them are held until the call is over.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.function import Module
from fuser.backend.text import Reg, integer
from fuser.runtime.native_guards import NUMPY_DATA
from fuser.runtime.native_words import (
    GRID_VALUES,
    MOST,
    NULL,
    WATCH_WORDS,
    Form,
    Front,
    Watch,
    Writer,
    symbol,
)

IMPORTS = (
    "PyDict_GetItemWithError", "PyDict_Copy", "PyDict_SetItem", "PyList_Size", "PyCallable_Check",
    "PyObject_Vectorcall", "PyCFunction_NewEx", "PyTuple_New", "PyTuple_SetItem",
)  # fmt: skip
DATA_IMPORTS = ("PyList_Type",)
EXPORTS = ("fuser_bind", "fuser_launch")

DECLARATIONS = """
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare ptr @PyDict_Copy(ptr)
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare i64 @PyList_Size(ptr)
declare i32 @PyCallable_Check(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyCFunction_NewEx(ptr, ptr, ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
"""

CELL_OBJECT = 16
"""Of a cell: the object that it holds."""
TAKEN, REFUSED, RAISED = 1, 0, -1


def write_front(module: Module) -> None:
    """Calls `attempt` and `extents` of `fuser.runtime.native_door`."""
    _write_watches(module)
    _write_find(module)
    _write_compute(module)
    _write_doors(module)
    _write_try(module)
    _write_launch(module)
    _write_bind(module)


def _write_watches(module: Module) -> None:
    """front -> whether all that is watched is as it was."""
    f = Writer(module, "watches", "i1", "ptr")
    (front,) = f.args
    table = f.word(front, Front.WATCHED, "ptr")

    def one(i: Reg, _: list[Reg]) -> list[Reg]:
        row = f.gep(table, f.mul(i, 8 * WATCH_WORDS))
        held, key, kind = f.word(row, 1, "ptr"), f.word(row, 2, "ptr"), f.word(row, 0)
        (found,) = f.when(
            f.icmp("eq", kind, int(Watch.CELL)),
            lambda: [f.field(held, CELL_OBJECT)],
            lambda: [f.call("ptr", "PyDict_GetItemWithError", held, key)],
        )

        def is_empty_list() -> None:
            f.need(f.icmp("ne", found, NULL))
            f.need(f.icmp("eq", f.field(found, 8), symbol("PyList_Type")))
            f.need(f.icmp("eq", f.call("i64", "PyList_Size", found), 0))

        cases: dict[Watch, Callable[[], None]] = {
            Watch.ABSENT: lambda: f.need(f.icmp("eq", found, NULL)),
            Watch.EMPTY: is_empty_list,
            Watch.SAME: lambda: f.need(f.icmp("eq", found, f.word(row, 3, "ptr"))),
            Watch.CELL: lambda: f.need(f.icmp("eq", found, f.word(row, 3, "ptr"))),
        }
        f.switch(kind, [cases[kind] for kind in Watch])
        return []

    f.loop(integer(0), f.word(front, Front.WATCHES), 1, [], one)
    f.finish(integer(1, "i1"))


def _write_find(module: Module) -> None:
    """forms, arguments by position, names of the others -> words of the form, or null."""
    f = Writer(module, "names_fit", "i1", "ptr", "ptr")
    ours, given = f.args

    def compare() -> list[Reg]:
        f.need(f.both(f.icmp("ne", ours, NULL), f.icmp("ne", given, NULL)))
        count = f.call("i64", "PyTuple_Size", ours)
        f.need(f.icmp("eq", f.call("i64", "PyTuple_Size", given), count))

        def one(i: Reg, _: list[Reg]) -> list[Reg]:
            a, b = (f.call("ptr", "PyTuple_GetItem", item, i) for item in (ours, given))
            f.need(f.icmp("eq", a, b))  # names in programs are one object each
            return []

        f.loop(integer(0), count, 1, [], one)
        return []

    f.when(f.icmp("ne", ours, given), compare)
    f.finish(integer(1, "i1"))

    f = Writer(module, "find_form", "ptr", "ptr", "i64", "ptr")
    forms, count, names = f.args

    def one_form(i: Reg, carried: list[Reg]) -> list[Reg]:
        form = f.field(f.call("ptr", "PyTuple_GetItem", forms, i), NUMPY_DATA)

        def fits() -> list[Reg]:
            return [f.call("i1", "names_fit", f.word(form, Form.NAMES, "ptr"), names)]

        as_many = f.icmp("eq", f.word(form, Form.COUNT), count)
        (ours,) = f.when(as_many, fits, lambda: [integer(0, "i1")])
        return [f.select(ours, form, carried[0])]

    (found,) = f.loop(integer(0), f.call("i64", "PyTuple_Size", forms), 1, [NULL], one_form)
    f.finish(found)


def _write_compute(module: Module) -> None:
    """form, function, arguments -> the grid that the function gives for them; null: it raised."""
    f = Writer(module, "compute", "ptr", "ptr", "ptr", "ptr")
    form, function, args = f.args
    table = f.call("ptr", "PyDict_Copy", f.word(form, Form.TABLE, "ptr"))
    f.need(f.icmp("ne", table, NULL))
    names = f.word(form, Form.TABLE_NAMES, "ptr")

    def one(i: Reg, carried: list[Reg]) -> list[Reg]:
        name = f.load("ptr", f.gep(names, i, "ptr"), 8)

        def put() -> list[Reg]:
            value = f.load("ptr", f.gep(args, i, "ptr"), 8)
            return [f.call("i32", "PyDict_SetItem", table, name, value)]

        (failed,) = f.when(f.icmp("ne", name, NULL), put, lambda: [integer(0, "i32")])
        return [f.binary("or", carried[0], failed)]

    zero = integer(0, "i32")
    (failed,) = f.loop(integer(0), f.word(form, Form.GIVEN), 1, [zero], one)

    def ask() -> list[Reg]:
        return [f.call("ptr", "PyObject_CallOneArg", function, table)]

    (found,) = f.when(f.icmp("eq", failed, 0), ask, lambda: [NULL])
    f.call_void("Py_DecRef", table)
    f.finish(found)


def _write_doors(module: Module) -> None:
    """form, arguments, their count, grid, place of the answer -> TAKEN, REFUSED or RAISED."""
    f = Writer(module, "ask_doors", "i64", "ptr", "ptr", "i64", "ptr", "ptr")
    form, args, count, grid, answer = f.args
    doors = f.word(form, Form.DOORS, "ptr")
    f.call_void("Py_IncRef", doors)
    many = f.call("i64", "PyTuple_Size", doors)
    last = f.word(form, Form.LAST)  # of other doors, if these are new
    last = f.select(f.icmp("slt", last, many), last, integer(0))

    def one(i: Reg, carried: list[Reg]) -> list[Reg]:
        def ask() -> list[Reg]:
            # the last one first, then the others in order
            before = f.icmp("sle", i, last)
            at = f.select(before, f.sub(i, 1), i)
            at = f.select(f.icmp("eq", i, 0), last, at)
            pair = f.call("ptr", "PyTuple_GetItem", doors, at)
            record, held = (f.call("ptr", "PyTuple_GetItem", pair, integer(n)) for n in range(2))
            door = f.field(record, NUMPY_DATA)
            status = f.call("i64", "attempt", door, args, count, grid)

            def take() -> list[Reg]:
                f.call_void("Py_IncRef", held)
                f.store(held, answer, 8)
                f.store(at, f.gep(form, 8 * Form.LAST), 8)
                return []

            f.when(f.icmp("eq", status, TAKEN), take)
            return [status]

        return f.when(f.icmp("eq", carried[0], REFUSED), ask, lambda: [carried[0]])

    (status,) = f.loop(integer(0), many, 1, [integer(REFUSED)], one)
    f.call_void("Py_DecRef", doors)
    f.finish(status)


def _write_try(module: Module) -> None:
    """front, forms, grid, arguments, how many by position, names, places of the answer and of a
    computed grid -> TAKEN, REFUSED or RAISED. What it stores is the caller's."""
    f = Writer(module, "try_front", "i64", "ptr", "ptr", "ptr", "ptr", "i64", "ptr", "ptr", "ptr")
    front, forms, grid, args, count, names, answer, computed = f.args
    place = f.room(GRID_VALUES)
    f.need(f.call("i1", "watches", front))
    form = f.call("ptr", "find_form", forms, count, names)
    f.need(f.icmp("ne", form, NULL))
    kind = f.field(grid, 8)
    plain = f.either(*(f.icmp("eq", kind, symbol(n)) for n in ("PyTuple_Type", "PyLong_Type")))

    def compute() -> list[Reg]:
        f.need(f.icmp("ne", f.call("i32", "PyCallable_Check", grid), 0))
        found = f.call("ptr", "compute", form, grid, args)
        f.store(found, computed, 8)
        return [found]

    (extents,) = f.when(plain, lambda: [grid], compute)
    given = f.word(form, Form.GIVEN)
    extra = f.word(form, Form.EXTRA)

    def go() -> list[Reg]:
        f.need(f.call("i1", "extents", extents, place))

        def with_defaults() -> list[Reg]:
            room = f.op("ptr", f"alloca [{MOST} x ptr], align 8", "all")
            f.need(f.icmp("sle", f.add(given, extra), MOST))
            _copy(f, args, room, given)
            _copy(f, f.word(form, Form.EXTRA_OBJECTS, "ptr"), f.gep(room, given, "ptr"), extra)
            return [room]

        (all_of_them,) = f.when(f.icmp("ne", extra, 0), with_defaults, lambda: [args])
        return [f.call("i64", "ask_doors", form, all_of_them, f.add(given, extra), place, answer)]

    raised = f.icmp("eq", extents, NULL)
    (status,) = f.when(raised, lambda: [integer(RAISED)], go)
    f.finish(status)


def _copy(f: Writer, source: Reg, to: Reg, count: Reg) -> None:
    def one(i: Reg, _: list[Reg]) -> list[Reg]:
        f.store(f.load("ptr", f.gep(source, i, "ptr"), 8), f.gep(to, i, "ptr"), 8)
        return []

    f.loop(integer(0), count, 1, [], one)


def _write_launch(module: Module) -> None:
    f = Writer(module, "fuser_launch", "ptr", "ptr", "ptr", "i64", "ptr")
    f.linkage = ""
    self, args, count, names = f.args
    answer, computed = f.room(1), f.room(1)
    f.store(NULL, computed, 8)
    record, grid = (f.call("ptr", "PyTuple_GetItem", self, integer(n)) for n in range(2))
    front = f.field(record, NUMPY_DATA)
    forms = f.word(front, Front.FORMS, "ptr")
    f.call_void("Py_IncRef", forms)
    status = f.call(
        "i64", "try_front", front, forms, grid, args, count, names, answer, computed
    )  # fmt: skip
    f.call_void("Py_DecRef", forms)
    found = f.load("ptr", computed, 8)

    def otherwise() -> list[Reg]:
        # a grid is not computed twice, but for one that could be taken for a function
        def check() -> list[Reg]:
            again = f.icmp("ne", f.call("i32", "PyCallable_Check", found), 0)
            return [f.select(again, grid, found)]

        (chosen,) = f.when(f.icmp("ne", found, NULL), check, lambda: [grid])
        named = f.icmp("ne", names, NULL)
        (more,) = f.when(
            named, lambda: [f.call("i64", "PyTuple_Size", names)], lambda: [integer(0)]
        )
        total = f.add(count, more)
        room = f.op("ptr", f"alloca ptr, {f.add(total, 1).typed}, align 8", "all")
        f.store(chosen, room, 8)
        _copy(f, args, f.gep(room, 8), total)
        function = f.word(front, Front.FALLBACK, "ptr")
        return [f.call("ptr", "PyObject_Vectorcall", function, room, f.add(count, 1), names)]

    def done() -> list[Reg]:
        taken = f.icmp("eq", status, TAKEN)
        return f.when(taken, lambda: [f.load("ptr", answer, 8)], lambda: [NULL])

    (result,) = f.when(f.icmp("eq", status, REFUSED), otherwise, done)

    def drop() -> list[Reg]:
        f.call_void("Py_DecRef", found)
        return []

    f.when(f.icmp("ne", found, NULL), drop)
    f.finish(result)


def _write_bind(module: Module) -> None:
    """record, grid -> the launcher."""
    f = Writer(module, "fuser_bind", "ptr", "ptr", "ptr")
    f.linkage = ""
    record, grid = f.args
    pair = f.call("ptr", "PyTuple_New", integer(2))
    f.need(f.icmp("ne", pair, NULL))
    for place, item in enumerate((record, grid)):
        f.call_void("Py_IncRef", item)
        f.call("i32", "PyTuple_SetItem", pair, integer(place), item)
    method = f.word(f.field(record, NUMPY_DATA), Front.LAUNCH, "ptr")
    made = f.call("ptr", "PyCFunction_NewEx", method, pair, NULL)
    f.call_void("Py_DecRef", pair)
    f.finish(made)
