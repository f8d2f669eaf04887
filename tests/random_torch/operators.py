"""Lines of random PyTorch programs."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from tests.fuzzing.draw import Drawing
from tests.fuzzing.program import BASIC, CANCEL, DOT, EXACT, FOLD, FUNCTION, ORDER, PARTS, SUM

DTYPES = ("float32", "float32", "float32", "float32", "float16", "bfloat16", "float64", "int64",
          "int32", "int8", "uint8", "int16", "bool")  # fmt: skip

UNARY = {
    EXACT: ("abs", "neg", "floor", "ceil", "trunc", "round", "sign", "isnan", "isinf", "isfinite",
            "logical_not", "bitwise_not", "signbit", "nan_to_num", "frac", "positive", "sgn"),
    ORDER: ("relu", "nn.functional.relu6", "nn.functional.hardtanh"),
    BASIC: ("sqrt", "square", "reciprocal"),
    FUNCTION: ("exp", "log", "sin", "cos", "tanh", "expm1", "log1p", "exp2", "log2", "log10",
               "atan", "asin", "acos", "sinh", "cosh", "tan", "asinh", "acosh", "atanh", "rsqrt",
               "sigmoid", "erf", "deg2rad", "rad2deg"),
    FOLD: ("nn.functional.gelu", "nn.functional.silu", "nn.functional.softplus", "erfc",
           "nn.functional.elu", "nn.functional.mish", "nn.functional.selu", "special.log_ndtr",
           "nn.functional.logsigmoid", "nn.functional.hardswish", "nn.functional.hardsigmoid",
           "nn.functional.softsign", "nn.functional.tanhshrink", "nn.functional.leaky_relu",
           "sinc", "lgamma", "erfinv", "special.entr", "special.ndtr", "nn.functional.celu",
           "special.i0", "digamma", "logit"),
}  # fmt: skip
BINARY = {
    EXACT: ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
            "bitwise_and", "bitwise_or", "bitwise_xor", "copysign", "heaviside", "isclose"),
    ORDER: ("maximum", "minimum", "fmax", "fmin"),
    BASIC: ("add", "sub", "mul", "div", "remainder", "fmod", "floor_divide", "add", "sub", "mul",
            "div", "true_divide", "rsub"),
    FUNCTION: ("pow", "atan2", "hypot", "logaddexp", "xlogy", "logaddexp2", "float_power"),
}  # fmt: skip
SYMBOLS = ("+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!=")
NUMBERS = ("2", "3", "-1", "0.5", "0.3", "-1.5", "1e-3", "41", "0.1", "7", "1", "0", "2.0", "True")
REDUCE = {
    EXACT: ("any", "all", "argmax", "argmin", "count_nonzero"),
    ORDER: ("amax", "amin", "max", "min"),
    SUM: ("sum", "mean", "sum", "mean", "nansum", "nanmean"),
    FOLD: ("prod", "var", "std", "logsumexp", "norm", "softmax", "log_softmax", "median"),
}  # fmt: skip
CASTS = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool",
         "int16")  # fmt: skip


def index(d: Drawing, name: str, arrays: bool = True) -> str:
    """An index expression of a value; PyTorch has no negative steps."""
    parts = []
    shape = d.shape(name)
    used = False
    for size in shape[: d.random.randint(0, len(shape))]:
        pick = d.random.random()
        if pick < 0.2:
            parts.append(":")
        elif pick < 0.33 and size:
            parts.append(str(d.random.randrange(-size, size)))
        elif pick < 0.45 and size and arrays and (not used or d.chance(0.3)):
            used = True
            places = [d.random.randrange(-size, size) for _ in range(d.random.choice((1, 2, 3)))]
            parts.append(f"torch.tensor({places})")
        elif pick < 0.48 and size and arrays and not used:
            used = True
            mask = [d.random.random() < 0.6 for _ in range(size)]
            parts.append(f"torch.tensor({mask})")
        elif pick < 0.58:
            half = f"{name}.shape[{len(parts)}]" if "None" not in parts else str(size)
            parts.append(d.random.choice((f": {half} // 2", f"{half} // 2 :", f": {half} - 1")))
        else:
            ends = [str(d.random.randint(-size - 1, size + 1)) if d.chance(0.5) else ""
                    for _ in range(2)]  # fmt: skip
            parts.append(f"{ends[0]}:{ends[1]}{d.random.choice(('', '', ':2', ':3'))}")
    if d.chance(0.15):
        parts.insert(d.random.randint(0, len(parts)), "None")
    if d.chance(0.15) or not parts:
        parts.insert(d.random.choice((0, len(parts))), "...")
    return ", ".join(parts)


def mate(d: Drawing, name: str) -> str:
    """Another operand: a value of a shape that fits, or a number."""
    pick = d.random.random()
    if pick < 0.3:
        return d.random.choice(NUMBERS)
    if pick < 0.35 and d.rank(name):
        size = f"{name}.shape[{d.axis(name)}]"
        return d.random.choice((size, f"{size} ** -0.5", f"1 / {size}", f"{size} % 3"))
    return d.pick(lambda other: d.dtype(other) == d.dtype(name) or d.chance(0.3))


def unary(d: Drawing) -> None:
    freedom = d.random.choice((EXACT, ORDER, BASIC, FUNCTION, FUNCTION, FOLD, FOLD))
    name = d.random.choice(UNARY[freedom])
    if name == "digamma" and torch.is_grad_enabled():  # eager's trigamma is off by up to 5e-10
        return
    x = d.pick()
    freedom = CANCEL if name.endswith(("gelu", "tanhshrink")) else freedom
    if name != "signbit" or not has_nan(d, x):
        d.attempt(f"torch.{name}({x})", freedom)


def binary(d: Drawing) -> None:
    freedom = d.random.choice((EXACT, ORDER, BASIC, BASIC, BASIC, FUNCTION))
    x = d.pick()
    name = d.random.choice(BINARY[freedom])
    extra = ""
    if name in ("add", "sub") and d.chance(0.2):
        extra = f", alpha={d.random.choice(('2', '-1', '0.5'))}"
        freedom = FUNCTION
    if name == "div" and d.chance(0.3):
        extra = f", rounding_mode={d.random.choice(('floor', 'trunc'))!r}"
    y = mate(d, x)
    if name == "pow" and d.is_bool(x) and y == "True":  # which PyTorch traces as whole numbers
        return
    if name != "copysign" or not has_nan(d, y):
        d.attempt(f"torch.{name}({x}, {y}{extra})", freedom)


def symbol(d: Drawing) -> None:
    x = d.pick()
    pair = [x, mate(d, x)]
    if d.chance(0.3):
        pair.reverse()
    d.attempt(f"{pair[0]} {d.random.choice(SYMBOLS)} {pair[1]}", BASIC)


def ternary(d: Drawing) -> None:
    x = d.pick()
    y, z = mate(d, x), mate(d, x)
    pick = d.random.choice(("where", "where", "clamp", "addcmul", "addcdiv", "lerp", "masked_fill"))
    if pick == "where":
        condition = d.pick(d.is_bool) if d.chance(0.4) else f"{d.pick()} > 0"
        d.attempt(f"torch.where({condition}, {x}, {y})")
    elif pick == "clamp":
        low, high = sorted(d.random.sample((-2, -1, 0, 1, 3, 5), 2))
        ends = d.random.choice((f"{low}, {high}", f"min={low}", f"max={high}"))
        d.attempt(f"torch.clamp({x}, {ends})", ORDER)
    elif pick == "masked_fill":
        condition = d.pick(d.is_bool) if d.chance(0.4) else f"{d.pick()} > 0"
        d.attempt(f"{x}.masked_fill({condition}, {d.random.choice(NUMBERS)})")
    else:
        d.attempt(f"torch.{pick}({x}, {y}, {z})", FOLD)


def reduce(d: Drawing) -> None:
    freedom = d.random.choice((EXACT, ORDER, SUM, SUM, SUM, FOLD, FOLD))
    x = d.pick(lambda n: d.rank(n) > 0)
    name = d.random.choice(REDUCE[freedom])
    axis = d.axis(x)
    ending = ""
    if name in ("max", "min"):
        part = d.random.choice((".values", ".indices"))
        text = d.random.choice((f"torch.{name}({x})", f"torch.{name}({x}, {axis}){part}"))
    elif name == "median":
        if has_ties(d, x, axis):
            return
        # Where elements share their memory, eager reads what nobody wrote.
        text = f"torch.median({x}.contiguous(), {axis}).values"
    elif name in ("softmax", "log_softmax", "logsumexp"):
        text = f"torch.{name}({x}, {axis})"
    elif name == "norm":
        kind = d.random.choice(("2", "1", "float('inf')", "3"))
        text = f"torch.norm({x}, p={kind}, dim={axis})"
    else:
        where = d.random.choice(("", f", dim={axis}", f", dim={axis}"))
        if d.rank(x) > 1 and d.chance(0.2) and freedom in (SUM, ORDER):
            where = f", dim={tuple(d.random.sample(range(d.rank(x)), 2))}"
        if where and d.chance(0.4) and name != "count_nonzero":
            where += ", keepdim=True"
        if name in ("var", "std") and d.chance(0.5):
            ending = ", correction=0"
        if name == "sum" and d.chance(0.1) and is_exact_in_float(d, x):
            ending = ", dtype=torch.float32"
        text = f"torch.{name}({x}{where}{ending})"
    d.attempt(text, freedom)


def scan(d: Drawing) -> None:
    x = d.pick(lambda n: d.rank(n) > 0)
    name, freedom, tail = d.random.choice((
        ("cumsum", SUM, ""), ("cumprod", FOLD, ""), ("diff", BASIC, ""), ("cummax", ORDER,
        ".values"), ("cummin", ORDER, ".indices"), ("logcumsumexp", FOLD, ""),
    ))  # fmt: skip
    d.attempt(f"torch.{name}({x}, dim={d.axis(x)}){tail}", freedom)


def order(d: Drawing) -> None:
    x = d.pick(lambda n: d.rank(n) > 0)
    axis = d.axis(x)
    texts = (
        f"torch.sort({x}, dim={axis}, stable=True).values",
        f"torch.sort({x}, dim={axis}, stable=True, descending=True).indices",
        f"torch.argsort({x}, dim={axis}, stable=True)",
        f"torch.topk({x}, min(2, {x}.shape[{axis}]), dim={axis}).values",
        f"torch.flip({x}, [{axis}])",
        f"torch.roll({x}, {d.random.randint(-3, 3)}, {axis})",
        f"torch.searchsorted(torch.sort({x}.flatten()).values, {d.pick()})",
        f"torch.bucketize({x}, torch.tensor([-1.0, 0.0, 1.0]))",
        f"torch.kthvalue({x}, 1, dim={axis}).values",
    )
    text = d.random.choice(texts)
    if not (re.search("topk|kthvalue", text) and has_ties(d, x, axis)):
        d.attempt(text, ORDER)


def take(d: Drawing) -> None:
    x = d.pick(lambda n: d.rank(n) > 0)
    pick = d.random.random()
    axis = d.axis(x)
    size = d.shape(x)[axis]
    if pick < 0.65 or not size:
        d.attempt(f"{x}[{index(d, x)}]")
        return
    places = [d.random.randrange(0, size) for _ in range(d.random.choice((1, 2, 3, 5)))]
    texts = (
        f"torch.index_select({x}, {axis}, torch.tensor({places}))",
        f"torch.take({x}, torch.tensor({places}))",
        f"torch.gather({x}, {axis}, torch.argsort({x}, dim={axis}, stable=True))",
        f"torch.take_along_dim({x}, torch.argmax({x}, dim={axis}, keepdim=True), dim={axis})",
        f"{x}.select({axis}, {places[0]})",
        f"{x}.narrow({axis}, {size // 3}, {size - size // 3})",
        f"{x}.unbind({axis})[{places[0]}]",
        f"{x}.chunk(2, {axis})[0]",
        f"{x}.split({max(1, size // 2)}, {axis})[-1]",
        f"torch.nn.functional.embedding(torch.tensor({places}), {x})",
    )
    d.attempt(d.random.choice(texts))


def move(d: Drawing) -> None:
    x = d.pick()
    shape, rank = d.shape(x), d.rank(x)
    order = d.random.sample(range(rank), rank)
    wide = [n if n != 1 else 3 for n in shape]
    pads = [d.random.randint(0, 2) for _ in range(2 * min(2, rank))]
    at = d.random.randint(0, rank)
    texts = [
        f"{x}.reshape(-1)", f"{x}.flatten()", f"{x}.permute({tuple(order)})",
        f"{x}.unsqueeze({at})",
        f"{x}.squeeze()", f"{x}.clone()", f"{x}.contiguous()", f"{x}.expand({(2, *shape)})",
        f"{x}.expand({tuple(wide)})", f"torch.stack([{x}, {x}], {at})",
        f"{x}.repeat({(2,) * rank})",
        f"torch.nn.functional.pad({x}, {pads}, value={d.random.choice(('0', '1.5'))})",
        f"torch.broadcast_to({x}, {(3, *shape)})", f"{x}.detach()", f"{x}.view_as({x})",
        f"{x}.view(-1)", f"torch.atleast_2d({x})",
    ]  # fmt: skip
    if rank:
        a, b = d.axis(x), d.axis(x)
        y = d.pick(lambda n: d.rank(n) == rank)
        texts += [
            f"{x}.transpose({a}, {b})", f"{x}.transpose({a}, {b})", f"{x}.mT",
            f"torch.cat([{x}, {y}], {a})", f"torch.cat([{x}, {x}, {y}], {a})",
            f"{x}.unfold({a}, 2, 1)", f"{x}.diagonal({d.random.randint(-1, 1)})",
            f"torch.repeat_interleave({x}, 2, dim={a})", f"torch.movedim({x}, {a}, {b})",
            f"{x}.reshape({x}.shape[0], -1)", f"{x}.view({x}.shape[0], -1)", f"{x}.flatten(1)",
            f"torch.tril({x}, {d.random.randint(-1, 1)})", f"torch.triu({x})",
            f"torch.rot90({x}, {d.random.randint(1, 3)})", f"{x}.unflatten({a}, (2, -1))",
            f"{x}.as_strided(({x}.shape[0], 2), (1, 1))", f"torch.diag_embed({x})",
            f"{x}.reshape({x}.shape[0] * {x}.shape[-1], -1)", f"{x}.swapaxes({a}, {b})",
            f"torch.nn.functional.pad({x}, {pads}, mode="
            f"{d.random.choice(('reflect', 'replicate', 'circular'))!r})",
            f"{x}.view(torch.int32)", f"{x}.view(torch.int16)", f"{x}.squeeze({a})",
        ]  # fmt: skip
    text = d.random.choice(texts)
    if ".view(torch." not in text or d.is_settled(x):
        d.attempt(text)


def cast(d: Drawing) -> None:
    x = d.pick()
    dtype = d.random.choice(CASTS)
    if is_defined(d, x, dtype):
        d.attempt(f"{x}.to(torch.{dtype})")


def is_defined(d: Drawing, x: str, dtype: str) -> bool:
    """Whether a cast is none of those that C leaves undefined, whatever the inputs are."""
    if not d.is_float(x) or "float" in dtype or dtype == "bool":
        return True
    values = [scope[x].detach() for scope in d.scopes]
    return all(bool((v.abs() < 100).all()) for v in values) and not (  # NaN is not less
        dtype == "uint8" and any(bool((v < 0).any()) for v in values)
    )


def is_exact_in_float(d: Drawing, x: str) -> bool:
    """Whether whole numbers stay so in float32: of greater ones that cancel the order shows."""
    values = [scope[x].detach() for scope in d.scopes]
    return not d.is_whole(x) or all(bool((v.double().abs() < 2**20).all()) for v in values)


def has_nan(d: Drawing, x: str) -> bool:
    """Whether there is a NaN, whose sign says nothing."""
    return x in d.names and any(bool(scope[x].isnan().any()) for scope in d.scopes)


def has_ties(d: Drawing, x: str, axis: int) -> bool:
    """Whether a gradient may go to any of several equal elements, which PyTorch leaves open where
    elements are selected by rank: the one that eager chooses has no rule."""
    if not d.value(x).requires_grad:
        return False
    ordered = [torch.sort(scope[x].detach(), axis).values.movedim(axis, 0) for scope in d.scopes]
    return any(bool(((v[1:] == v[:-1]) | v[:-1].isnan()).any()) for v in ordered)


def product(d: Drawing) -> None:
    x = d.pick(lambda n: d.rank(n) > 0 and not d.is_bool(n))
    y = d.pick(lambda n: d.rank(n) > 0 and d.dtype(n) == d.dtype(x))
    rank = d.rank(x)
    texts = [f"{x} @ {y}", f"{x} @ {x}.mT", f"torch.outer({x}.flatten()[:7], {y}.flatten()[:5])",
             f"torch.matmul({x}.mT, {y})", f"torch.tensordot({x}, {x}, dims=([0], [0]))",
             f"torch.nn.functional.linear({x}, {y})", f"torch.trace({x})",
             f"torch.dot({x}.flatten(), {x}.flatten())", f"torch.bmm({x}, {x}.mT)",
             f"torch.einsum('...i,...i->...', {x}, {x})", f"torch.einsum('ij,kj->ik', {x}, {x})",
             f"torch.kron({x}, {y})", f"torch.addmm({y}, {x}, {x}.mT)"]  # fmt: skip
    freedom = DOT
    if rank == 3 and d.is_float(x):
        texts += [
            f"torch.nn.functional.conv1d({x}, {x}[:2, :, :2])",
            f"torch.nn.functional.conv1d({x}, {x}[:1, :, :3], padding=1, stride=2)",
        ]
    if rank == 4 and d.is_float(x):
        texts += [f"torch.nn.functional.conv2d({x}, {x}[:2, :, :3, :3], padding=1)"] * 3
    d.attempt(d.random.choice(texts), freedom)


def layer(d: Drawing) -> None:
    """What models are made of."""
    x = d.pick(lambda n: d.rank(n) > 0 and d.is_float(n))
    f = "torch.nn.functional"
    texts = [
        (f"{f}.layer_norm({x}, {x}.shape[-1:]) + 0", FOLD),  # -0 less a mean of 0
        (f"{f}.normalize({x}, dim={d.axis(x)})", FOLD),
        (f"{f}.rms_norm({x}, {x}.shape[-1:])", FOLD), (f"{f}.glu({x}, {d.axis(x)})", FOLD),
        (f"{f}.avg_pool1d({x}, 2, 1)", SUM), (f"{f}.max_pool1d({x}, 2, 2)", ORDER),
        (f"{f}.mse_loss({x}, {x} * 0.5)", FOLD), (f"{f}.softmin({x}, {d.axis(x)})", FOLD),
        (f"{f}.cosine_similarity({x}, {x} + 1, dim={d.axis(x)})", FOLD),
        (f"{f}.interpolate({x}, scale_factor=2, mode='nearest')", EXACT),
        (f"{f}.huber_loss({x}, {x} * 0.5, reduction='none')", FOLD),
        (f"{f}.cross_entropy({x}.reshape({x}.shape[0], -1), "
         f"torch.zeros({x}.shape[0], dtype=torch.int64)) + 0", FOLD),  # a sum of -0
    ]  # fmt: skip
    if d.rank(x) == 4:
        texts += [
            (f"{f}.max_pool2d({x}, 2)", ORDER), (f"{f}.avg_pool2d({x}, 3, 2, 1)", SUM),
            (f"{f}.adaptive_avg_pool2d({x}, (2, 3))", SUM), (f"{f}.pixel_shuffle({x}, 2)", EXACT),
            (f"{f}.interpolate({x}, size=(5, 7), mode='bilinear')", FOLD),
            (f"{f}.scaled_dot_product_attention({x}, {x}, {x})", PARTS),
            (f"{f}.group_norm({x}, 1) + 0", FOLD), (f"{f}.instance_norm({x}) + 0", FOLD),
        ] * 2  # fmt: skip
    elif d.rank(x) == 3 and d.scopes[0][x].numel():
        # A hidden key has weight 0: kernels need not read an infinite value that it multiplies.
        y = d.names[-1] if d.attempt(f"{x}.clamp(-8, 8).nan_to_num()") else x
        texts += [(f"{f}.scaled_dot_product_attention({y}, {y}, {y}, is_causal=True)", PARTS)] * 3
    d.attempt(*d.random.choice(texts))


def create(d: Drawing) -> None:
    x = d.pick()
    texts = (
        f"torch.zeros_like({x}) + {d.pick()}", f"torch.full_like({x}, 2) * {x}",
        f"torch.arange({x}.shape[-1]) * {x}", f"torch.eye({x}.shape[-1]) - {x}",
        f"{x} / torch.ones({x}.shape[-1]).cumsum(0)", f"{x} + torch.ones({x}.shape[-1])",
        f"{x}.new_full(({x}.shape[0],), 3) + 1", f"torch.arange({x}.shape[0])[:, None] > {x}",
        f"torch.nn.functional.one_hot({x}.long().abs() % 3, 3)",
        f"torch.tensor([0.5, -0.3])[:, None] * {x}",
    )  # fmt: skip
    if d.chance(0.1):
        d.attempt(f"torch.linspace(0, 1, {x}.shape[-1])", FUNCTION)
        return
    text = d.random.choice(texts)
    if ".long()" not in text or is_defined(d, x, "int64"):
        d.attempt(text, BASIC)


def change(d: Drawing) -> None:
    """An argument or another value, or a view of it, changed in place."""
    x = d.pick()
    if d.chance(0.4) and not d.attempt(f"{x}.clone()" if d.chance(0.5) else f"{x} + 1", BASIC):
        return
    base = d.names[-1] if d.chance(0.6) else x
    view = base
    if d.chance(0.5) and d.rank(base):
        text = d.random.choice((f"{base}[{index(d, base, arrays=False)}]", f"{base}.mT",
                                f"{base}.view(-1)", f"{base}.unsqueeze(0)", f"{base}.diagonal()",
                                f"{base}.detach()", f"{base}.transpose(0, -1)"))  # fmt: skip
        if not d.attempt(text):
            return
        view = d.names[-1]
    for _ in range(d.random.randint(1, 2)):
        y = mate(d, view)
        axis = d.axis(view) if d.rank(view) else 0
        symbol = d.random.choice(("+=", "-=", "*=", "/="))
        texts = (
            (f"{view}[{index(d, view)}] = {y}", EXACT), (f"{view}[{index(d, view)}] = {y}", EXACT),
            (f"{view}[{index(d, view, False)}] {symbol} {d.random.choice(NUMBERS)}", BASIC),
            (f"{view}[{view} > 0] = {d.random.choice(NUMBERS)}", EXACT),
            (f"{view}.add_({y})", BASIC), (f"{view}.mul_({y})", BASIC),
            (f"{view}.copy_({y})", EXACT),
            (f"{view}.relu_()", ORDER), (f"{view}.zero_()", EXACT), (f"{view}.exp_()", FUNCTION),
            (f"{view}.clamp_(-1, 1)", ORDER), (f"{view}.fill_({d.random.choice(NUMBERS)})", EXACT),
            (f"{view}.masked_fill_({view} > 0, 0.5)", EXACT), (f"{view}.neg_()", EXACT),
            (f"{view}.index_add_({axis}, torch.tensor([0, 0]), {view}.narrow({axis}, 0, 2) * 2)",
             SUM),
            (f"{view}.index_copy_({axis}, torch.tensor([1, 0]), {view}.narrow({axis}, 0, 2) * 2)",
             BASIC),
            (f"{view}.index_fill_({axis}, torch.tensor([0]), 3)", EXACT),
            (f"{view}.scatter_({axis}, torch.zeros_like({view}, dtype=torch.int64), 2)", EXACT),
            (f"{view}.sub_({y}, alpha=2)", FUNCTION), (f"{view}.div_({y})", BASIC),
            (f"{view}.scatter_add_({axis}, torch.zeros_like({view}).long(), {view} * 1)",
             SUM),
        )  # fmt: skip
        text, freedom = d.random.choice(texts)
        is_cast = y in d.names and text.endswith((f"= {y}", f".copy_({y})"))
        if not is_cast or is_defined(d, y, str(d.dtype(view))):
            d.attempt(text, freedom, changes=view)
    if d.chance(0.5):
        d.attempt(f"{base} * 2", BASIC)


def scatter(d: Drawing) -> None:
    """Updates that are no changes in place."""
    x = d.pick(lambda n: d.rank(n) > 0)
    axis = d.axis(x)
    zeros = f"torch.zeros_like({x}, dtype=torch.int64)"
    mode = d.random.choice(("sum", "prod", "mean", "amax", "amin"))
    texts = (
        (f"torch.scatter({x}, {axis}, {zeros}, 2)", EXACT),
        (f"torch.scatter_add({x}, {axis}, {zeros}, {x} * 2)", SUM),
        (f"torch.scatter_reduce({x}, {axis}, {zeros}, {x} * 2, reduce={mode!r})", FOLD),
        (f"torch.index_add({x}, {axis}, torch.tensor([0, 0]), {x}.narrow({axis}, 0, 2) * 2)", SUM),
        (f"torch.slice_scatter({x}, {x}.narrow({axis}, 0, 1) * 2, {axis}, 0, 1)", BASIC),
        (f"torch.select_scatter({x}, {x}.select({axis}, 0) * 2, {axis}, 0)", BASIC),
        (f"torch.diagonal_scatter({x}, {x}.diagonal() * 2)", BASIC),
        (f"torch.index_put({x}, (torch.tensor([0, 0]),), {x}[:1] * 2, accumulate=True)", SUM),
        (f"torch.bincount({x}.flatten().abs().long(), minlength=9)", EXACT),
        (f"torch.masked_scatter({x}, {x} > 0, {x}.flip(0))", EXACT),
    )
    text, freedom = d.random.choice(texts)
    if ".long()" not in text or is_defined(d, x, "int64"):
        d.attempt(text, freedom)


MOVES: dict[Callable[[Drawing], None], float] = {
    unary: 10, binary: 9, symbol: 9, ternary: 5, reduce: 9, scan: 2, order: 2.5, take: 8, move: 12,
    cast: 4, product: 5, layer: 4, create: 3, change: 9, scatter: 2.5,
}  # fmt: skip
