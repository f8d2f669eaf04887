"""Tutorial 6: flash attention.

Attention weighs values by how well keys fit a query: `softmax(q @ k.T * scale) @ v`, for each head
of each item of a batch. For 16,384 tokens the matrix between the two products has 268 million
entries a head. It need not exist. A program takes a block of queries and walks along the keys and
values, block by block, with three things in registers:

* the greatest score of each query so far (`peak`),
* the sum of the exponentials so far (`weight`), as if `peak` were the greatest of all,
* the sum of the values by those exponentials (`total`).

Where a block has a greater score, what was summed so far is too large by the same factor, and is
shrunk by it. At the end `total / weight` is the result. This is softmax "online": tutorial 2 with
rows too long to hold, and two `dot` in its loop.

Exponentials are powers of 2, for which machines have an instruction; the factor log2(e) is part of
`scale`. In the causal kind a query sees its own key and those before it. Then blocks of keys are of
three kinds: all seen, partly seen, not seen. The first need no comparison, the last no work: one
loop for the first kind, one for the second, and the last are beyond its end. The same split serves
a number of tokens that BLOCK_N does not divide.

The gradients cannot look the probabilities up, and need not: the forward kernel keeps one number a
query, its level, from which a probability follows in one step. With p for them, o for the result
and do for its gradient,

    dv = p.T @ do     ds = p * (do @ v.T - (o * do).sum(axis=1))     dq = ds @ k     dk = ds.T @ q

Sums over queries belong to programs of a block of keys, sums over keys to programs of a block of
queries: two kernels. The scores are computed twice, and no program waits for another or adds to
what others add to, so the bits are the same in each run.
"""

import math

import workbench

import fuser.triton as triton
import fuser.triton.language as tl


def _config(m, n, warps, stages):
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}


CONFIGS = {
    "cpu": [_config(64, 64, 4, 1)],
    "cuda": [
        _config(128, 128, 8, 2),
        _config(128, 64, 8, 3),
        _config(128, 64, 4, 3),
        _config(128, 128, 8, 3),
        _config(64, 64, 4, 3),
    ],
}
GRADIENTS = {
    "cpu": [_config(64, 64, 4, 1)],
    "cuda": [_config(64, 128, 8, 2), _config(64, 64, 4, 2), _config(32, 128, 8, 2)],
}
"""For the gradients: BLOCK_M rows are loaded at a time, BLOCK_N belong to a program."""


