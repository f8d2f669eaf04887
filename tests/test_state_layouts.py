"""Decoders of two layers whose caches lie as exports have them: each grows in place."""

from dataclasses import dataclass

import pytest

import fuser
from fuser.dtypes import f32
from fuser.frontends.onnx.model import reference
from tests.numerics import assert_close
from tests.runtime.pretend_gpu import pretend_gpu
from tests.test_state import model_of, tokens

__all__ = ["pretend_gpu"]


@dataclass(frozen=True)
class Layout:
    """Caches of a layer. pasts: type by name, `p` rows of them kept. code: makes `keys` and
    `values` [b, 2, t, 8] out of the caches and the new `k`, `v` [b, s, 16], `kh`, `vh`
    [b, 2, s, 8]; an output `new_x` is what the cache `x` becomes. way: how it is kept."""

    pasts: dict[str, str]
    code: str
    way: str = "in place"


HALVES = """
        first = Constant<value_ints = [0]>()
        half_k, half_v = Split<axis = 0, num_outputs = 2>(past_kv)
        old_k = Squeeze(half_k, first)
        old_v = Squeeze(half_v, first)
        keys = Concat<axis = 2>(old_k, kh)
        {values}
        k5 = Unsqueeze(keys, first)
        v5 = Unsqueeze(values, first)
        new_kv = Concat<axis = 0>(k5, v5)"""
"""Of one tensor each half grows by itself."""

LAYOUTS = {
    "heads": Layout(
        {"k": "float[b, 2, p, 8]", "v": "float[b, 2, p, 8]"},
        """
        new_k = Concat<axis = 2>(past_k, kh)
        new_v = Concat<axis = 2>(past_v, vh)
        keys = Identity(new_k)
        values = Identity(new_v)""",
    ),
    "rows": Layout(
        {"k": "float[b, p, 2, 8]", "v": "float[b, p, 2, 8]"},
        """
        new_k = Concat<axis = 1>(past_k, k4)
        new_v = Concat<axis = 1>(past_v, v4)
        keys = Transpose<perm = [0, 2, 1, 3]>(new_k)
        values = Transpose<perm = [0, 2, 1, 3]>(new_v)""",
    ),
    "turned": Layout(
        {"k": "float[b, 2, 8, p]", "v": "float[b, 2, p, 8]"},
        """
        turned = Transpose<perm = [0, 2, 3, 1]>(k4)
        new_k = Concat<axis = 3>(past_k, turned)
        new_v = Concat<axis = 2>(past_v, vh)
        keys = Transpose<perm = [0, 1, 3, 2]>(new_k)
        values = Identity(new_v)""",
    ),
    "flat": Layout(
        {"k": "float[b, p, 16]", "v": "float[b, p, 16]"},
        """
        new_k = Concat<axis = 1>(past_k, k)
        new_v = Concat<axis = 1>(past_v, v)
        all_k = Reshape(new_k, parts)
        all_v = Reshape(new_v, parts)
        keys = Transpose<perm = [0, 2, 1, 3]>(all_k)
        values = Transpose<perm = [0, 2, 1, 3]>(all_v)""",
    ),
    "stacked": Layout(
        {"kv": "float[2, b, 2, p, 8]"},
        """
        first = Constant<value_ints = [0]>()
        k5 = Unsqueeze(kh, first)
        v5 = Unsqueeze(vh, first)
        both = Concat<axis = 0>(k5, v5)
        new_kv = Concat<axis = 3>(past_kv, both)
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        keys = Gather<axis = 0>(new_kv, zero)
        values = Gather<axis = 0>(new_kv, one)""",
    ),
    "halves": Layout(
        {"kv": "float[2, b, 2, p, 8]"},
        HALVES.replace("{values}", "values = Concat<axis = 2>(old_v, vh)"),
    ),
    "lookups": Layout(
        {"kv": "float[b, 2, 2, p, 8]"},
        """
        second = Constant<value_ints = [1]>()
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        old_k = Gather<axis = 1>(past_kv, zero)
        old_v = Gather<axis = 1>(past_kv, one)
        keys = Concat<axis = -2>(old_k, kh)
        values = Concat<axis = -2>(old_v, vh)
        k5 = Unsqueeze(keys, second)
        v5 = Unsqueeze(values, second)
        new_kv = Concat<axis = 1>(k5, v5)""",
    ),
    "entangled": Layout(
        {"kv": "float[2, b, 2, p, 8]"},
        HALVES.replace(
            "{values}",
            """second = Constant<value_ints = [2]>()
        sum = ReduceMean(keys, second)
        fresh = Add(vh, sum)
        values = Concat<axis = 2>(old_v, fresh)""",
        ),
        way="copied: it is not the input and rows behind it",
    ),
    "shared": Layout(
        {"kv": "float[b, p, 16]"},
        """
        sum = Add(k, v)
        new_kv = Concat<axis = 1>(past_kv, sum)
        both = Reshape(new_kv, parts)
        keys = Transpose<perm = [0, 2, 1, 3]>(both)
        values = Identity(keys)""",
    ),
    "coded": Layout(
        {"k": "int8[b, 2, p, 8]", "v": "int8[b, 2, p, 8]"},
        """
        scale = Constant<value_float = 0.03125>()
        zero_point = Constant<value = int8 {0}>()
        code_k = QuantizeLinear(kh, scale, zero_point)
        code_v = QuantizeLinear(vh, scale, zero_point)
        new_k = Concat<axis = 2>(past_k, code_k)
        new_v = Concat<axis = 2>(past_v, code_v)
        keys = DequantizeLinear(new_k, scale, zero_point)
        values = DequantizeLinear(new_v, scale, zero_point)""",
    ),
}

