"""Whole plans from the cache: the same bits, never stale, rebuilt where damaged."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fuser
from fuser import dtypes
from fuser.base.limits import Limits
from fuser.errors import InvalidModelError, LimitError, OutOfMemoryError
from fuser.frontends.onnx import model as onnx_models
from fuser.graph.numerics import using
from fuser.pipeline import plan_cache, tuning
from fuser.pipeline.native_code import recall
from fuser.runtime import jit, source
from fuser.runtime.cache import KernelCache
from fuser.runtime.native import runtime_ir
from fuser.runtime.source import Source
from fuser.tilegen.program import Packing


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache; under fast numerics, so that plans have weights that passes computed."""
    monkeypatch.setenv("FUSER_CACHE_DIR", str(tmp_path / "cache"))
    with using("fast"):
        yield tmp_path / "cache"


def model(seed: int = 0) -> onnx.ModelProto:
    """A convolution with its batch normalisation (folded into weights that are in no file), and a
    product whose weights are packed from the file."""
    random = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32) * 0.2

    arrays = {
        "kernel": draw(64, 64, 3, 3), "scale": draw(64), "shift": draw(64), "mean": draw(64),
        "variance": np.abs(draw(64)) + 1, "w": draw(64, 300), "table": draw(300, 64),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"]),
        helper.make_node("GlobalAveragePool", ["n"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("MatMul", ["m", "table"], ["y"]),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64, 9, 9]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, [5]),
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "rows")],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


