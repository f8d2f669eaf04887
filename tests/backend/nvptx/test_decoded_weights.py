"""Few rows times weights of 4 and 8 bits: codes travel to registers an iteration ahead."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuser import dtypes
from fuser.backend.nvptx import compile_kernel, gpu_text, lower_to_gpu, mechanisms, pipeline
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.prefetch.prefetch_loads import prefetch_loads
from fuser.backend.nvptx.schedule.expand_loops import expand_loops
from fuser.backend.nvptx.simulate import simulate
from fuser.base.target import SM_80, SM_90A, Target
from fuser.frontends.onnx.model import open_model
from fuser.graph.dims import symbol
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph
from fuser.graph.sizes import Sizes
from fuser.partition import Partition, partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules.gpu.matmul import dot_schedule
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value
from tests import interpreted
from tests.backend.nvptx.simulated import simulated
from tests.backend.nvptx.test_simulate import arrays_of
from tests.numerics import assert_close
from tests.test_packed_weights import feeds_of, product

i32, f32 = dtypes.i32, dtypes.f32
PTXAS = shutil.which("ptxas")
NAME = "loads prefetched"
FORMS = {
    "i4 blocks": ("i4", (1024, 128), 0, 32),
    "u4 blocks zeros": ("u4", (1056, 144), 0, 32, True),
    "u4 short blocks": ("u4", (1100, 136), 0, 20, True),
    "i4 a column": ("i4", (1024, 128), 1),
    "i8 blocks": ("i8", (1088, 128), 0, 64),
    "u8 zeros": ("u8", (1024, 134), 1, 0, True),
    "f8": ("f8", (1024, 128), 1),
}


def eighth(target: Target) -> Target:
    """Of a GPU: it has the schedules of the whole for weights of eight times the columns, and the
    simulator takes its time for each block."""
    return dataclasses.replace(target, units=target.units // 8)


def planned(
    rows: int, form: str, turned: bool = False, target: Target = SM_90A
) -> tuple[Graph, Partition, TileProgram]:
    kind, shape, *rest = FORMS[form]
    shape = shape[::-1] if turned else shape
    axis = None if rest[0] is None else 1 - rest[0] if turned else rest[0]
    model = product(rows, kind, shape, axis, *rest[1:], half=True, turned=turned)
    graph = open_model(model).graph({})
    cut = partition(graph, eighth(target))
    (program,) = emit_programs(cut, eighth(target))
    assert "decode" in program.kernel.schedule.reason
    return graph, cut, program


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 5, 16])
def test_results(rows: int, form: str, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the simulator of the GPU level, where shared memory begins as NaN and copies come late."""
    monkeypatch.setattr(interpreted, "run", simulated)
    graph, cut, program = planned(rows, form, turned)
    feeds = feeds_of(graph)
    found = interpreted.run_programs(cut, feeds, [program])
    for output, array in evaluate(graph, feeds).items():
        assert_close(found[output], array.astype(np.float64), dtypes.f16, FORMS[form][1][0])


