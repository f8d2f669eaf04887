"""The words of the records that `fuser.runtime.native_door` reads, and how its code is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from fuser.backend.function import Function, Module
from fuser.backend.text import Reg, integer

MOST = 64
"""Parameters, numbers, or words on the stack of a formula."""


class Door(IntEnum):
    """Words of a record."""

    COUNT = 0
    PARAMS = 1
    CODE = 2
    CUDA = 3
    BUFFERS = 4
    BUFFER_ARGUMENTS = 5
    # of a launch on the CPU
    ENTRY = 8
    POOL = 9
    ESTIMATE = 10
    THREADS = 12
    SCRATCH = 13
    STRIDE = 14
    BUSY = 15
    MOST_CHUNKS = 18
    # of a launch on a GPU
    LAUNCH = 20
    FUNCTION = 21
    CONTEXT = 22
    GET_CONTEXT = 23
    PUSH_CONTEXT = 24
    POP_CONTEXT = 25
    BLOCK = 26
    SHARED = 27
    ATTRIBUTES = 28
    ATTRIBUTE_COUNT = 29
    GET_STREAM = 30
    ORDINAL = 31
    WORKSPACE = 32
    WORKSPACE_STREAM = 33
    FAILED = 34
    NUMBERS = 35
    # of PyTorch
    DATA = 40
    DTYPE = 41
    DEVICE = 42
    SIZE = 43
    OFFSET = 44
    KEYS_AT = 45
    CURRENT_STREAM = 46
    DEVICE_NUMBER = 47
    # of tensor maps
    MAPS = 48
    MAP_TABLE = 49
    ENCODE_TILED = 50
    ENCODE_WALK = 51


DOOR_WORDS = 56


class Map(IntEnum):
    """Words of the record of a tensor map. What depends on the launch is among its numbers."""

    TYPE = 0
    RANK = 1
    BUFFER = 2
    SWIZZLE = 3
    STEPS = 4  # addresses of 32-bit numbers, as are these:
    BOX = 5
    LOWER = 6
    UPPER = 7
    WALKS = 8  # whether its rows walk through a box
    COLUMNS = 9
    ROWS = 10


MAP_WORDS = 12
MOST_MAPS = 8


class Front(IntEnum):
    """Words of a kernel."""

    FORMS = 0  # a tuple of records
    WATCHES = 1
    WATCHED = 2
    FALLBACK = 3
    LAUNCH = 4  # the definition of fuser_launch


FRONT_WORDS = 8


class Form(IntEnum):
    """Words of a form of calls: how many arguments by position, and which names."""

    COUNT = 0
    NAMES = 1  # a tuple, or null
    DOORS = 2  # a tuple of pairs: a door's record, what the launch gives
    LAST = 3  # of the doors, the one that took the last call
    GIVEN = 4  # arguments of a call
    EXTRA = 5  # arguments that are left to their defaults, and are no constants
    EXTRA_OBJECTS = 6
    TABLE = 7  # arguments by parameter: a dict
    TABLE_NAMES = 8  # of the arguments of a call, null for an option


FORM_WORDS = 16


class Watch(IntEnum):
    """What must hold of a dict's entry: (kind, dict, key, object)."""

    ABSENT = 0
    EMPTY = 1  # a list without items
    SAME = 2  # the object
    CELL = 3  # the object, in a cell in the place of a dict


WATCH_WORDS = 4


class Param(IntEnum):
    """Words of the record of a parameter."""

    KIND = 0
    TYPE = 1
    NUMBER = 3  # of a scalar, -1: none
    MASK = 4  # bits of an integer scalar; of a float 32, 64, or the kind of 16 bits
    LOW = 5
    HIGH = 6
    ALIGN_MASK = 7
    ALIGNED = 8  # 0 must not be, 1 must be, 2 either
    WRITES = 9
    MOST_BYTES = 10
    DTYPE = 11  # NumPy's descriptor, PyTorch's number
    KEYS = 12
    SHARES = 13  # bits of the parameters before it whose storage overlaps
    OBJECT = 14  # of a constant
    DEVICE = 15
    ITEM_BYTES = 16


PARAM_WORDS = 24


class Kind(IntEnum):
    CONSTANT = 0
    INTEGER = 1
    FLOAT = 2
    BOOL = 3
    NUMPY = 4
    TORCH = 5


class Code(IntEnum):
    """Of formulas, on a stack of 64-bit integers; each but END has an operand."""

    END = 0
    CONSTANT = 1
    VALUE = 2
    ADD = 3
    MULTIPLY = 4
    FLOORDIV = 5
    MOD = 6
    MIN = 7
    MAX = 8
    OUT = 9  # to result `operand`
    CHECK = 10  # operand 0: >= 0, 1: == 0, 2: != 0


LAUNCH_AT = MOST
"""Results from here on are the CUDA grid; those before it the numbers."""
MAPS_AT, MAP_NUMBERS = MOST + 8, 10
"""Behind it those of the tensor maps, so many each: the shape, the strides in bytes, the bytes that
are skipped at the start of the buffer."""
RESULTS = MAPS_AT + MOST_MAPS * MAP_NUMBERS
GRID_VALUES = 3
"""Values before those of the parameters: the grid."""

NULL = Reg("ptr", "null")


def symbol(name: str) -> Reg:
    return Reg("ptr", f"@{name}")


class Writer(Function):
    """A function that gives up at the first thing that is not as it must be: it returns 0."""

    def __init__(self, module: Module, name: str, result: str, *params: str) -> None:
        listed = [(type, f"a{i}") for i, type in enumerate(params)]
        super().__init__(name, result, listed, linkage="internal", attributes="nounwind")
        module.functions.append(self)
        self._give_up = self.block("no")

    def need(self, condition: Reg) -> None:
        going_on = self.block("on")
        self.cbr(condition, going_on, self._give_up)
        self.enter(going_on)

    def finish(self, value: Reg) -> None:
        self.ret(value)
        self.enter(self._give_up)
        self.ret(NULL if self.result == "ptr" else integer(0, self.result))

    def word(self, record: Reg, at: int, type: str = "i64") -> Reg:
        return self.load(type, self.gep(record, 8 * at), 8)

    def field(self, pointer: Reg, at: int, type: str = "ptr") -> Reg:
        return self.load(type, self.gep(pointer, at), 4 if type == "i32" else 8)

    def room(self, words: int, align: int = 8) -> Reg:
        """Memory of this call. Written in the first block of the function."""
        return self.op("ptr", f"alloca [{words} x i64], align {align}", "room")

    def both(self, *conditions: Reg) -> Reg:
        found = conditions[0]
        for condition in conditions[1:]:
            found = self.binary("and", found, condition)
        return found

    def either(self, *conditions: Reg) -> Reg:
        found = conditions[0]
        for condition in conditions[1:]:
            found = self.binary("or", found, condition)
        return found

    def through(self, type: str, function: Reg, *args: Reg) -> Reg:
        """A call of a function by its address."""
        return self.op(type, f"call {type} {function}({', '.join(arg.typed for arg in args)})")

    def switch(self, value: Reg, cases: Sequence[Callable[[], None]]) -> None:
        """cases[value](); any other value gives up."""
        done = self.block("done")
        blocks = [self.block("case") for _ in cases]
        listed = " ".join(f"i64 {i}, label %{b.label}" for i, b in enumerate(blocks))
        self.emit(f"switch {value.typed}, label %{self._give_up.label} [ {listed} ]")
        self.at.closed = True
        for block, case in zip(blocks, cases, strict=True):
            self.enter(block)
            case()
            self.br(done)
        self.enter(done)