LAYER = """
    all = MatMul({x}, w)
    q, k, v = Split<axis = 2, num_outputs = 3>(all)
    parts = Constant<value_ints = [0, -1, 2, 8]>()
    q4 = Reshape(q, parts)
    k4 = Reshape(k, parts)
    v4 = Reshape(v, parts)
    qh = Transpose<perm = [0, 2, 1, 3]>(q4)
    kh = Transpose<perm = [0, 2, 1, 3]>(k4)
    vh = Transpose<perm = [0, 2, 1, 3]>(v4){code}
    columns = Transpose<perm = [0, 1, 3, 2]>(keys)
    scores = MatMul(qh, columns)
    shares = Softmax(scores)
    yh = MatMul(shares, values)
    y4 = Transpose<perm = [0, 2, 1, 3]>(yh)
    flat = Constant<value_ints = [0, 0, 16]>()
    mixed = Reshape(y4, flat)
    y = Add({x}, mixed)"""


def layered(layouts: tuple[str, ...]) -> str:
    """The text of a decoder; names of layer i end in _i."""
    inputs, outputs, body, x = [], [], "", "x"
    for i, name in enumerate(layouts):
        layout = LAYOUTS[name]
        for cache, kind in layout.pasts.items():
            inputs.append(f"{kind} past_{cache}_{i}")
            outputs.append(f"{kind.replace('p', 't', 1)} new_{cache}_{i}")
        body += _renamed(LAYER.replace("{code}", layout.code), i).replace("{x}", x)
        x = f"y_{i}"
    return f"""
<ir_version: 10, opset_import: ["": 21]>
layers (float[b, s, 16] x, {", ".join(inputs)}) => (float[b, s, 16] {x}, {", ".join(outputs)})
    <{", ".join(f"float[16, 48] w_{i}" for i in range(len(layouts)))}>
{{{body}
}}"""


def _renamed(text: str, layer: int) -> str:
    """The code with a layer's number behind each name of a value."""
    lines = []
    for line in text.strip().splitlines():
        left, right = line.split(" = ", 1)
        operator, operands = right.rsplit("(", 1)
        left = ", ".join(f"{name.strip()}_{layer}" for name in left.split(","))
        names = [name.strip() for name in operands.rstrip(")").split(",") if name.strip()]
        operands = ", ".join(n if n == "{x}" else f"{n}_{layer}" for n in names)
        lines.append(f"\n    {left} = {operator}({operands})")
    return "".join(lines)


@pytest.mark.parametrize(
    "device", ["cpu", "pretended", pytest.param("cuda", marks=pytest.mark.cuda)]
)
@pytest.mark.parametrize(
    "layouts",
    [
        *((name, name) for name in LAYOUTS),
        ("rows", "turned", "shared"),
        ("coded", "heads"),
        ("halves", "rows", "lookups"),
    ],
    ids="-".join,
)
def test_caches_grow_in_place(
    layouts: tuple[str, ...], device: str, request: pytest.FixtureRequest
) -> None:
    """Keys and values are cut out of one product, so that what cuts those of a later layer needs
    what an earlier one appends: kernels that join must not need each other."""
    if device == "pretended":
        request.getfixturevalue("pretend_gpu")
    weights = {f"w_{i}": (16, 48) for i in range(len(layouts))}
    model = model_of(layered(layouts), **weights)
    plan = fuser.compile(
        model, device="cpu" if device == "cpu" else "cuda", threads=1,
        state={
            f"past_{cache}_{i}": f"new_{cache}_{i}"
            for i, name in enumerate(layouts) for cache in LAYOUTS[name].pasts
        },
    )  # fmt: skip
    state = plan.state(batch=2, capacity=16)
    kept = {name: array.copy() for name, array in state.kept().items()}
    for count in (3, 1, 1, 2):
        length, x = state.length, tokens(count)
        expected = reference(model, {"x": x, **kept}, {"b": 2, "s": count, "p": length})
        output = f"y_{len(layouts) - 1}"
        assert_close(state.run({"x": x})[output], expected[output], f32, 64)
        for name, array in state.kept().items():
            grown = expected[name.replace("past", "new")]
            assert_close(array, grown, f32, 64)
            kept[name] = grown.astype(array.dtype)
    ways = [line.split(": ", 1)[1] for line in plan.explain().splitlines()[: len(kept)]]
    assert ways == [LAYOUTS[name].way for name in layouts for _ in LAYOUTS[name].pasts]
