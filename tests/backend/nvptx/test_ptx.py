"""PTX of representative kernels assembles for sm_80 and sm_90a: no errors, no spills, no wgmma
serialisation warnings (ptxas C75xx). Skips where there is no ptxas."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fuser.backend.nvptx import compile_kernel, lower_to_llvm
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import DType, bf16, f16, f32, f64, i8, i32, u8
from fuser.errors import LoweringError
from fuser.tilegen.builder import Builder
from fuser.tilegen.emit import emit
from fuser.tilegen.index import axis
from fuser.tilegen.ir import Kernel
from fuser.tilegen.passes import run_passes
from fuser.tilegen.rules.gpu.conv import conv_schedule
from fuser.tilegen.rules.gpu.rows import reduce_schedule
from fuser.tilegen.schedule import Schedule
from tests.backend.nvptx import kernels
from tests.interpreted import one_region
from tests.tilegen.problems import image
from tests.tilegen_emit.test_attention import Case, model_of

PTXAS = shutil.which("ptxas")

KERNELS: dict[str, Callable[[], Kernel]] = {
    "map": lambda: kernels.elementwise("erf", f16, 1, n=4096),
    "softmax": lambda: kernels.softmax(77, 4096, f32, (1, 4096), 8),
    "layernorm": lambda: kernels.layernorm(77, 768, f16, (1, 1024)),
    "softmax_cluster": lambda: kernels.softmax(77, 30000, f32, (1, 32768), 16, cluster=4),
    "layernorm_cluster": lambda: kernels.layernorm(77, 8000, f16, (1, 8192), 8, cluster=8),
    "softmax_held": lambda: kernels.softmax(77, 30000, bf16, (1, 32768), 8, held=True),
    "softmax_held_cluster": lambda: kernels.softmax(
        77, 30000, f32, (1, 32768), 8, cluster=2, held=True
    ),
    "layernorm_held": lambda: kernels.layernorm(77, 16000, bf16, (2, 16384), 8, held=True),
    "matmul_cluster": lambda: kernels.matmul(
        256, 512, 4096, f16, (128, 128, 64), warps=8, cluster=4
    ),
    "matmul_small_cluster": lambda: kernels.matmul(8, 512, 4096, f16, (16, 32, 64), cluster=8),
    "matmul_neighbours": lambda: kernels.matmul(
        1000, 1000, 1000, f16, (64, 128, 64), neighbours=(2, 1), transpose_b=True
    ),
    "matmul_neighbours_teams": lambda: kernels.matmul(
        4096, 2048, 1000, f16, (128, 128, 64), neighbours=(2, 2), persistent=True, teams=2
    ),
    "matmul_neighbours_large": lambda: kernels.matmul(
        5120,
        5000,
        1000,
        f16,
        (128, 256, 64),
        warps=8,
        stages=4,
        neighbours=(2, 1),
        persistent=True,
    ),
    "matmul_stream_k": lambda: kernels.matmul(
        4096, 3000, 1000, bf16, (128, 256, 64), warps=8, stream_k=1
    ),
    "matmul_stream_k_teams": lambda: kernels.matmul(
        4096, 2048, 1000, bf16, (128, 128, 64), stream_k=1, teams=2
    ),
    "matmul_stream_k_neighbours": lambda: kernels.matmul(
        5120, 5000, 1000, f16, (128, 256, 64), warps=8, stages=4, neighbours=(2, 1), stream_k=1
    ),
    "matmul_stream_k_copies": lambda: kernels.matmul(
        1000, 1000, 1001, f16, (64, 128, 64), stages=3, stream_k=2
    ),
    "gated_stream_k": lambda: kernels.gated(1000, 768, 3072, warps=8, stream_k=1),
    "convolution_stream_k": lambda: kernels.convolution(
        32, 14, 256, 256, f16, (128, 64, 64), stream_k=2
    ),
    "convolution_cluster": lambda: kernels.convolution(
        1, 7, 512, 512, f16, (64, 64, 64), cluster=8
    ),
    "column_sum": lambda: kernels.reduce_axis("sum", f32, 300, 70, (512, 64), 0),
    "scan": lambda: kernels.scan("sum", f32, 5, 1000, (1, 1024), True),
    "transpose": lambda: kernels.transpose(100, 200, f16, (64, 64)),
    "gather": lambda: kernels.gather(100, 200, 33, f16),
    "matmul_f16": lambda: kernels.matmul(1000, 1000, 1000),
    "matmul_wide": lambda: kernels.matmul(
        1024, 1024, 1024, bf16, (128, 256, 64), warps=8, transpose_b=True
    ),
    "matmul_no_roles": lambda: kernels.matmul(
        1024, 1024, 1024, bf16, (128, 128, 64), warps=8, roles=False
    ),
    "matmul_persistent": lambda: kernels.matmul(
        4096, 4096, 4096, bf16, (128, 256, 64), warps=8, persistent=True
    ),
    "matmul_teams": lambda: kernels.matmul(
        4096, 4096, 768, bf16, (128, 128, 64), persistent=True, teams=2
    ),
    "gated_teams": lambda: kernels.gated(4096, 4096, 768, warps=4, teams=2),
    "matmul_odd_rows": lambda: kernels.matmul(
        1024, 1024, 513, bf16, (128, 256, 64), warps=8, stages=4
    ),
    "matmul_odd": lambda: kernels.matmul(99, 77, 101, f16, (64, 64, 32)),
    "matmul_small": lambda: kernels.matmul(8, 1024, 1024, f16, (16, 64, 64)),
    "matmul_i8": lambda: kernels.matmul(
        1000, 1008, 1040, i8, (128, 128, 128), warps=8, transpose_b=True, epilogue=False, out=i32
    ),
    "matmul_u8_teams": lambda: kernels.matmul(
        4096,
        4096,
        768,
        u8,
        (128, 128, 128),
        transpose_b=True,
        epilogue=False,
        out=i32,
        persistent=True,
        teams=2,
    ),
    "matmul_i8_across": lambda: kernels.matmul(
        1000, 1008, 1040, i8, (128, 128, 64), warps=8, epilogue=False, out=i32
    ),
    "matmul_i8_small": lambda: kernels.matmul(
        8, 1024, 1024, i8, (16, 64, 128), transpose_b=True, epilogue=False, out=i32
    ),
    "matmul_i8_cluster": lambda: kernels.matmul(
        256, 512, 4096, i8, (64, 64, 128), transpose_b=True, epilogue=False, out=i32, cluster=4
    ),
    "matmul_f8": lambda: kernels.matmul(
        1000,
        1008,
        1040,
        u8,
        (128, 128, 128),
        warps=8,
        transpose_b=True,
        epilogue=False,
        out=bf16,
        codes="f8e4m3fn",
        persistent=True,
    ),
    "matmul_f8_small": lambda: kernels.matmul(
        8,
        1024,
        1024,
        u8,
        (16, 64, 128),
        transpose_b=True,
        epilogue=False,
        out=f16,
        codes="f8e5m2",
    ),
    "matmul_f32": lambda: kernels.matmul(1000, 1000, 1000, f32, (64, 64, 32)),
    "matmul_wide_f32": lambda: kernels.matmul(1000, 1000, 1000, f32, (64, 96, 32), wide=True),
    "matmul_f64": lambda: kernels.matmul(70, 50, 60, f64, (32, 32, 32), epilogue=False),
    "attention_64": lambda: kernels.attention(2, 1000, 1000, 64, f16, causal=True),
    "attention_128": lambda: kernels.attention(2, 512, 512, 128, bf16, (128, 64), warps=8),
    "attention_192": lambda: kernels.attention(
        2, 1152, 1152, 64, bf16, (192, 128), causal=True, warps=12
    ),
    "attention_cluster": lambda: kernels.attention(3, 64, 2048, 64, bf16, causal=True, cluster=4),
    "attention_bias": lambda: kernels.attention(
        2, 512, 512, 128, bf16, (128, 64), warps=8, bias="added"
    ),
    "attention_bias_instead": lambda: kernels.attention(
        2, 512, 512, 128, bf16, (128, 64), warps=8, bias="instead"
    ),
    "attention_bias_f32": lambda: kernels.attention(
        2, 512, 512, 128, bf16, (128, 64), warps=8, bias="added", bias_dtype=f32
    ),
    "attention_capped": lambda: emitted((1, 2, 2, 600, 640, 128, 128, "capped window"), 192, 64),
    "attention_capped_biases": lambda: emitted(
        (1, 2, 2, 520, 1152, 128, 128, "capped window biases"), 128, 128
    ),
    "attention_capped_persistent": lambda: emitted(
        (4, 20, 20, 520, 1152, 128, 128, "capped window biases"), 128, 128, persistent=True
    ),
    "attention_small_cluster": lambda: kernels.attention(
        3, 1, 2048, 128, bf16, (16, 32), warps=1, stages=3, cluster=8
    ),
    "gated_cluster": lambda: kernels.gated(64, 128, 2048, blocks=(64, 64, 64), warps=4, cluster=4),
    "attention_256": lambda: kernels.attention(2, 512, 512, 256, bf16, (128, 64), warps=8),
    "gated": lambda: kernels.gated(1024, 512, 768),
    "attention_f32": lambda: kernels.attention(2, 512, 512, 64, f32),
    "convolution": lambda: kernels.convolution(2, 14, 64, 96),
    "convolution_teams": lambda: kernels.convolution(
        32, 56, 64, 64, f16, (128, 64, 64), stages=4, teams=2
    ),
    "convolution_tall": lambda: kernels.convolution(
        32, 14, 256, 256, f16, (192, 64, 64), warps=12, stages=6
    ),
    "convolution_neighbours": lambda: kernels.convolution(
        32, 15, 64, 256, f16, (64, 128, 64), stride=2, neighbours=(1, 2)
    ),
    "convolution_stem": lambda: kernels.convolution(2, 14, 3, 96, stride=2),
}


def emitted(case: Case, rows: int, keys: int, *, persistent: bool = False) -> Kernel:
    """The kernel that the emitter makes of attention in bfloat16, in such blocks."""
    schedule = Schedule(
        blocks=(("m", rows), ("n", keys)), warps=rows // 16, stages=2, persistent=persistent
    )
    partition = one_region(model_of(case, bf16).graph, "attention")
    (program,) = emit(partition.regions[0], partition, SM_90A, schedule)
    run_passes(program.kernel)
    return program.kernel


def assemble(ptx: bytes, target: Target, folder: Path) -> str:
    """ptxas's verbose log."""
    source = folder / "kernel.ptx"
    source.write_bytes(ptx)
    command = [str(PTXAS), f"-arch={target.arch}", "-v", str(source), "-o", str(folder / "cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


LARGE = (
    "attention_192", "attention_256", "attention_capped", "attention_capped_biases",
    "attention_capped_persistent",
    "convolution_tall",
)  # fmt: skip


@pytest.mark.skipif(PTXAS is None, reason="no ptxas")
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda t: t.arch)
@pytest.mark.parametrize("name", KERNELS)
def test_assembles(name: str, target: Target, tmp_path: Path) -> None:
    if name in LARGE and target.sm < 90:
        pytest.skip("needs groups of 64 rows, as wgmma has them, or more shared memory")
    if name.startswith("matmul_f8") and target.sm < 89:
        pytest.skip("no tensor cores for 8-bit floats")
    log = assemble(compile_kernel(KERNELS[name](), target).code, target, tmp_path)
    assert not re.search(r"C75\d\d|warning", log), log
    assert all(int(n) == 0 for n in re.findall(r"(\d+) bytes spill", log)), log


@pytest.mark.parametrize(
    "name, target, unit, copies",
    [
        ("matmul_f16", SM_80, "mma", "cp.async"),
        ("matmul_f16", SM_90A, "wgmma", "tma"),
        ("matmul_no_roles", SM_90A, "wgmma", "cp.async"),
        ("matmul_small", SM_90A, "mma", "cp.async"),
        ("matmul_i8", SM_80, "mma", "cp.async"),
        ("matmul_i8", SM_90A, "wgmma", "tma"),
        ("matmul_i8_across", SM_90A, "wgmma", "tma"),
        ("matmul_i8_small", SM_90A, "mma", "cp.async"),
        ("matmul_f32", SM_80, "mma", "cp.async"),
        ("matmul_f64", SM_80, "none", "none"),
        ("attention_64", SM_90A, "wgmma", "tma"),
        ("convolution", SM_90A, "wgmma", "tma"),
        ("map", SM_90A, "none", "none"),
    ],
)
def test_units(name: str, target: Target, unit: str, copies: str) -> None:
    facts = compile_kernel(KERNELS[name](), target).facts
    assert (facts["tensor_core"], facts["copies"]) == (unit, copies)


@pytest.mark.parametrize("variant", ["teams", "tall", "neighbours"])
def test_windows_come_from_one_elected_thread(variant: str) -> None:
    ptx = compile_kernel(KERNELS[f"convolution_{variant}"](), SM_90A).code.decode()
    (election,) = (i for i, line in enumerate(ptx.splitlines()) if "elect.sync" in line)
    copies = [i for i, line in enumerate(ptx.splitlines()) if "cp.async.bulk.tensor" in line]
    assert copies and min(copies) > election
    walks = [line for line in ptx.splitlines() if "global.im2col" in line]
    assert len(walks) == 1 and ("multicast" in walks[0]) == (variant == "neighbours")


def test_matmuls_of_a_block_are_one_statement() -> None:
    """LLVM takes no sums apart between them: they are most of what it has to compile otherwise."""
    text = lower_to_llvm(KERNELS["matmul_neighbours"](), SM_90A)
    statements = [line for line in text.splitlines() if "wgmma.mma_async" in line]
    assert statements
    assert {line.count("wgmma.mma_async") for line in statements} == {64 // 16}


def test_operands_from_registers_wait_for_products() -> None:
    """Products may run on into the next trip where the producer fetches both operands in turns of
    stages; an operand written by the computing warps has one place, so they end before it is."""
    found = compile_kernel(KERNELS["matmul_odd_rows"](), SM_90A)
    assert found.facts["copies"] == "tma"
    lines = found.code.decode().splitlines()
    stores = [i for i, line in enumerate(lines) if "st.shared.b16" in line]
    first = next(i for i, line in enumerate(lines) if "wgmma.mma_async" in line)
    before = [i for i in range(first) if "wgmma.wait_group.sync.aligned 0" in lines[i]]
    assert stores and before and before[0] < stores[0] < first
    barriers = [line for line in lines[before[0] : stores[0]] if "bar.sync" in line]
    assert len(barriers) == 1


def test_vectors_are_sixteen_bytes() -> None:
    ptx = compile_kernel(kernels.softmax(4096, 4096, f32, (1, 4096), 8), SM_90A).code.decode()
    assert "ld.global.nc.v4.b32" in ptx and "st.global.v4.b32" in ptx


def test_row_is_spread_over_a_cluster() -> None:
    """A row that four blocks share: parts of a block's size, one exchange a reduction. Where there
    are no clusters, or a kernel scans, one block does it all."""
    kernel = KERNELS["softmax_cluster"]()
    found = compile_kernel(kernel, SM_90A)
    ptx = found.code.decode()
    assert (found.cluster, found.launch, found.threads) == (4, (308, 1, 1), 512)
    assert ptx.count("ld.global.nc.v4.b32") == 32768 // 4 // 512 // 4
    assert ptx.count("st.async") == ptx.count("mbarrier.try_wait") == 2
    assert ptx.count("barrier.cluster.wait") == 1  # for the start; no fence, no wait at the end
    alone = compile_kernel(kernel, SM_80)
    assert (alone.cluster, alone.launch) == (1, (77, 1, 1)) and b"mapa" not in alone.code
    scan = kernels.scan("sum", f32, 5, 1000, (1, 1024), False)
    scan.schedule = dataclasses.replace(scan.schedule, cluster=2)
    assert compile_kernel(scan, SM_90A).cluster == 1


def test_long_rows_are_held_in_shared_memory() -> None:
    """Rows are copied once, in 16 bytes, and read in each pass from where the same thread put them;
    what all rows share is loaded where it is used. Rows of odd length stay in registers."""
    found = compile_kernel(kernels.layernorm(77, 16384, bf16, (1, 16384), 8, held=True), SM_90A)
    ptx, vectors = found.code.decode(), 16384 // 256 // 8
    assert 32768 <= found.shared_bytes < 32768 + 256
    assert ptx.count("cp.async.cg.shared.global") == vectors
    assert ptx.count("ld.shared.v4.b32") >= 2 * vectors
    assert len(re.findall(r"ld\.global(\.nc)?\.v4\.b32", ptx)) == 2 * vectors
    assert ptx.count("st.global.v4.b32") == vectors
    assert "cvt.f32.bf16" not in ptx  # a word has two of them, in an instruction each
    assert re.search(r"\.minnctapersm 4\b", ptx)
    odd = compile_kernel(kernels.softmax(77, 16383, bf16, (1, 16384), 8, held=True), SM_90A)
    assert b"cp.async" not in odd.code and odd.shared_bytes < 256
    large = compile_kernel(kernels.softmax(9, 65536, f32, (1, 65536), 8, held=True), SM_90A)
    assert b"cp.async" not in large.code  # more than there is


@pytest.mark.parametrize("name", ["softmax", "layernorm"])
def test_statistics_that_follow_each_other_are_made_together(name: str) -> None:
    """Held rows are read twice, once for maximum and sum or mean and variance and once for the
    results; a cluster exchanges pairs, once. Where padding must not count, the mean comes first."""
    make = {"softmax": kernels.softmax, "layernorm": kernels.layernorm}[name]
    ptx = compile_kernel(make(9, 32768, bf16, (1, 32768), 8, 2, held=True), SM_90A).code.decode()
    vectors = 32768 // 2 // 256 // 8
    reads = ptx.count("ld.shared.v4.b32")
    assert 2 * vectors <= reads < 3 * vectors
    assert ptx.count("st.async") == ptx.count("barrier.cluster.wait") == 1
    assert ptx.count("shfl.sync") == 10
    if name == "layernorm":
        lines = [at.start() for at in re.finditer(r"ld\.global", ptx)]
        assert len(lines) == 2 * vectors  # some are under way before the wait for the others' parts
        assert 0 < sum(at < ptx.index("mbarrier.try_wait") for at in lines) < len(lines)
        odd = kernels.layernorm(9, 30000, bf16, (1, 32768), 8, 2, held=True)
        assert compile_kernel(odd, SM_90A).code.count(b"st.async") == 2


def test_rows_with_another_use_are_not_held() -> None:
    """Sums over the rows of a block too, for which there are no strips."""
    b = Builder("both_ways", Schedule(warps=4, resident_rows=True))
    x, y = b.buffer("x0", f32, 2 * 4096), b.buffer("y", f32, 2 * 4096, role="output")
    z = b.buffer("z", f32, 4096, role="output")
    at = (axis(0, 2), axis(1, 4096))
    tile = b.load(b.view(x, (2, 4096)), at, (2, 4096), pad=None)
    total = b.broadcast(b.reduce("sum", tile, 1), (2, 4096), (0,))
    b.store(b.view(y, (2, 4096)), at, b.map("div", tile, total))
    b.store(b.view(z, (4096,)), (axis(0, 4096),), b.reduce("sum", tile, 0))
    found = compile_kernel(b.build(), SM_90A)
    assert b"cp.async" not in found.code


@pytest.mark.parametrize("columns", [16, 64, 200, 256])
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
def test_short_rows_stay_inside_a_warp(columns: int, dtype: DType) -> None:
    """Several rows a warp, in 16-byte accesses, without barriers."""
    block = reduce_schedule(SM_90A, 1 << 18, columns, 1, dtype.bytes, 1)
    height, width = block.block("rows"), block.block("total")
    assert height * width == 1024
    kernel = kernels.softmax(1 << 18, columns, dtype, (height, width), block.warps)
    ptx = compile_kernel(kernel, SM_90A).code.decode()
    assert ptx.count("st.global.v4.b32") == 1024 * dtype.bytes // 16 // 32 // block.warps
    assert "bar.sync" not in ptx and "st.shared" not in ptx


def test_rows_that_the_l2_still_has_share_blocks() -> None:
    """Rows of a tensor that the previous kernel has just written: fewer, larger blocks, but enough
    for all multiprocessors; larger tensors stream from memory, a row a block."""

    def found(rows: int, columns: int, bytes_: int = 2) -> tuple[int, int]:
        schedule = reduce_schedule(SM_90A, rows, columns, 1, bytes_, 1)
        return schedule.block("rows"), schedule.warps

    assert found(4096, 768) == found(6304, 768) == (4, 2)
    assert found(4096, 2048) == (2, 2) and found(2048, 1024) == (2, 1)
    assert found(128, 768) == found(65536, 1024) == found(4096, 768, 4) == (1, 2)


def test_patches_of_images_are_gathered_in_large_steps() -> None:
    """Few channels, many taps: 64 steps of k at once, small blocks where there are few; the first
    convolution of an image with a short k keeps 16, by two warps where waves are many."""

    def found(m: int, n: int, taps: int) -> tuple[int, int, int, int]:
        schedule = conv_schedule(SM_90A, image(m, n, 3, taps))
        return (*(schedule.block(name) for name in "mnk"), schedule.warps)

    assert found(32 * 196, 768, 256) == (64, 64, 64, 4)
    assert found(196, 768, 256) == (16, 32, 64, 4)
    assert found(112 * 112, 64, 49) == (32, 64, 16, 4)
    assert found(32 * 112 * 112, 64, 49) == (64, 64, 16, 2)


def test_trips_are_spread_over_a_cluster() -> None:
    """Blocks share the trips of a product's loop and add each other's sums; products without a
    tensor core keep one block."""
    for name in ("matmul_cluster", "matmul_small_cluster", "convolution_cluster"):
        found = compile_kernel(KERNELS[name](), SM_90A)
        ptx = found.code.decode()
        blocks = found.cluster
        assert blocks in (4, 8) and found.launch[0] == found.programs * blocks
        assert ptx.count("mapa") == blocks and "ld.shared::cluster." in ptx
        assert ptx.count("barrier.cluster.arrive") == ptx.count("barrier.cluster.wait") == 2
        # descriptors of wgmma hold 18 bits of an address, which has the block's number above them
        assert "wgmma" not in ptx or re.search(r"and\.b32\s+%r\d+, %r\d+, 26\d{4};", ptx)
    kernel = KERNELS["matmul_f64"]()
    kernel.schedule = dataclasses.replace(kernel.schedule, cluster=2)
    assert compile_kernel(kernel, SM_90A).cluster == 1


def test_neighbours_share_their_loads() -> None:
    """Which operand is shared follows from the program numbers in its indices; every consumer
    releases a stage in each block that sends to it, without a fence that waits for memory."""
    shapes = {(2, 1): (1, 1), (1, 2): (1, 1), (2, 2): (2, 0), (4, 1): (1, 1), (2, 4): (2, 0)}
    for neighbours, (shared, own) in shapes.items():
        kernel = kernels.matmul(1024, 1024, 1000, bf16, (128, 128, 64), neighbours=neighbours)
        found = compile_kernel(kernel, SM_90A)
        ptx = found.code.decode()
        count = neighbours[0] * neighbours[1]
        assert found.cluster == count and found.launch == (64, 1, 1)
        copies = [line for line in ptx.splitlines() if "cp.async.bulk.tensor" in line]
        sent = [line for line in copies if "multicast::cluster" in line]
        # k is the row of the right operand, in two blocks of 64 columns
        assert len({line.split("[")[2] for line in sent}) >= shared
        assert (len(sent) == len(copies)) is (own == 0)
        assert ptx.count("mapa.shared::cluster") == 2 and "fence.acq_rel" not in ptx
        assert ".release.cluster.shared::cluster" not in ptx
        readers = {(2, 1): 2, (1, 2): 2, (2, 2): 3, (4, 1): 4, (2, 4): 5}[neighbours]
        assert low_counts(ptx) == {1, readers}


def low_counts(ptx: str) -> set[int]:
    """The numbers of arrivals that the barriers of a kernel wait for."""
    found = set()
    for register in re.findall(r"mbarrier\.init\.shared\.b64\s+\[[^]]+\], (%r\d+);", ptx):
        values = re.findall(rf"mov\.b32\s+{register}, (\d+);", ptx)
        found |= {int(value) for value in values}
    return found


def test_neighbours_are_given_up() -> None:
    """A grid that does not divide, a target without clusters, a loop whose length depends on the
    program, nothing in common, and operands that threads copy: every block loads for itself."""

    def cluster(
        kernel: Kernel, target: Target = SM_90A, neighbours: tuple[int, int] = (2, 1)
    ) -> int:
        kernel.schedule = dataclasses.replace(kernel.schedule, neighbours=neighbours)
        return compile_kernel(kernel, target).cluster

    fits = kernels.matmul(1024, 1024, 1000, bf16, (128, 128, 64))
    assert cluster(fits) == 2 and cluster(fits, SM_80) == 1
    assert cluster(fits, neighbours=(3, 1)) == 1 and cluster(fits, neighbours=(4, 4)) == 1
    assert cluster(kernels.matmul(1100, 1024, 1000, bf16, (128, 128, 64))) == 1
    assert cluster(kernels.matmul(1024, 1001, 1001, bf16, (128, 128, 64))) == 1
    assert cluster(kernels.attention(2, 256, 256, 64, f16, causal=True)) == 1
    assert cluster(kernels.softmax(64, 64, f16, (2, 64))) == 1


def test_score_tile_stays_in_registers() -> None:
    """The probabilities of attention become the second dot's left operand without shared memory."""
    text = lower_to_llvm(kernels.attention(2, 128, 128, 64, f16), SM_80)
    loop = text[text.index("\nbody.") : text.index("\nloop.end.")]
    assert "mma" in loop and "store" not in loop


def test_products_of_attention_overlap() -> None:
    """Both products of a trip are in flight while the softmax runs, and whole blocks below the
    diagonal have a loop without selects."""
    ptx = compile_kernel(KERNELS["attention_192"](), SM_90A).code.decode()
    assert "wgmma.wait_group.sync.aligned 1" in ptx
    trips = [part for part in ptx.split("wgmma.wait_group.sync.aligned 1")[1:]]
    plain = trips[0].split("wgmma.wait_group.sync.aligned 0")[0]
    assert len(trips) == 2 and "ex2" in plain and plain.count("selp.f32") < 8


def test_biases_are_read_beneath_a_product() -> None:
    """A number a key of 16 bits comes beside the keys and is read from shared memory while the
    products are computed, before the scores are awaited; another is loaded then. What is computed
    of it for every score, and the maximum of that, comes later."""
    for name in ("attention_bias", "attention_bias_instead", "attention_bias_f32"):
        ptx = compile_kernel(KERNELS[name](), SM_90A).code.decode()
        trip = ptx.split("wgmma.wait_group.sync.aligned 1")[0].rsplit("wgmma.commit_group", 1)[1]
        reads = "global" if name.endswith("f32") else "shared"
        assert trip.count(f"ld.{reads}") == 64 // 4 // 2  # of 64 keys, pairs of each fourth
        assert "shfl" not in trip and trip.count("ld.") == 64 // 4 // 2


def _iterations(name: str) -> list[str]:
    """What follows the first product of every trip that follows another, up to the next one."""
    ptx = compile_kernel(KERNELS[name](), SM_90A).code.decode()
    return ptx.split("wgmma.wait_group.sync.aligned 1")[1:]


def test_bounded_scores_wait_for_no_maximum() -> None:
    """Capped scores have no maximum; with a bias a key it is that of the biases, but in trips with
    masks, which take that of the scores: their conditions are needed once."""
    for trip in _iterations("attention_capped"):
        body = trip.split("wgmma.fence")[0]
        assert "max.NaN.f32" not in body and body.count("ex2.approx") == 64 // 2
    scores = 2 * 128 // 4  # of two rows, every fourth key
    low, plain, high = (
        part.split("wgmma.fence")[0] for part in _iterations("attention_capped_biases")
    )
    assert plain.count("max.NaN.f32") < scores and plain.count("selp.f32") < 8
    for masked in (low, high):
        assert masked.count("max.NaN.f32") > scores
        assert scores <= masked.count("selp.f32") < scores + 8


def test_groups_of_rows_have_edges_of_their_own() -> None:
    """Where a trip has fewer keys than a block has rows, a warp group's masked trips are those at
    the diagonal of its own rows."""
    first_row = re.compile(r"and i32 %s\d+, -64$", re.MULTILINE)
    assert first_row.search(lower_to_llvm(KERNELS["attention_capped"](), SM_90A))
    assert not first_row.search(lower_to_llvm(KERNELS["attention_capped_biases"](), SM_90A))


def test_dots_of_a_trip_share_a_group() -> None:
    ptx = compile_kernel(KERNELS["gated"](), SM_90A).code.decode()
    assert ptx.count("wgmma.commit_group") == 1


def test_too_much_shared_memory_is_an_error() -> None:
    with pytest.raises(LoweringError, match="shared memory"):
        compile_kernel(kernels.matmul(512, 512, 512, f64, (256, 256, 64), epilogue=False), SM_80)


def test_the_sign_of_zero_is_zero() -> None:
    """Zeros and NaN pass an addition of 0, which makes -0 to 0."""
    ptx = compile_kernel(kernels.elementwise("sign", f32, 1), SM_90A).code.decode()
    assert re.search(r"add\S*\.f32\s+%\w+, %\w+, 0f00000000;", ptx)


@pytest.mark.parametrize("fn", ["div", "mod", "fmod"])
@pytest.mark.parametrize("dtype", [i32, u8], ids=str)
def test_a_division_leaves_the_masks_of_stores(fn: str, dtype: DType) -> None:
    """Lanes past the end divide by a padding of 0. LLVM would conclude that there are none."""
    ptx = compile_kernel(kernels.elementwise(fn, dtype, 2, n=99, block=128), SM_90A).code.decode()
    store = ptx.index("st.global")
    jumps = re.findall(r"@%p\d+ bra\s+(\S+);", ptx[:store])
    assert any(ptx.index(f"{label}:") > store for label in jumps) or "@%p" in ptx[store - 9 : store]