@triton.jit
def attend(
    total, weight, peak, q, k, v, begin, end, query, tokens, k_row, v_row, scale,
    EDGE: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The keys from begin to end. EDGE: whether some of them are not seen by some query."""
    d = tl.arange(0, D)
    for start in range(begin, end, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        key = start + tl.arange(0, BLOCK_N)
        keys = k + key[None, :] * k_row + d[:, None]
        values = v + key[:, None] * v_row + d[None, :]
        if EDGE:
            score = tl.dot(q, tl.load(keys, mask=key[None, :] < tokens, other=0.0))
            seen = key[None, :] < tokens
            if CAUSAL:
                seen = seen & (key[None, :] <= query[:, None])
            score = tl.where(seen, score, -float("inf"))
        else:
            score = tl.dot(q, tl.load(keys))
        higher = tl.maximum(peak, tl.max(score, axis=1) * scale)
        part = tl.exp2(score * scale - higher[:, None])
        shrink = tl.exp2(peak - higher)
        weight = weight * shrink + tl.sum(part, axis=1)
        if EDGE:
            value = tl.load(values, mask=key[:, None] < tokens, other=0.0)
        else:
            value = tl.load(values)
        total = tl.dot(part.to(value.dtype), value, total * shrink[:, None])
        peak = higher
    return total, weight, peak


@triton.jit
def forward_kernel(
    q, k, v, out, levels, tokens, scale, q_head, q_row, k_head, k_row, v_head, v_row,
    out_head, out_row,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    if CAUSAL:  # the last queries see most keys: begin with those
        block = tl.num_programs(0) - 1 - block
    query = block * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    inside = query[:, None] < tokens
    rows = q + head * q_head + query[:, None] * q_row + d[None, :]
    queries = tl.load(rows, mask=inside, other=0.0)

    peak = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    weight = tl.zeros((BLOCK_M,), dtype=tl.float32)
    total = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    end = tokens
    whole = tokens // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = min(tokens, (block + 1) * BLOCK_M)
        whole = block * BLOCK_M // BLOCK_N * BLOCK_N
    k += head * k_head
    v += head * v_head
    total, weight, peak = attend(
        total, weight, peak, queries, k, v, 0, whole, query, tokens, k_row, v_row, scale,
        False, CAUSAL, BLOCK_N, D,
    )  # fmt: skip
    total, weight, peak = attend(
        total, weight, peak, queries, k, v, whole, end, query, tokens, k_row, v_row, scale,
        True, CAUSAL, BLOCK_N, D,
    )  # fmt: skip

    # With its level a probability can be had again in one step: 2^(score * scale - level).
    tl.store(levels + head * tokens + query, peak + tl.log2(weight), mask=query < tokens)
    result = (total / weight[:, None]).to(out.dtype.element_ty)
    tl.store(out + head * out_head + query[:, None] * out_row + d[None, :], result, mask=inside)


@triton.jit
def delta_kernel(
    out, slopes, deltas, tokens, head_step, row_step, D: tl.constexpr, BLOCK: tl.constexpr
):
    """deltas = (out * slopes).sum(axis=1)"""
    head = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = head * head_step + token[:, None] * row_step + tl.arange(0, D)[None, :]
    inside = token[:, None] < tokens
    o = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    do = tl.load(slopes + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(deltas + head * tokens + token, tl.sum(o * do, axis=1), mask=token < tokens)


@triton.jit
def add_queries(
    dk, dv, keys, values, q, slopes, levels, deltas, begin, end, key, tokens, row, scale,
    EDGE: tl.constexpr, BLOCK_M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """What the queries from begin to end add to the gradients of a block of keys and values."""
    d = tl.arange(0, D)
    for start in range(begin, end, BLOCK_M):
        start = tl.multiple_of(start, BLOCK_M)
        query = start + tl.arange(0, BLOCK_M)
        at = query[:, None] * row + d[None, :]
        inside = query[:, None] < tokens
        queries = tl.load(q + at, mask=inside, other=0.0)
        slope = tl.load(slopes + at, mask=inside, other=0.0)
        # A query that does not exist has an infinite level: all its probabilities are 0.
        level = tl.load(levels + query, mask=query < tokens, other=float("inf"))
        delta = tl.load(deltas + query, mask=query < tokens, other=0.0)
        p = tl.exp2(tl.dot(keys, tl.trans(queries)) * scale - level[None, :])
        if EDGE:
            p = tl.where(key[:, None] <= query[None, :], p, 0.0)
        dv = tl.dot(p.to(slope.dtype), slope, dv)
        ds = p * (tl.dot(values, tl.trans(slope)) - delta[None, :])
        dk = tl.dot(ds.to(queries.dtype), queries, dk)
    return dk, dv


@triton.jit
def key_kernel(
    q, k, v, slopes, levels, deltas, dk, dv, tokens, scale, factor, head_step, row,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_N
    key = first + tl.arange(0, BLOCK_N)
    at = head * head_step + key[:, None] * row + tl.arange(0, D)[None, :]
    inside = key[:, None] < tokens
    keys = tl.load(k + at, mask=inside, other=0.0)
    values = tl.load(v + at, mask=inside, other=0.0)
    k_sum = tl.zeros((BLOCK_N, D), dtype=tl.float32)
    v_sum = tl.zeros((BLOCK_N, D), dtype=tl.float32)
    q += head * head_step
    slopes += head * head_step
    levels += head * tokens
    deltas += head * tokens
    all_see = 0
    if CAUSAL:  # nobody before `first` sees these keys; from `all_see` on, everybody sees them all
        all_see = tl.cdiv(first + BLOCK_N, BLOCK_M) * BLOCK_M
        k_sum, v_sum = add_queries(
            k_sum, v_sum, keys, values, q, slopes, levels, deltas, first // BLOCK_M * BLOCK_M,
            min(all_see, tokens), key, tokens, row, scale, True, BLOCK_M, D,
        )  # fmt: skip
    k_sum, v_sum = add_queries(
        k_sum, v_sum, keys, values, q, slopes, levels, deltas, all_see, tokens, key, tokens, row,
        scale, False, BLOCK_M, D,
    )  # fmt: skip
    tl.store(dk + at, (k_sum * factor).to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + at, v_sum.to(dv.dtype.element_ty), mask=inside)


@triton.jit
def add_keys(
    dq, queries, slope, k, v, level, delta, begin, end, query, tokens, row, scale,
    EDGE: tl.constexpr, BLOCK_M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """What the keys from begin to end add to the gradient of a block of queries."""
    d = tl.arange(0, D)
    for start in range(begin, end, BLOCK_M):
        start = tl.multiple_of(start, BLOCK_M)
        key = start + tl.arange(0, BLOCK_M)
        at = key[:, None] * row + d[None, :]
        # A key that does not exist is 0: whatever its probability, it adds nothing.
        keys = tl.load(k + at, mask=key[:, None] < tokens, other=0.0)
        values = tl.load(v + at, mask=key[:, None] < tokens, other=0.0)
        p = tl.exp2(tl.dot(queries, tl.trans(keys)) * scale - level[:, None])
        if EDGE:
            p = tl.where(key[None, :] <= query[:, None], p, 0.0)
        ds = p * (tl.dot(slope, tl.trans(values)) - delta[:, None])
        dq = tl.dot(ds.to(keys.dtype), keys, dq)
    return dq


@triton.jit
def query_kernel(
    q, k, v, slopes, levels, deltas, dq, tokens, scale, factor, head_step, row,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_N
    query = first + tl.arange(0, BLOCK_N)
    at = head * head_step + query[:, None] * row + tl.arange(0, D)[None, :]
    inside = query[:, None] < tokens
    queries = tl.load(q + at, mask=inside, other=0.0)
    slope = tl.load(slopes + at, mask=inside, other=0.0)
    level = tl.load(levels + head * tokens + query, mask=query < tokens, other=float("inf"))
    delta = tl.load(deltas + head * tokens + query, mask=query < tokens, other=0.0)
    total = tl.zeros((BLOCK_N, D), dtype=tl.float32)
    k += head * head_step
    v += head * head_step
    whole = tokens
    if CAUSAL:
        whole = first // BLOCK_M * BLOCK_M
    total = add_keys(
        total, queries, slope, k, v, level, delta, 0, whole, query, tokens, row, scale,
        False, BLOCK_M, D,
    )  # fmt: skip
    if CAUSAL:
        total = add_keys(
            total, queries, slope, k, v, level, delta, whole, min(first + BLOCK_N, tokens), query,
            tokens, row, scale, True, BLOCK_M, D,
        )  # fmt: skip
    tl.store(dq + at, (total * factor).to(dq.dtype.element_ty), mask=inside)


def choose(d, device):
    """The config for heads of so many features."""
    return CONFIGS[device][0]


def factor(d):
    """What scores are multiplied by: 1 / sqrt(d), and log2(e) for powers of 2."""
    return d**-0.5 * math.log2(math.e)


def forward(q, k, v, out, levels, causal=False, config=None):
    """out = attention of q, k and v, each [heads, tokens, features] with neighbouring features.

    levels: [heads, tokens] float32, kept for the gradients."""
    heads, tokens, d = q.shape
    config = config or choose(d, workbench.device_of(q))
    steps = [step for x in (q, k, v, out) for step in workbench.strides(x)[:2]]
    forward_kernel[lambda meta: (triton.cdiv(tokens, meta["BLOCK_M"]), heads)](
        q, k, v, out, levels, tokens, factor(d), *steps, CAUSAL=causal, D=d, **config
    )


def backward(q, k, v, out, levels, slopes, dq, dk, dv, causal=False, config=None):
    """The gradients of q, k and v for that of out, which is `slopes`; all are laid out alike."""
    heads, tokens, d = q.shape
    device = workbench.device_of(q)
    config = config or GRADIENTS[device][0]
    deltas = workbench.scratch((heads, tokens), device=device)
    layout = workbench.strides(q)[:2]
    delta_kernel[lambda meta: (triton.cdiv(tokens, meta["BLOCK"]), heads)](
        out, slopes, deltas, tokens, *layout, D=d, BLOCK=32
    )
    given = (q, k, v, slopes, levels, deltas)
    numbers = (tokens, factor(d), d**-0.5, *layout)

    def grid(meta):
        return triton.cdiv(tokens, meta["BLOCK_N"]), heads

    key_kernel[grid](*given, dk, dv, *numbers, CAUSAL=causal, D=d, **config)
    query_kernel[grid](*given, dq, *numbers, CAUSAL=causal, D=d, **config)


def reference(q, k, v, causal):
    """In float64: the result and the probabilities."""
    import numpy as np

    score = q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5
    if causal:
        score = np.where(np.tri(q.shape[1], dtype=bool), score, -np.inf)
    e = np.exp(score - score.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    return p @ v, p


def check(heads=3, tokens=201, d=64, causal=None, device="cpu", seed=0, dtype="float16"):
    """causal: both kinds by default."""
    shape, rounded = (heads, tokens, d), workbench.operands_of_dot(dtype, device)
    q, k, v, slopes = (workbench.draw(seed + i, shape, dtype, device) for i in range(4))
    for kind in (False, True) if causal is None else (causal,):
        out, dq, dk, dv = (workbench.empty(shape, dtype, device) for _ in range(4))
        levels = workbench.empty((heads, tokens), device=device)

        def run(kind=kind, out=out, levels=levels, gradients=(dq, dk, dv)):
            forward(q, k, v, out, levels, kind)
            backward(q, k, v, out, levels, slopes, *gradients, kind)

        workbench.assert_repeats(run, out, levels, dq, dk, dv)
        wide = [workbench.exact(x) for x in (q, k, v, slopes)]
        result, p = reference(*wide[:3], kind)
        queries, keys, values, slope = wide
        ds = p * (slope @ values.transpose(0, 2, 1) - (result * slope).sum(axis=2, keepdims=True))
        ds *= d**-0.5
        wanted = (result, ds @ keys, ds.transpose(0, 2, 1) @ queries, p.transpose(0, 2, 1) @ slope)
        # From q and k to the result two products, to its gradients three.
        for found, right, dots in zip((out, dq, dk, dv), wanted, (2, 3, 3, 2), strict=True):
            workbench.assert_close(found, right, terms=tokens, dtype=rounded, dots=dots)


def plot(device):
    """Operations a second, forward, beside PyTorch."""
    import chart
    import torch

    heads, d, dtype = (32, 128, "float16") if device == "cuda" else (2, 64, "float32")
    unit, scale = ("TFLOP/s", 1e-9) if device == "cuda" else ("GFLOP/s", 1e-6)
    lines = {"this kernel": [], "causal": [], "PyTorch": [], "PyTorch, causal": []}
    for tokens in (1024, 2048, 4096, 8192, 16384) if device == "cuda" else (256, 512, 1024):
        shape = (heads, tokens, d)
        q, k, v = (workbench.draw(i, shape, dtype, device) for i in range(3))
        out = workbench.empty(shape, dtype, device)
        levels = workbench.empty((heads, tokens), device=device)
        tensors = [torch.as_tensor(x)[None] for x in (q, k, v)]

        def ours(causal, q=q, k=k, v=v, out=out, levels=levels):
            forward(q, k, v, out, levels, causal)

        def peer(causal, tensors=tensors):
            torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)

        runs = [(ours, False), (ours, True), (peer, False), (peer, True)]
        for line, (run, causal) in zip(lines.values(), runs, strict=True):
            work = 4 * heads * tokens**2 * d / (2 if causal else 1)
            time = workbench.milliseconds(lambda run=run, causal=causal: run(causal), device)
            line.append((tokens, scale * work / time))
    return chart.line_chart(f"attention, {heads} heads of {d}, {dtype}", "tokens", unit, lines)


if __name__ == "__main__":
    workbench.main(__file__, check, plot)