def as_bf16(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model of bfloat16, its scales too."""
    graph = model.graph
    for item in (*graph.input, *graph.output):
        item.type.tensor_type.elem_type = TensorProto.BFLOAT16
    for tensor in list(graph.initializer):
        if tensor.data_type == TensorProto.FLOAT16:
            array = numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16)
            graph.initializer.remove(tensor)
            graph.initializer.append(numpy_helper.from_array(array, tensor.name))
    return model


@pytest.mark.parametrize("form", ["i4 blocks", "u4 blocks zeros", "i8 blocks", "u8 zeros"])
def test_results_of_bfloat16(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has room for codes of 4 bits; those of 8 go through float32."""
    monkeypatch.setattr(interpreted, "run", simulated)
    kind, shape, *rest = FORMS[form]
    graph = open_model(as_bf16(product(3, kind, shape, *rest, half=True))).graph({})
    cut = partition(graph, eighth(SM_90A))
    (program,) = emit_programs(cut, eighth(SM_90A))
    assert any("decoded" in d.reason for d in mechanisms(program.kernel, SM_90A))
    feeds = feeds_of(graph)
    found = interpreted.run_programs(cut, feeds, [program])
    for output, array in evaluate(graph, feeds).items():
        assert_close(found[output], array.astype(np.float64), dtypes.bf16, shape[0])


@pytest.mark.parametrize("stored", ["rows", "all rows", "sums"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("m", [3, 8, 16])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_a_kernel_of_somebody_else(
    m: int, warps: int, masked: bool, stored: str, rng: np.random.Generator
) -> None:
    """Codes in words in the usual order, unpacked as anybody would write it: the same mechanism.
    What is masked is 0, whatever row it is of, and so are rows out of bounds where somebody looks
    at them."""
    k, n, bk, bn = 1024, 48, 256, 16
    b = Builder("unpacked", Schedule(warps=warps, stages=2))
    x = b.view(b.buffer("x0", dtypes.f16, m * k), (m, k))
    words = b.view(b.buffer("x1", dtypes.i32, k // 8 * n), (k // 8, n))
    scales = b.view(b.buffer("x2", dtypes.f16, k // 32 * n), (k // 32, n))
    columns = index(b.program_id(0, n // bn)) * bn + axis(1, bn)

    def body(at: Value, acc: Value) -> list[Value]:
        along = index(at) + axis(0, bk)
        mask = None
        if masked:
            place = b.broadcast(b.index(axis(0, bk), (bk,), i32), (16, bk), (1,))
            mask = b.map("lt", place, b.full(200, (16, bk), i32))
        left = b.load(x, (axis(0, 16), index(at) + axis(1, bk)), (16, bk), 0, mask)
        word = b.load(words, (along // 8, columns), (bk, bn))
        shift = b.broadcast(b.index((along % 8) * 4, (bk,), dtypes.i32), (bk, bn), (0,))
        code = b.map("bitwise_and", b.map("shift_right", word, shift), b.full(15, (bk, bn), i32))
        scale = b.cast(b.load(scales, (along // 32, columns), (bk, bn)), f32)
        number = b.map("sub", b.cast(code, f32), b.full(8.0, (bk, bn), f32))
        return [b.dot(left, b.cast(b.map("mul", number, scale), dtypes.f16), acc)]

    (acc,) = b.loop(0, k, bk, [b.full(0.0, (16, bn), f32)], body)
    rows = {"rows": m, "all rows": 16, "sums": 1}[stored]
    y = b.view(b.buffer("y", f32, rows * n, role="output"), (rows, n))
    if stored == "sums":
        total = b.reshape(b.reduce("sum", acc, 0), (1, bn))
        b.store(y, (axis(0, 1), columns), total)
    else:
        b.store(y, (axis(0, 16), columns), acc)
    kernel = b.build()
    unseen = not masked and (stored == "rows" or (stored == "all rows" and m == 16))
    assert ("fill = false" in gpu_text(kernel, SM_90A)) == unseen
    assert any("decoded" in d.reason for d in mechanisms(kernel, SM_90A))
    arrays = arrays_of(kernel, rng)
    codes = rng.integers(0, 16, (k, n))
    arrays["x1"] = (codes.reshape(-1, 8, n) << 4 * np.arange(8)[:, None]).sum(1).astype("u4")
    arrays["x1"] = arrays["x1"].view(np.int32).reshape(-1)
    simulate(lower_to_gpu(kernel, SM_90A), arrays, seed=3, late=True)
    factors = arrays["x2"].astype(np.float64).reshape(-1, n).repeat(32, 0)
    left = arrays["x0"].astype(np.float64).reshape(m, k)
    if masked:
        left = left * (np.arange(k) % bk < 200)
    wanted = left @ ((codes - 8) * factors)
    if stored == "sums":
        wanted = wanted.sum(0, keepdims=True)
    wanted = np.pad(wanted, ((0, rows - len(wanted)), (0, 0)))
    assert_close(arrays["y"].reshape(rows, n), wanted, dtypes.f16, k)


@pytest.mark.parametrize("form", FORMS)
def test_the_first_codes_are_asked_for_before_the_wait(form: str) -> None:
    """And in the loop those of the next iteration come before what decodes these."""
    kernel = planned(1, form)[2].kernel
    (found,) = (d for d in mechanisms(kernel, SM_90A) if d.mechanism == NAME)
    assert found.applied
    text = gpu_text(kernel, SM_90A)
    before, loop = text.split(" = for ", 1)
    first = next(line for line in before.splitlines() if "load &const0[" in line)
    assert before.index(first) < before.index("await_previous")
    assert loop.index("load &const0[") < loop.index("map.mul")


def test_a_residual_travels_under_the_loop() -> None:
    """Codes of the next iteration take few registers: there is room for it."""
    model = product(1, "i4", (2048, 2048), 0, 32, half=True)
    model.graph.node[-1].output[0] = "p"
    model.graph.node.append(helper.make_node("Add", ["p", "r"], ["y"]))
    shape = TensorProto.FLOAT16, [1, 2048]
    model.graph.input.append(helper.make_tensor_value_info("r", *shape))
    (program,) = emit_programs(partition(open_model(model).graph({}), SM_90A), SM_90A)
    found = {decision.mechanism: decision for decision in mechanisms(program.kernel, SM_90A)}
    assert found[NAME].applied
    assert found["operands of the epilogue requested early"].reason == "1 loads"


def test_a_thread_has_each_word_once() -> None:
    """8,192 codes of 4 bits an iteration are 4 words a thread, two vectors of neighbouring columns.
    All of them once before the loop, and once inside."""
    program = planned(1, "i4 blocks")[2]
    blocks = [program.kernel.schedule.block(name) for name in "nk"]
    code = compile_kernel(program.kernel, SM_90A).code.decode()
    words = blocks[0] * blocks[1] // 8 // (32 * program.kernel.schedule.warps)
    assert words == 4
    assert len(re.findall(r"ld\.global\.nc\.v2\.b32", code)) == 2 * words // 2


def test_codes_are_decoded_two_at_a_time() -> None:
    """An instruction masks, sets the exponent of, subtracts from and scales both halves of a word,
    and no number is converted, or goes through shared memory."""
    program = planned(1, "i4 blocks")[2]
    blocks = [program.kernel.schedule.block(name) for name in "nk"]
    code = compile_kernel(program.kernel, SM_90A).code.decode()
    pairs = 2 * blocks[0] * blocks[1] // 2 // (32 * program.kernel.schedule.warps)
    for found in (r"lop3\.b32", r"(add|sub|fma)(\.rn)?\.f16x2", r"mul(\.rn)?\.f16x2"):
        assert len(re.findall(found, code)) == pairs
    assert not re.findall(r"cvt\.rn\.f32\.s32|ldmatrix", code)


@pytest.mark.parametrize("form", ["u4 blocks zeros", "u8 zeros", "i8 blocks"])
def test_zero_points_are_taken_off_two_at_a_time(form: str) -> None:
    """They are constants of float32, which hold whole numbers of as many bits as the codes."""
    code = compile_kernel(planned(1, form)[2].kernel, SM_90A).code.decode()
    assert re.findall(r"mul(\.rn)?\.f16x2", code)
    assert not re.findall(r"cvt\.rn\.f32\.s32|ldmatrix", code)
    assert len(re.findall(r"cvt\.rn\.f16x2\.f32", code)) <= 1  # the result


@pytest.mark.parametrize("depth", [2048, 2304, 2816])
def test_results_of_any_number_of_iterations(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are one, and the first is alone where their number is odd."""
    monkeypatch.setattr(interpreted, "run", simulated)
    graph = open_model(product(2, "u4", (depth, 128), 0, 32, True, half=True)).graph({})
    cut = partition(graph, eighth(SM_90A))
    (program,) = emit_programs(cut, eighth(SM_90A))
    assert "decode" in program.kernel.schedule.reason
    feeds = feeds_of(graph)
    found = interpreted.run_programs(cut, feeds, [program])
    for output, array in evaluate(graph, feeds).items():
        assert_close(found[output], array.astype(np.float64), dtypes.f16, depth)


def test_results_do_not_change(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit, with the pass and without."""
    kernel = planned(3, "u4 blocks zeros")[2].kernel
    with monkeypatch.context() as patch:
        kept = [item for item in pipeline.PASSES if item.name != "prefetch loads"]
        patch.setattr(pipeline, "PASSES", kept)
        text = gpu_text(kernel, SM_90A)
    arrays = arrays_of(kernel, rng)
    again = {name: array.copy() for name, array in arrays.items()}
    simulate(parse_program(text), arrays, seed=1, late=True)
    program = parse_program(text)
    decision = prefetch_loads(program)
    expand_loops(program)
    assert decision is not None and decision.reason == "3 loads an iteration ahead"
    verify(program)
    simulate(program, again, seed=2, late=True)
    assert all(array.tobytes() == again[name].tobytes() for name, array in arrays.items())
    assert any(np.abs(array.astype(float)).max() > 0 for array in arrays.values())


def test_what_an_index_is_made_of_moves_too(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = planned(1, "i4 blocks")[2].kernel
    with monkeypatch.context() as patch:
        kept = [item for item in pipeline.PASSES if item.name != "prefetch loads"]
        patch.setattr(pipeline, "PASSES", kept)
        text = gpu_text(kernel, SM_90A)
    line = next(line for line in text.splitlines() if "load &const0[" in line)
    (variable,) = re.findall(r"body \((%s\d+)[ ,]", text)
    moved = line.replace(f"{variable} ", "%there ")
    assert moved != line
    text = text.replace(line, f"    %there := add i32 {variable}, 0\n{moved}")
    program, plain = parse_program(text), parse_program(text)
    assert prefetch_loads(program) is not None
    expand_loops(program)
    verify(program)
    arrays = arrays_of(kernel, rng)
    again = {name: array.copy() for name, array in arrays.items()}
    simulate(program, arrays, seed=1, late=True)
    simulate(plain, again, seed=2)
    assert all(array.tobytes() == again[name].tobytes() for name, array in arrays.items())


@pytest.mark.parametrize("half", [False, True])
def test_scales_keep_their_bytes(half: bool) -> None:
    """Those of float16 are no float32 in memory; others are not rounded."""
    model = product(1, "i4", (1024, 1024), 0, 32, half=half)
    (program,) = emit_programs(partition(open_model(model).graph({}), SM_90A), SM_90A)
    scales = next(b for b in program.kernel.buffers if b.role == "constant" and b.size == 1 << 15)
    assert scales.dtype is (dtypes.f16 if half else dtypes.f32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("n", "k", "count"), [
    (2048, 2048, 1), (2560, 2048, 1), (5632, 2048, 2), (2048, 5632, 1), (32000, 2048, 1),
    (1024, 1030, 1),
])  # fmt: skip
def test_blocks(bits: int, n: int, k: int, count: int) -> None:
    """Most multiprocessors have one, a thread no more than 96 bytes of codes an iteration, and each
    warp as much of it as the others."""
    schedule = dot_schedule(SM_90A, Problem(1, n, k, 16, count, streamed=False, decoded=bits))
    columns, depth = schedule.block("n"), schedule.block("k")
    assert columns * depth * count * bits // 8 <= 256 * 96 and 2 * depth <= k
    assert schedule.warps == 8 and depth % (8 * 4 * 32 // bits) == 0
    assert k % depth == 0 or k == 1030
    assert columns == 16 or -(-n // columns) >= 0.9 * SM_90A.units


@pytest.mark.parametrize("depth", [512, 576])
@pytest.mark.parametrize("form", ["i4 blocks", "u8 zeros"])
def test_many_rows_without_wgmma(form: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are decoded into shared memory, which both halves of an iteration have."""
    monkeypatch.setattr(interpreted, "run", simulated)
    kind, _, *rest = FORMS[form]
    graph = open_model(product(100, kind, (depth, 64), *rest, half=True)).graph({})
    cut = partition(graph, eighth(SM_80))
    programs = emit_programs(cut, eighth(SM_80))
    assert programs[0].kernel.schedule.block("m") == 32
    decisions = [d for p in programs for d in mechanisms(p.kernel, SM_80)]
    assert any(d.mechanism == NAME and d.applied for d in decisions)
    assert not any("decoded" in d.reason for d in decisions)
    feeds = feeds_of(graph)
    found = interpreted.run_programs(cut, feeds, programs)
    for output, array in evaluate(graph, feeds).items():
        assert_close(found[output], array.astype(np.float64), dtypes.f16, depth)


@pytest.mark.parametrize(("rows", "block"), [(2, 8), (8, 8), (9, 16), (16, 16)])
def test_a_kernel_of_open_rows_says_for_how_many_it_is(rows: int, block: int) -> None:
    """8 rows take half of what an instruction multiplies; more of them would take a second block,
    which decodes all again."""
    with Sizes({"batch": rows}) as sizes:
        m = symbol("batch")
        schedule = dot_schedule(SM_90A, Problem(m, 2048, 2048, 16, streamed=False, decoded=4))
        assert schedule.block("m") == block
        assert [str(guard) for guard in sizes.guards] == [
            "8 >= batch" if block == 8 else "batch >= 9"
        ]
        dot_schedule(SM_90A, Problem(m, 2048, 2048, 16, streamed=True))
        assert len(sizes.guards) == 1


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas")
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda target: target.arch)
@pytest.mark.parametrize("form", FORMS)
def test_ptxas_takes_it_without_spills(form: str, target: Target, tmp_path: Path) -> None:
    code = tmp_path / "kernel.ptx"
    code.write_bytes(compile_kernel(planned(16, form, target=target)[2].kernel, target).code)
    command = [str(PTXAS), f"-arch={target.arch}", "-v", str(code), "-o", str(tmp_path / "cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", done.stderr), done.stderr
