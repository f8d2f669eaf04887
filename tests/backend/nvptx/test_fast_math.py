"""Cheaper code where results are rounded to 16 bits, and what rows of them leave in registers."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fuser
from fuser.backend.nvptx import compile_kernel
from fuser.backend.nvptx.emit.elementwise import _ERF_LOGIT, _HALF_ERFC
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import DType, bf16, f16
from fuser.frontends.onnx.model import open_model
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.emit import emit
from fuser.tilegen.rules.gpu.conv import conv_schedule
from fuser.tilegen.rules.gpu.matmul import dot_schedule
from fuser.tilegen.rules.gpu.rows import reduce_schedule
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule
from tests.interpreted import one_region
from tests.test_growth import counted
from tests.tilegen.problems import image
from tests.tilegen_emit.test_attention import model_of

HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT


def model(kind: str, shape: tuple[int, ...], dtype: int, **attributes: Any) -> Any:
    """One node of one operand."""
    x, y = (helper.make_tensor_value_info(name, dtype, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"], **attributes)], "one", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def ptx(kind: str, shape: tuple[int, ...], dtype: int, **attributes: Any) -> str:
    """The PTX of its one kernel."""
    cut = partition(open_model(model(kind, shape, dtype, **attributes)).graph({}), SM_90A)
    (program,) = emit_programs(cut, SM_90A)
    return compile_kernel(program.kernel, SM_90A).code.decode()


def test_erf_logit() -> None:
    x = np.linspace(-6, 6, 4001, dtype=np.float32)
    square = np.minimum(x * x, np.float32(12.25))
    logit = x * np.polynomial.polynomial.polyval(square, np.float32(_ERF_LOGIT))
    found = 1 / (0.5 + 0.5 * np.exp2(-logit.astype(np.float64)))
    expected = 1 + np.array([math.erf(value) for value in x])
    assert np.abs(found - expected).max() < 3e-7


def test_half_erfc() -> None:
    """GELU keeps its relative error down to the smallest results of 16 bits, and ends in 0."""
    x = np.linspace(-12.5, 12.5, 5001, dtype=np.float32)
    size = np.minimum(np.abs(x), np.float32(12 / math.sqrt(0.5)))
    terms = [np.float32(c * math.sqrt(0.5) ** n) for n, c in enumerate(_HALF_ERFC)]
    share = np.float32(0)
    for term in reversed(terms):
        share = np.float32(share * size) + term
    found = np.maximum(x, 0) - size.astype(np.float64) * np.exp2(share.astype(np.float64))
    expected = np.array([v / 2 * math.erfc(-v * math.sqrt(0.5)) for v in x.astype(np.float64)])
    error = np.abs(found - expected)
    assert error.max() < 1e-6
    seen = x > -6.2
    assert (error[seen] <= 1e-5 * np.abs(expected[seen])).all()
    assert np.abs(found[x < -12]).max() < 1e-30


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_halves_has_no_branches(approximate: str) -> None:
    text = ptx("Gelu", (64, 1024), HALF, approximate=approximate)
    assert not re.search(r"copysign|selp\.f32|div\.full", text)


def products(body: str, dtype: str = "float16") -> str:
    """The PTX of a body of ONNX text from x to y."""
    text = f"""<ir_version: 10, opset_import: ["": 20]>
        products ({dtype}[64, 1024] x, {dtype}[64, 1024] z) => ({dtype}[64, 1024] y) {{ {body} }}"""
    cut = partition(open_model(onnx.parser.parse_model(text)).graph({}), SM_90A)
    (program,) = emit_programs(cut, SM_90A)
    return compile_kernel(program.kernel, SM_90A).code.decode()


HEAD = """r = Constant<value_float=0.70710678>() rh = CastLike(r, x) h = Constant<value_float=0.5>()
    half = CastLike(h, x) o = Constant<value_float=1.0>() one = CastLike(o, x)"""


@pytest.mark.parametrize(
    "body",
    [
        "s = Mul(x, rh) e = Erf(s) p = Add(e, one) a = Mul(x, half) y = Mul(a, p)",
        "s = Mul(x, rh) e = Erf(s) p = Add(one, e) a = Mul(p, x) y = Mul(half, a)",
        "s = Mul(rh, x) e = Erf(s) p = Add(e, one) a = Mul(p, half) y = Mul(x, a)",
        "s = Mul(rh, x) e = Erf(s) p = Add(e, one) a = Mul(p, x) b = Mul(a, half) y = Mul(b, z)",
    ],
)
def test_gelu_takes_one_special_function(body: str) -> None:
    """In whatever order an export multiplies; none of them is a reciprocal."""
    text = products(f"{HEAD} {body}")
    count = len(re.findall(r"ex2\.approx", text))
    assert "rcp.approx" not in text and count == len(re.findall(r"max\.NaN\.f32", text)) > 0


@pytest.mark.parametrize(
    "body",
    [
        "s = Mul(z, rh) e = Erf(s) p = Add(e, one) y = Mul(x, p)",
        "s = Mul(x, rh) e = Erf(s) p = Add(e, half) y = Mul(x, p)",
        "s = Mul(x, rh) e = Erf(s) p = Add(e, one) c = Cos(p) y = Mul(x, c)",
    ],
)
def test_what_is_no_gelu(body: str) -> None:
    assert "max.NaN" not in products(f"{HEAD} {body}")


def test_powers_are_no_work() -> None:
    """Products of products of one value are not taken apart, 2^n factors of them."""

    def calls(count: int) -> int:
        squares = " ".join(f"x{i + 1} = Mul(x{i}, x{i})" for i in range(count))
        return counted(lambda: products(f"x0 = Neg(x) {squares} y = Identity(x{count})"))

    calls(4)  # what is imported and remembered once is
    few, many = calls(8), calls(16)
    assert many < 2.5 * few


def test_gelu_of_a_product() -> None:
    """What goes through the GELU may be a product itself."""
    body = "w = Mul(x, z) s = Mul(w, rh) e = Erf(s) p = Add(e, one) a = Mul(w, half) y = Mul(a, p)"
    assert "max.NaN" in products(f"{HEAD} {body}")


def test_gelu_of_singles_is_no_short_form() -> None:
    body = "s = Mul(x, rh) e = Erf(s) p = Add(e, one) y = Mul(x, p)"
    assert "max.NaN" not in products(f"{HEAD} {body}", "float")


@pytest.mark.parametrize("kind", ["Exp", "Softmax"])
def test_exp_is_split_for_singles_alone(kind: str) -> None:
    """2^n beside 2^f, so that large arguments keep their accuracy; 16 bits do not show it."""
    assert "shl.b32" in ptx(kind, (64, 1024), SINGLE)
    text = ptx(kind, (64, 1024), HALF)
    assert "ex2.approx" in text and not re.search(r"shl\.b32 .*, 23;", text)


def test_erf_of_singles_is_exact() -> None:
    assert "rcp.approx" not in ptx("Gelu", (64, 1024), SINGLE, approximate="none")


@pytest.mark.parametrize(("dtype", "blocks"), [(HALF, 4), (SINGLE, 2), (TensorProto.DOUBLE, 1)])
def test_long_rows_share_a_processor(dtype: int, blocks: int) -> None:
    text = ptx("LogSoftmax", (512, 16384), dtype, axis=1)
    assert re.search(rf"\.minnctapersm {blocks}\b", text)


def test_schedules_of_long_rows() -> None:
    """Rows that one block cannot hold are spread over a cluster, where there are clusters."""
    found = {
        (target.arch, total, reads): reduce_schedule(target, 1024, total, 1, 4, reads)
        for target in (SM_90A, SM_80)
        for total in (16384, 50000, 200000)
        for reads in (0, 1, 3)
    }
    widths = {key: (s.block("total"), s.cluster, s.warps) for key, s in found.items()}
    assert widths["sm_90a", 16384, 1] == (16384, 1, 16)
    assert widths["sm_90a", 50000, 1] == (65536, 4, 16)
    assert widths["sm_90a", 50000, 3] == (65536, 8, 8)
    alone = [("sm_90a", 50000, 0), ("sm_90a", 200000, 1), ("sm_80", 50000, 1)]
    assert all(widths[key] == (16384, 1, 16) for key in alone)
    doubles = [reduce_schedule(SM_90A, 9, total, 1, 8, 1) for total in (50000, 100000)]
    assert [(s.block("total"), s.cluster) for s in doubles] == [(65536, 8), (16384, 1)]


def test_schedules_of_held_rows() -> None:
    """Rows stay in shared memory where registers hold too few of them: (inputs with rows of their
    own, bytes of an element of all, lines that rows share) to blocks a row, 0 for registers."""

    def blocks(total: int, *held: int, target: Target = SM_90A) -> int:
        found = reduce_schedule(target, 1024, total, 1, 4, 1, held)
        return found.cluster if found.resident_rows else 0

    assert [blocks(n, 1, 2, 0) for n in (8192, 16384, 32768, 65536, 131072)] == [0, 1, 1, 2, 4]
    assert [blocks(n, 1, 4, 0) for n in (16384, 32768, 65536, 131072)] == [0, 2, 4, 0]
    assert blocks(16384, 1, 4, 2) == 1 and blocks(16384, 2, 4, 2) == 0
    assert blocks(65536, 2, 4, 2) == 4 and blocks(65536, 2, 8, 2) == 0
    assert blocks(50000, 1, 2, 0) == 2 and blocks(50001, 1, 2, 0) == 0
    assert blocks(65536, 0, 0, 0) == blocks(65536, 1, 2, 0, target=SM_80) == 0
    pairs = [reduce_schedule(SM_90A, n, 65536, 1, 2, 1, (1, 2, 2)) for n in (1024, 9)]
    assert [(s.block("rows"), s.cluster) for s in pairs] == [(2, 4), (1, 2)]


def test_schedules_of_few_tiles() -> None:
    """Few tiles and a long k: clusters share k, or blocks that leave their sums in memory, unless
    there are none, or results are reduced."""

    def blocks(m: int, n: int, k: int, folded: bool = False, target: Target = SM_90A) -> int:
        return dot_schedule(target, Problem(m, n, k, 16, folded=folded)).cluster

    assert [blocks(m, 768, 3072) for m in (1, 64, 128, 256, 512)] == [8, 8, 4, 1, 1]
    parts = [dot_schedule(SM_90A, Problem(m, 768, 3072, 16, folded=False)) for m in (128, 256)]
    assert [found.stream_k for found in parts] == [0, 1]
    assert blocks(256, 768, 2048) == 1 and blocks(256, 768, 1024) == 1
    assert dot_schedule(SM_90A, Problem(256, 768, 3072, 16)).stream_k == 0
    assert blocks(128, 768, 1024) == blocks(128, 768, 3072, folded=True) == 1
    assert blocks(128, 768, 3072, target=SM_80) == 1
    few = (49, 512, 512, 9)
    assert conv_schedule(SM_90A, image(*few, streamed=True)).cluster == 8
    assert conv_schedule(SM_90A, image(*few)).cluster == 1


def test_schedules_of_convolutions() -> None:
    """One wave of tall tiles, and rings that let three blocks share a multiprocessor."""
    tall = conv_schedule(SM_90A, image(32 * 28 * 28, 128, 128, 9))
    assert (tall.block("m"), tall.block("n"), tall.warps) == (192, 128, 12)
    shared = conv_schedule(SM_90A, image(32 * 28 * 28, 128, 512, 1))
    assert (shared.block("m"), shared.block("n"), shared.stages) == (64, 128, 3)
    assert conv_schedule(SM_80, image(32 * 28 * 28, 128, 128, 9)).warps == 8


def test_schedules_of_convolutions_that_the_copy_engine_feeds() -> None:
    """What was fastest of some twenty schedules on an H200."""

    def found(m: int, n: int, channels: int, taps: int) -> tuple[int, int, int, int, bool]:
        s = conv_schedule(SM_90A, image(m, n, channels, taps, streamed=True))
        return s.block("m"), s.block("n"), s.warps, s.stages, s.persistent

    teams, one_wave = (128, 64, 4, 4, True), (192, 64, 12, 6, False)
    assert found(32 * 56 * 56, 64, 64, 9) == found(32 * 28 * 28, 128, 128, 9) == teams
    assert found(32 * 56 * 56, 64, 256, 1) == found(32 * 28 * 28, 128, 512, 1) == teams
    assert found(32 * 14 * 14, 256, 256, 9) == found(32 * 14 * 14, 256, 1024, 1) == one_wave
    assert (
        found(32 * 7 * 7, 512, 512, 9) == found(32 * 7 * 7, 512, 2048, 1) == (64, 128, 4, 9, False)
    )
    assert found(32 * 28 * 28, 512, 128, 1) == (128, 128, 4, 4, True)
    assert found(32 * 7 * 7, 2048, 512, 1) == (128, 128, 4, 4, True)
    assert found(56 * 56, 64, 64, 9) == (64, 32, 4, 9, False)
    assert found(28 * 28, 128, 128, 9) == (64, 64, 4, 10, False)
    assert not found(32 * 28 * 28, 128, 96, 9)[4]
    narrow = conv_schedule(SM_90A, image(32 * 28 * 28, 128, 96, 9, streamed=True))
    assert narrow.block("k") == 32 and not narrow.im2col


def test_neighbours_where_requests_limit() -> None:
    """Rows that begin off the sectors of L2: pairs of programs share the side that costs more, if
    that is worth a cluster; large products get larger tiles."""

    def found(m: int, n: int, k: int, left: bool, right: bool, **more: bool) -> Schedule:
        return dot_schedule(SM_90A, Problem(m, n, k, 16, misaligned=(left, right), **more))

    assert found(1000, 1000, 1000, True, True).neighbours in ((2, 1), (1, 2))  # either side
    assert found(1024, 1000, 1024, False, True).neighbours == (2, 1)
    assert found(1000, 1024, 1000, True, False).neighbours == (1, 2)
    assert found(1024, 1024, 1024, False, False).neighbours == (1, 1)
    assert found(1000, 1000, 1000, True, True, streamed=False).neighbours == (1, 1)
    assert found(8, 4096, 4100, True, False).neighbours == (1, 1)
    assert found(960, 1000, 1000, True, True).neighbours != (2, 1)  # 15 rows of blocks
    large = found(5000, 5000, 5000, True, True)
    assert (large.block("m"), large.block("n"), large.warps) == (128, 256, 8)
    assert large.neighbours == (2, 1) and large.persistent
    assert found(8192, 1000, 4096, False, True).neighbours == (2, 1)


@pytest.mark.parametrize(("last", "cluster"), [(True, 8), (False, 1)])
def test_images_are_shared_where_they_are_copied(last: bool, cluster: int) -> None:
    """The channels of an image must be adjacent for its blocks to be copied as they are."""
    rng = np.random.default_rng(0)
    shape = (1, 7, 7, 256) if last else (1, 256, 7, 7)
    w = rng.standard_normal((128, 256, 3, 3)).astype(np.float16)
    nodes = [
        *([helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2])] if last else []),
        helper.make_node("Conv", ["t" if last else "x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]),
    ]
    x = helper.make_tensor_value_info("x", HALF, shape)
    y = helper.make_tensor_value_info("y", HALF, (1, 7, 7, 128))
    graph = helper.make_graph(nodes, "conv", [x], [y], [numpy_helper.from_array(w, "w")])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    cut = partition(open_model(source).graph({}), SM_90A)
    kernels = [p.kernel for p in emit_programs(cut, SM_90A) if "conv" in p.kernel.name]
    assert [compile_kernel(kernel, SM_90A).cluster for kernel in kernels] == [cluster]


def test_schedules_of_thin_products() -> None:
    for n, k, dots, blocks in (
        (4096, 4096, 1, (16, 32, 256, 8)), (2048, 5632, 1, (16, 32, 256, 8)),
        (5632, 2048, 2, (16, 64, 64, 11)), (1024, 1024, 1, (16, 16, 256, 4)),
        (2560, 2048, 1, (16, 32, 256, 5)),  # all of k would have room
        (32000, 2048, 1, (16, 128, 64, 6)),  # two blocks share a multiprocessor's memory
    ):  # fmt: skip
        thin = dot_schedule(SM_90A, Problem(1, n, k, 16, dots))
        assert (thin.block("m"), thin.block("n"), thin.block("k"), thin.stages) == blocks
    assert dot_schedule(SM_90A, Problem(64, 4096, 4096, 16)).stages == 13
    wide = dot_schedule(SM_90A, Problem(1024, 1024, 1024, 16))
    assert (wide.block("m"), wide.block("n")) == (64, 128)
    for m, n, k, block in (
        (4096, 3072, 768, (128, 128)), (4096, 768, 768, (64, 192)), (8192, 8192, 8192, (128, 128)),
    ):  # fmt: skip
        teams = dot_schedule(SM_90A, Problem(m, n, k, 16))
        assert teams.persistent and teams.consumer_groups == 2
        assert (teams.block("m"), teams.block("n")) == block
    assert not dot_schedule(SM_90A, Problem(4096, 4096, 4096, 16, streamed=False)).persistent
    assert dot_schedule(SM_90A, Problem(4095, 4097, 129, 16, streamed=False)).block("k") == 48
    split = dot_schedule(SM_90A, Problem(4096, 4096, 4096, 32, streamed=False))
    assert (split.block("m"), split.block("n")) == (128, 64)
    wide = dot_schedule(SM_90A, Problem(4096, 4096, 4096, 32))
    assert wide.tf32x3 and (wide.block("m"), wide.block("k")) == (64, 32)


@pytest.mark.cuda
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(HALF, 1e-3), (SINGLE, 1e-6)])
def test_gelu(dtype: int, tolerance: float, approximate: str) -> None:
    x = np.linspace(-9, 9, 64 * 1024).reshape(64, 1024)
    x = x.astype(np.float16 if dtype == HALF else np.float32)
    plan = fuser.compile(model("Gelu", x.shape, dtype, approximate=approximate), device="cuda")
    found = plan.run({"x": x})["y"].astype(np.float64)
    wide = x.astype(np.float64)
    if approximate == "tanh":
        expected = wide / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    else:
        expected = wide / 2 * (1 + np.vectorize(math.erf)(wide * math.sqrt(0.5)))
    assert np.abs(found - expected).max() <= tolerance * 9


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_caps_of_scores(dtype: DType) -> None:
    """One instruction where the probabilities keep 8 bits, an exponential and a reciprocal else."""
    case = (1, 66, 66, 256, 256, 64, 64, "capped window")
    graph = one_region(model_of(case, dtype).graph, "attention")
    (program,) = emit(graph.regions[0], graph, SM_90A)
    text = compile_kernel(program.kernel, SM_90A).code.decode()
    assert ("tanh.approx" in text) == (dtype is bf16)
    assert ("rcp.approx" in text) == (dtype is f16)


def test_windows_are_masked_at_their_edges() -> None:
    """The loop between the edges has a product and no selects of scores."""
    case = (1, 66, 66, 1024, 1024, 128, 128, "capped window")
    schedule = Schedule(blocks=(("m", 128), ("n", 64)), warps=8, stages=2)
    graph = one_region(model_of(case, bf16).graph, "attention")
    (program,) = emit(graph.regions[0], graph, SM_90A, schedule)
    text = compile_kernel(program.kernel, SM_90A).code.decode()
    # ptxas sees a trip as the code between two waits for all products
    trips = [part for part in text.split("wgmma.wait_group") if "tanh.approx" in part]
    selects = [len(re.findall(r"selp\.(?:f32|b32)", trip)) for trip in trips]
    assert len(trips) == 4 and min(selects) < 8 and sorted(selects)[1] >= 32, selects
