"""Lines of random NumPy programs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fuzzing.draw import Drawing
from tests.fuzzing.program import BASIC, DOT, EXACT, FOLD, FUNCTION, ORDER, SUM

DTYPES = ("float32", "float32", "float32", "float64", "float16", "int32", "int64", "int8", "uint8",
          "int16", "uint16", "uint32", "uint64", "bool")  # fmt: skip

UNARY = {
    EXACT: ("abs", "negative", "positive", "floor", "ceil", "trunc", "rint", "sign", "isnan",
            "isinf", "isfinite", "logical_not", "invert", "signbit", "fabs", "fix", "nan_to_num",
            "round"),
    BASIC: ("sqrt", "square", "reciprocal"),
    FUNCTION: ("exp", "log", "sin", "cos", "tanh", "expm1", "log1p", "exp2", "log2", "log10",
               "arctan", "arcsin", "arccos", "sinh", "cosh", "tan", "arcsinh", "arccosh",
               "arctanh", "cbrt", "deg2rad", "rad2deg"),
    FOLD: ("sinc",),
}  # fmt: skip
BINARY = {
    ORDER: ("maximum", "minimum", "fmax", "fmin"),
    EXACT: ("equal", "not_equal", "less", "less_equal",
            "greater", "greater_equal", "logical_and", "logical_or", "logical_xor", "copysign",
            "bitwise_and", "bitwise_or", "bitwise_xor", "heaviside"),
    BASIC: ("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "add",
            "subtract", "multiply", "divide"),
    FUNCTION: ("power", "arctan2", "hypot", "logaddexp", "float_power"),
}  # fmt: skip
SYMBOLS = ("+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!=")
NUMBERS = ("2", "3", "-1", "0.5", "0.3", "-1.5", "1e-3", "41", "0.1", "7", "1", "0", "True")
REDUCE = {
    EXACT: ("any", "all", "argmax", "argmin", "count_nonzero"),
    ORDER: ("max", "min", "amax", "nanmax", "nanmin"),
    BASIC: ("ptp",),
    SUM: ("sum", "mean", "sum", "mean", "nansum", "nanmean"),
    FOLD: ("prod", "var", "std", "median", "nanstd"),
}  # fmt: skip
CASTS = ("float32", "float64", "float16", "int32", "int64", "int8", "uint8", "bool", "int16",
         "uint32")  # fmt: skip


def index(d: Drawing, name: str, arrays: bool = True) -> str:
    """An index expression of a value."""
    parts = []
    shape = d.shape(name)
    rank = d.random.randint(0, len(shape))
    used_array = False
    for size in shape[:rank]:
        pick = d.random.random()
        if pick < 0.2:
            parts.append(":")
        elif pick < 0.35 and size:
            parts.append(str(d.random.randrange(-size, size)))
        elif pick < 0.45 and size and arrays and not used_array:
            used_array = True
            count = d.random.choice((1, 2, 3, 5))
            places = [d.random.randrange(-size, size) for _ in range(count)]
            parts.append(f"np.array({places})")
        elif pick < 0.5 and size and arrays and not used_array:
            used_array = True
            mask = [d.random.random() < 0.6 for _ in range(size)]
            parts.append(f"np.array({mask})")
        else:
            ends = [str(d.random.randint(-size - 1, size + 1)) if d.chance(0.5) else ""
                    for _ in range(2)]  # fmt: skip
            stride = d.random.choice(("", "", ":2", ":-1", ":3", ":-2", ":1"))
            parts.append(f"{ends[0]}:{ends[1]}{stride}")
    if d.chance(0.15):
        parts.insert(d.random.randint(0, len(parts)), "None")
    if d.chance(0.15) or not parts:
        parts.insert(d.random.choice((0, len(parts))), "...")
    return ", ".join(parts)


def mate(d: Drawing, name: str) -> str:
    """Another operand: a value of a shape that fits, or a number."""
    if d.chance(0.3):
        return d.random.choice(NUMBERS)
    return d.pick(lambda other: d.dtype(other) == d.dtype(name) or d.chance(0.3))


def axes(d: Drawing, name: str, several: bool = True) -> str:
    """Keywords of a reduction."""
    pick = d.random.random()
    text = ""
    if pick < 0.7:
        text = f", axis={d.axis(name)}"
        if several and d.rank(name) > 1 and d.chance(0.25):
            text = f", axis={tuple(d.random.sample(range(d.rank(name)), 2))}"
    if d.chance(0.4):
        text += ", keepdims=True"
    return text


def unary(d: Drawing) -> None:
    freedom = d.random.choice((EXACT, BASIC, FUNCTION, FUNCTION, FOLD))
    x = d.pick()
    name = d.random.choice(UNARY[freedom])
    if name == "reciprocal" and not d.is_float(x):  # of zero: undefined in C
        return
    if name == "signbit" and has_nan(d, x):
        return
    d.attempt(f"np.{name}({x})", freedom)


def binary(d: Drawing) -> None:
    freedom = d.random.choice((EXACT, ORDER, BASIC, BASIC, BASIC, BASIC, FUNCTION))
    x = d.pick()
    pair = [x, mate(d, x)]
    if d.chance(0.3):
        pair.reverse()
    name = d.random.choice(BINARY[freedom])
    if name != "copysign" or not has_nan(d, pair[1]):
        d.attempt(f"np.{name}({pair[0]}, {pair[1]})", freedom)


def has_nan(d: Drawing, x: str) -> bool:
    """Whether there is a NaN, whose sign says nothing."""
    return x in d.names and d.is_float(x) and bool(np.isnan(d.value(x)).any())


def symbol(d: Drawing) -> None:
    x = d.pick()
    pair = [x, mate(d, x)]
    if d.chance(0.3):
        pair.reverse()
    d.attempt(f"{pair[0]} {d.random.choice(SYMBOLS)} {pair[1]}", BASIC)


def reduce(d: Drawing) -> None:
    freedom = d.random.choice((EXACT, ORDER, BASIC, SUM, SUM, SUM, FOLD))
    x = d.pick(lambda n: d.rank(n) > 0)
    name = d.random.choice(REDUCE[freedom])
    several = not name.startswith("arg") and name != "median"
    extra = axes(d, x, several)
    if name in ("sum", "mean", "prod") and d.chance(0.1):
        dtype = d.random.choice(("float32", "float64", "int64"))
        if not is_castable(d, x, dtype) or not np.size(d.value(x)):
            return
        extra += f", dtype=np.{dtype}"
    if name in ("var", "std") and d.chance(0.3):
        extra += ", ddof=1"
    d.attempt(f"np.{name}({x}{extra})", freedom)


def scan(d: Drawing) -> None:
    x = d.pick(lambda n: d.rank(n) > 0)
    name, freedom = d.random.choice((("cumsum", DOT), ("cumprod", FOLD), ("diff", BASIC)))
    d.attempt(f"np.{name}({x}, axis={d.axis(x)})", freedom)


def order(d: Drawing) -> None:
    x = d.pick(lambda n: d.rank(n) > 0)
    pick = d.random.choice(("sort", "argsort", "searchsorted", "flip", "roll", "argmax"))
    if pick == "argsort":
        d.attempt(f"np.argsort({x}, axis={d.axis(x)}, kind='stable')")
    elif pick == "searchsorted":
        side = d.random.choice(("left", "right"))
        d.attempt(f"np.searchsorted(np.sort({x}.ravel()), {d.pick()}, side={side!r})")
    elif pick == "roll":
        d.attempt(f"np.roll({x}, {d.random.randint(-3, 3)}, axis={d.axis(x)})")
    else:
        d.attempt(f"np.{pick}({x}, axis={d.axis(x)})", ORDER if pick == "sort" else EXACT)


def take(d: Drawing) -> None:
    x = d.pick(lambda n: d.rank(n) > 0)
    d.attempt(f"{x}[{index(d, x)}]")


def move(d: Drawing) -> None:
    x = d.pick()
    shape = d.shape(x)
    pick = d.random.choice(("reshape", "T", "transpose", "swapaxes", "expand", "squeeze", "ravel",
                            "broadcast", "stack", "concatenate", "tile", "repeat", "pad", "tril",
                            "moveaxis", "split", "rot90", "atleast", "where_index"))  # fmt: skip
    if pick == "reshape":
        sizes = list(shape)
        if len(sizes) > 1 and d.chance(0.5):
            at = d.random.randrange(len(sizes) - 1)
            sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
        elif sizes and sizes[0] % 2 == 0 and sizes[0]:
            sizes[0:1] = [2, sizes[0] // 2]
        else:
            sizes = [-1]
        d.attempt(f"{x}.reshape({tuple(sizes)})")
    elif pick == "T":
        d.attempt(f"{x}.T")
    elif pick == "transpose":
        order = d.random.sample(range(len(shape)), len(shape))
        d.attempt(f"np.transpose({x}, {tuple(order)})")
    elif pick == "swapaxes":
        d.attempt(f"np.swapaxes({x}, {d.axis(x)}, {d.axis(x)})")
    elif pick == "expand":
        d.attempt(f"np.expand_dims({x}, {d.random.randint(0, len(shape))})")
    elif pick == "squeeze":
        d.attempt(f"np.squeeze({x})")
    elif pick == "ravel":
        d.attempt(f"{x}.ravel()")
    elif pick == "broadcast":
        wide = tuple(n if n != 1 else 3 for n in shape)
        d.attempt(f"np.broadcast_to({x}, {(2, *wide) if d.chance(0.5) else wide})")
    elif pick in ("stack", "concatenate"):
        y = d.pick(lambda n: d.rank(n) == len(shape))
        d.attempt(f"np.{pick}([{x}, {y}], axis={d.axis(x)})")
    elif pick == "tile":
        d.attempt(f"np.tile({x}, {d.random.choice((2, (2, 1), (1, 3)))})")
    elif pick == "repeat":
        d.attempt(f"np.repeat({x}, 2, axis={d.axis(x)})")
    elif pick == "pad":
        mode = d.random.choice(("constant", "reflect", "edge", "wrap", "symmetric"))
        widths = [(d.random.randint(0, 2), d.random.randint(0, 2)) for _ in shape]
        d.attempt(f"np.pad({x}, {widths}, mode={mode!r})")
    elif pick == "tril":
        d.attempt(f"np.{d.random.choice(('tril', 'triu'))}({x}, {d.random.randint(-2, 2)})")
    elif pick == "moveaxis":
        d.attempt(f"np.moveaxis({x}, {d.axis(x)}, {d.axis(x)})")
    elif pick == "split":
        d.attempt(f"np.array_split({x}, 2, axis={d.axis(x)})[{d.random.randint(0, 1)}]")
    elif pick == "rot90":
        d.attempt(f"np.rot90({x}, {d.random.randint(-1, 3)})")
    elif pick == "atleast":
        d.attempt(f"np.atleast_{d.random.randint(1, 3)}d({x})")
    else:
        d.attempt(f"np.take({x}, [0, -1], axis={d.axis(x)})")


def choose(d: Drawing) -> None:
    x = d.pick()
    y = mate(d, x)
    pick = d.random.random()
    if pick < 0.5:
        condition = d.pick(d.is_bool) if d.chance(0.5) else f"{d.pick()} > 0"
        d.attempt(f"np.where({condition}, {x}, {y})")
    elif pick < 0.8:
        low, high = sorted(d.random.sample((-2, -1, 0, 1, 3, 5), 2))
        d.attempt(f"np.clip({x}, {low}, {high})", ORDER)
    else:
        d.attempt(f"np.select([{x} > 1, {x} > 0], [{x}, {y}], 2)")


def cast(d: Drawing) -> None:
    x = d.pick()
    dtype = d.random.choice(CASTS)
    if is_castable(d, x, dtype):
        d.attempt(f"{x}.astype(np.{dtype})")


def is_castable(d: Drawing, x: str, dtype: str) -> bool:
    """Whether a cast is none of those that C leaves undefined."""
    value = np.asarray(d.value(x))
    if not d.is_float(x) or dtype.startswith("float") or dtype == "bool" or not value.size:
        return True
    return bool((abs(value) < 100).all() and not (dtype.startswith("u") and (value < 0).any()))


def product(d: Drawing) -> None:
    x = d.pick(lambda n: d.rank(n) > 0 and not d.is_bool(n))
    pick = d.random.choice(("@", "@T", "dot", "outer", "einsum", "tensordot", "inner", "trace",
                            "norm", "matrix_power", "cross", "vdot"))  # fmt: skip
    y = d.pick(lambda n: d.rank(n) > 0 and not d.is_bool(n))
    rank = d.rank(x)
    if pick == "@":
        d.attempt(f"{x} @ {y}", DOT)
    elif pick == "@T":
        d.attempt(f"{x} @ np.swapaxes({x}, -1, -2)", DOT)
    elif pick in ("dot", "outer", "inner", "vdot"):
        d.attempt(f"np.{pick}({x}, {y})", DOT)
    elif pick == "einsum":
        letters = "abcd"[:rank]
        kept = "".join(letter for letter in letters if d.chance(0.6))
        other = d.random.choice((f"{letters},{letters}->{kept}", f"{letters}->{kept}"))
        operands = f"{x}, {x}" if "," in other else x
        if rank == 2 and d.chance(0.4):
            other, operands = "ij,kj->ik", f"{x}, {x}"
        d.attempt(f"np.einsum({other!r}, {operands})", DOT)
    elif pick == "tensordot":
        d.attempt(f"np.tensordot({x}, {x}, axes=([{d.axis(x)}], [{d.axis(x)}]))", DOT)
    elif pick == "trace":
        d.attempt(f"np.trace({x}, {d.random.randint(-1, 1)})", SUM)
    elif pick == "norm":
        kind = d.random.choice(("", ", axis=-1", ", ord=np.inf, axis=0", ", ord=1, axis=-1"))
        d.attempt(f"np.linalg.norm({x}{kind})", FOLD)
    elif pick == "matrix_power":
        d.attempt(f"np.linalg.matrix_power({x}, {d.random.randint(0, 3)})", FOLD)
    else:
        d.attempt(f"np.cross({x}, {y})", FOLD)


def create(d: Drawing) -> None:
    x = d.pick()
    pick = d.random.choice(("zeros_like", "ones_like", "full_like", "arange", "eye", "linspace"))
    if pick in ("zeros_like", "ones_like"):
        d.attempt(f"np.{pick}({x}) + {d.pick()}", BASIC)
    elif pick == "full_like":
        d.attempt(f"np.full_like({x}, {d.random.choice(('2', '-1', '0.5'))}) * {x}", BASIC)
    elif pick == "arange":
        d.attempt(f"np.arange({x}.shape[{d.axis(x)}]) * {x}", BASIC)
    elif pick == "eye":
        d.attempt(f"np.eye({x}.shape[-1], dtype={x}.dtype) - {x}", BASIC)
    else:
        d.attempt(f"np.linspace(0, 1, {x}.shape[-1]) + {x}", BASIC)


def change(d: Drawing) -> None:
    """A copy of an argument or another value, changed in place."""
    x = d.pick()
    if not d.attempt(f"{x}.copy()"):
        return
    name = d.names[-1]
    if d.chance(0.3) and d.rank(name):  # by way of a view
        if not d.attempt(f"{name}[{index(d, name, arrays=False)}]"):
            return
    view = d.names[-1]
    if not hasattr(d.value(view), "setflags") or not d.rank(view):  # a number, no array
        return
    for _ in range(d.random.randint(1, 2)):
        y = mate(d, view)
        pick = d.random.random()
        if pick < 0.4:
            place = index(d, view)
            if y in NUMBERS or is_castable(d, y, d.dtype(view)):
                d.attempt(f"{view}[{place}] = {y}", changes=view)
        elif pick < 0.7:
            d.attempt(f"{view} {d.random.choice(('+=', '-=', '*='))} {y}", BASIC, changes=view)
        elif pick < 0.85:
            d.attempt(f"{view}[{view} > 0] = {d.random.choice(NUMBERS)}", changes=view)
        elif pick < 0.92:
            d.attempt(f"{view}.sort()", ORDER, changes=view)
        else:
            d.attempt(f"{view}.fill({d.random.choice(('2', '0'))})", changes=view)
    if d.chance(0.5):
        d.attempt(f"{name} + 1", BASIC)


MOVES: dict[Callable[[Drawing], None], float] = {
    unary: 10, binary: 10, symbol: 10, reduce: 8, scan: 2, order: 3, take: 7, move: 9, choose: 5,
    cast: 4, product: 5, create: 3, change: 4,
}  # fmt: skip