FEEDS = {
    "x": np.random.default_rng(1).standard_normal((1, 64, 9, 9)).astype(np.float32),
    "ids": np.array([3, 0, 299, 7, 7]),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    file.write_bytes(model().SerializeToString())
    return file


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was compiled: a plan from the cache never gets here."""
    made: list[Any] = []
    inner = onnx_models.compile_new

    def compile_new(path: Any, **options: Any) -> Any:
        made.append(path)
        return inner(path, **options)

    monkeypatch.setattr(onnx_models, "compile_new", compile_new)
    yield made


def load(path: Path, **options: Any) -> fuser.Plan:
    return fuser.compile(path, **{"device": "cpu", "threads": 1, **options})


def bits(plan: fuser.Plan) -> list[bytes]:
    return [array.tobytes() for array in plan.run(FEEDS).values()]


def test_the_second_compile_is_a_load(path: Path, compiles: list[Any]) -> None:
    first = load(path)
    second = load(path)
    assert len(compiles) == 1
    third = onnx_models.compile(path, device="cpu", threads=2)
    assert len(compiles) == 2  # threads decide schedules
    assert bits(onnx_models.compile(path, device="cpu", threads=2)) == bits(third)
    assert len(compiles) == 2
    assert bits(first) == bits(second) == bits(third)
    assert bits(first) == bits(fuser.compile(model(), device="cpu", threads=1))
    assert first.inputs == second.inputs and first.outputs == second.outputs
    assert first.peak_memory_bytes == second.peak_memory_bytes
    a, b = first.report().to_dict(), second.report().to_dict()
    assert b["cache_hits"] > 0
    for key in ("compile_s", "cache_hits"):
        a.pop(key), b.pop(key)
    assert a == b and first.report().dims == second.report().dims == {"batch": 1}
    assert a["launches"] and a["boundary_bytes"]["after"] > 0
    for name, array in first.random_feeds(3).items():
        np.testing.assert_array_equal(array, second.random_feeds(3)[name], strict=True)


def test_workers_load_while_a_new_file_is_imported(
    path: Path, compiles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr("fuser.backend.workers.start", lambda _: started.append(len(compiles)))
    load(path)
    load(path)
    assert started == [0] and len(compiles) == 1


def test_computed_weights_are_stored_and_others_read(path: Path) -> None:
    records: list[Any] = []
    inner = Source.to_record

    def to_record(self: Source) -> dict[str, Any]:
        records.append(inner(self))
        return records[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Source, "to_record", to_record)
        plan = load(path)
    read = sum(int(np.prod(record["shape"])) * 4 for record in records)
    assert read == 3 * 64 * 300 * 4  # w, and the table as rows and as a matrix
    for record in records:
        assert Source.from_record(record).to_record() == record
    assert plan.peak_memory_bytes > read


def test_content_decides(path: Path, compiles: list[Any]) -> None:
    first = bits(load(path))
    status = path.stat()
    path.write_bytes(model(1).SerializeToString())  # as long as before
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    second = bits(load(path))
    assert first != second
    path.write_bytes(model().SerializeToString())
    assert bits(load(path)) == first
    path.write_bytes(model(1).SerializeToString())
    assert bits(load(path)) == second
    assert len(compiles) == 2


def test_choices_decide(path: Path, compiles: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    load(path, fusion=False)
    assert load(path, dims={"batch": 2}).inputs[0].shape == (2, 64, 9, 9)
    assert load(path, values={"ids": FEEDS["ids"]}).inputs == load(path).inputs[:1]
    load(path, values={"ids": FEEDS["ids"] + 0})
    load(path, values={"ids": FEEDS["ids"][::-1]})
    assert len(compiles) == 5
    monkeypatch.setattr(plan_cache, "versions", lambda: {"source": "another"})
    load(path)
    assert len(compiles) == 6
    for variable in ("FUSER_VERIFY", "FUSER_CACHE"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(variable, "0" if variable == "FUSER_CACHE" else "1")
            load(path)
    assert len(compiles) == 8


def test_what_tuning_remembers_decides(
    path: Path, folder: Path, compiles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that was stored before a kernel of it was tuned is not used afterwards."""
    load(path)
    load(path)
    assert len(compiles) == 1
    cache = KernelCache(folder)
    tuning.remember(cache, "schedule of another kernel", tuning.Choice(None, 1.0, 3, True))
    load(path)
    load(path)
    assert len(compiles) == 2
    tuning.remember(cache, "schedule of a third", tuning.Choice(None, 1.0, 3, True))
    monkeypatch.setattr(tuning, "measured_choice", lambda *_, **__: tuning.Choice(None, 1, 0, True))
    load(path, tune=True)
    assert len(compiles) == 3
    load(path)  # stored with what was remembered while it was tuned
    assert len(compiles) == 3
    cache._path(plan_cache.SCHEDULES).write_bytes(b"damaged")
    load(path)
    load(path)
    assert len(compiles) == 4 and plan_cache.remembered_schedules(cache)


def test_limits_hold_for_plans_from_the_cache(path: Path) -> None:
    load(path)
    with pytest.raises(OutOfMemoryError):
        load(path, limits=Limits(bytes=10_000))
    with pytest.raises(LimitError):
        load(path, limits=Limits(nodes=3))


def test_every_damaged_entry_is_reported_and_made_again(
    path: Path, folder: Path, compiles: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = bits(load(path))
    cache = KernelCache(folder)
    marks = (b'\\"plan\\": ', b'{"material": "constant ')
    held = ((entry, entry.read_bytes()) for entry in sorted(folder.glob("??/*")))
    entries = [entry for entry, content in held if any(mark in content for mark in marks)]
    assert len(entries) == 2  # the plan and a folded kernel; the others are objects of kernels
    for entry in entries:
        good = entry.read_bytes()
        for bad in (b"", good[: len(good) // 2], good[:-1] + bytes([good[-1] ^ 1])):
            entry.write_bytes(bad)
            caplog.clear()
            before = len(compiles)
            with caplog.at_level(logging.WARNING):
                assert bits(load(path)) == wanted
            assert len(caplog.records) == 1 and "damaged" in caplog.text
            assert len(compiles) == before + 1
            assert bits(load(path)) == wanted and len(compiles) == before + 1
            assert cache.verify()[1] == 0


def test_a_lost_constant_is_a_miss(path: Path, folder: Path, compiles: list[Any]) -> None:
    wanted = bits(load(path))
    largest = max(folder.glob("??/*"), key=lambda entry: entry.stat().st_size)
    assert largest.stat().st_size > 64 * 64 * 9 * 4  # the folded kernel
    largest.unlink()
    assert bits(load(path)) == wanted and len(compiles) == 2
    assert bits(load(path)) == wanted and len(compiles) == 2


def test_senseless_records_are_misses(
    path: Path, compiles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mistake of the code that writes them would make: the checksum is right."""
    inner = KernelCache.put_bytes
    changes: list[Any] = [
        lambda h: h.pop("program"),
        lambda h: h["program"]["launches"][0]["arguments"].append(["constant", 99]),
        lambda h: h["constants"].pop(),
        lambda h: next(c for c in h["constants"] if "source" in c)["source"].update(offset=1 << 40),
        lambda h: h["report"].update(kernels=3),
    ]
    for change in changes:

        def put_bytes(
            self: KernelCache, material: str, header: dict[str, Any], payload: Any,
            change: Any = change,
        ) -> None:  # fmt: skip
            if "program" in header:
                change(header)
            inner(self, material, header, payload)

        compiles.clear()
        with monkeypatch.context() as patch:
            patch.setattr(KernelCache, "put_bytes", put_bytes)
            load(path, limits=Limits(nodes=1000 + len(compiles)))
        KernelCache(os.environ["FUSER_CACHE_DIR"])
        wanted = bits(load(path, limits=Limits(nodes=1000)))
        assert bits(load(path, limits=Limits(nodes=1000))) == wanted
        KernelCache(os.environ["FUSER_CACHE_DIR"]).clear()
        assert len(compiles) == 2


def test_files_that_change(
    path: Path, compiles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are read from the cache, and between the digest and the compile."""
    old, new = model().SerializeToString(), model(1).SerializeToString()
    wanted = bits(load(path))
    inner = Source.read

    for content in (new, new[:1000]):

        def read(self: Source, descriptor: int, content: bytes = content) -> Any:
            status = path.stat()
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            return inner(self, descriptor)

        path.write_bytes(old)
        with monkeypatch.context() as patch:
            patch.setattr(Source, "read", read)
            with pytest.raises(InvalidModelError, match="changed while it was read"):
                load(path)
    path.write_bytes(new)
    other = bits(load(path))
    path.write_bytes(old)
    KernelCache(os.environ["FUSER_CACHE_DIR"]).clear()
    place = plan_cache._entry

    def late(*arguments: Any) -> Any:
        found = place(*arguments)
        path.write_bytes(new)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(plan_cache, "_entry", late)
        assert bits(load(path)) == other
    path.write_bytes(old)
    assert bits(load(path)) == wanted  # what was compiled from the new file is not stored as this


def test_external_data_is_not_taken(tmp_path: Path, compiles: list[Any]) -> None:
    path = tmp_path / "external.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    first = bits(load(path))
    onnx.save(model(1), path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    assert bits(load(path)) != first and len(compiles) == 2


def test_a_load_needs_no_compiler(path: Path) -> None:
    import subprocess
    import sys

    load(path)
    code = (
        "import sys, fuser;"
        "plan = fuser.compile(sys.argv[1], device='cpu', threads=1, numerics='fast');"
        "plan.run(plan.random_feeds());"
        "known = {'onnx', 'networkx', 'fuser.pipeline.compiled', 'fuser.partition'};"
        "assert not known & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=120)


def test_an_older_file_is_hashed_once(
    path: Path, compiles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times say that it is as it was, also those that another may set."""
    hashed: list[Path] = []
    digest, place = plan_cache.content_digest, plan_cache._entry

    def counted(path: Path, size: int) -> str:
        hashed.append(path)
        return digest(path, size)

    def late(*arguments: Any) -> Any:
        found = place(*arguments)
        status = path.stat()
        path.write_bytes(model(1).SerializeToString())
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return found

    monkeypatch.setattr(plan_cache, "RECENT", 0)
    monkeypatch.setattr(plan_cache, "content_digest", counted)
    KernelCache(os.environ["FUSER_CACHE_DIR"]).clear()
    first = bits(load(path))
    assert len(hashed) == 1
    assert bits(load(path)) == first and len(hashed) == 2 and len(compiles) == 1
    KernelCache(os.environ["FUSER_CACHE_DIR"]).clear()
    with monkeypatch.context() as patch:
        patch.setattr(plan_cache, "_entry", late)
        assert bits(load(path)) != first
    path.write_bytes(model().SerializeToString())
    assert bits(load(path)) == first and len(compiles) == 3


@pytest.fixture(params=["blake3", "sha256"])
def hash_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the package blake3, and as if it were not installed."""
    if request.param == "blake3":
        pytest.importorskip("blake3")
    else:
        monkeypatch.setitem(sys.modules, "blake3", None)
    plan_cache._hash_function.cache_clear()
    yield request.param
    plan_cache._hash_function.cache_clear()


def test_names_say_which_hash_they_are(path: Path, hash_name: str) -> None:
    content = path.read_bytes()
    made = hashlib.sha256 if hash_name == "sha256" else importlib.import_module("blake3").blake3
    blocks = (content[i : i + source.BLOCK] for i in range(0, len(content), source.BLOCK))
    whole = made(b"".join(made(block).digest() for block in blocks)).digest().hex()
    found = plan_cache.content_digest(path, len(content))
    assert found == f"{hash_name}:{len(content)}:{whole}"


def test_each_block_of_a_file_counts(
    path: Path, hash_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "BLOCK", 4096)
    monkeypatch.setattr(source, "_rooms", threading.local())
    path.write_bytes(content := model().SerializeToString())
    found = {plan_cache.content_digest(path, len(content))}
    for place in (0, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        found.add(plan_cache.content_digest(path, len(content)))
    assert len(found) == 4 and len(content) > 4096
    path.write_bytes(content[:-1])
    with pytest.raises(OSError, match="ends early"):
        plan_cache.content_digest(path, len(content))


@pytest.mark.skipif(not jit.links_itself(), reason="LLVM links here")
def test_native_code_is_made_once_for_all_processes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    emit = jit._emit

    def counted(text: str, triple: str) -> bytes:
        made.append(text)
        return emit(text, triple)

    def in_a_new_process() -> bytes:
        monkeypatch.setattr(jit, "_objects", {})
        recall(KernelCache(folder), text)
        return jit.native_object(text)

    monkeypatch.setattr(jit, "_emit", counted)
    text = runtime_ir("x86_64")
    first = in_a_new_process()
    assert made == [text] and in_a_new_process() == first == emit(text, jit.X86_64)
    (entry,) = (item for item in folder.glob("??/*"))
    entry.write_bytes(entry.read_bytes()[:-1])
    assert in_a_new_process() == first and made == [text, text]


def test_words_of_files_from_before_words_of_8_bits() -> None:
    """True stood for words of codes of 4 bits, which there were alone."""
    packing = Packing(reshape=(8, 4), split=(1, 8, 4), permute=(0, 2, 1), words=4)
    source = Source(0, dtypes.i8, (8, 4), (4, 1), packing)
    record = source.to_record()
    assert record["packing"]["words"] == 4
    record["packing"]["words"] = True
    assert Source.from_record(record).packing == packing
