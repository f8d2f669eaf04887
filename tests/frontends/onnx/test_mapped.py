"""Large weights stay in the model's file while it is compiled, and nothing of it shows."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fuser
from fuser.errors import FuserError, InvalidModelError
from fuser.frontends.onnx import model as onnx_models
from fuser.frontends.onnx.importer import import_onnx, load_mapped, load_model
from fuser.graph.mapping import mapping_of, release_pages
from fuser.pipeline import compiled

F32 = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def no_plans_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about compiling, and a plan from the cache is not compiled."""
    monkeypatch.setenv("FUSER_VERIFY", "1")


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {
        "w": random.standard_normal((256, 128)).astype(np.float32),
        "table": random.standard_normal((400, 256)).astype(np.float32),
        "bias": random.standard_normal(128).astype(np.float32),
        "kept": random.standard_normal((130, 200)).astype(np.float32),
        "half": random.standard_normal((128, 300)).astype(np.float16),
    }


def model(**changed: np.ndarray) -> onnx.ModelProto:
    """Rows of a table times a matrix, and a weight that is an output as it is."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["y"]),
        helper.make_node("Identity", ["kept"], ["same"]),
        helper.make_node("Cast", ["half"], ["wide"], to=F32),
        helper.make_node("MatMul", ["y", "wide"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [5])],
        [helper.make_tensor_value_info(name, F32, None) for name in ("y", "same", "z")],
        [numpy_helper.from_array(a, name) for name, a in (arrays() | changed).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def written(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


FEEDS = {"ids": np.array([3, 0, 399, 7, 7])}


def run(model: Any) -> dict[str, np.ndarray]:
    with fuser.compile(model, device="cpu", threads=1) as plan:
        return dict(plan.run(FEEDS))


def test_large_weights_are_views_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, model())
    light, mapped = load_mapped(path)
    assert mapped is not None
    assert set(mapped.weights) == {"w", "table", "kept", "half"}
    for name, array in mapped.weights.items():
        assert mapping_of(array) is not None and not array.flags.writeable
        np.testing.assert_array_equal(array, arrays()[name], strict=True)
        release_pages(array)  # gone from memory, there again when read
        np.testing.assert_array_equal(array, arrays()[name], strict=True)
    assert light.ByteSize() < 4000
    whole = load_model(path)
    for tensor in whole.graph.initializer:
        if tensor.name in mapped.weights:
            tensor.ClearField("raw_data")
    assert light == whole


def test_the_graph_is_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, model())
    light, mapped = load_mapped(path)
    assert mapped is not None
    found, wanted = import_onnx(light, weights=mapped.weights), import_onnx(path)
    assert [node.op for node in found.nodes] == [node.op for node in wanted.nodes]
    for a, b in zip(found.nodes, wanted.nodes, strict=True):
        if a.op == "constant":
            np.testing.assert_array_equal(a.attrs["value"], b.attrs["value"], strict=True)


def test_a_file_gives_the_bits_that_its_bytes_give(tmp_path: Path) -> None:
    path = written(tmp_path, model())
    found, wanted = run(path), run(path.read_bytes())
    for name, array in wanted.items():
        assert array.tobytes() == found[name].tobytes()
    np.testing.assert_array_equal(found["same"], arrays()["kept"])


def test_a_plan_keeps_nothing_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, model())
    with fuser.compile(path, device="cpu", threads=1) as plan:
        before = plan.run(FEEDS)
        assert all(mapping_of(array) is None for array in plan.program.constants)
        with open(path, "r+b") as file:  # as an exporter does that writes to it again
            file.truncate(100)
        gc.collect()
        after = plan.run(FEEDS)
    for name, array in before.items():
        assert array.tobytes() == after[name].tobytes()


def test_a_file_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, model())
    partition = compiled.partition

    def change(*arguments: Any) -> Any:
        path.write_bytes(model(w=arrays()["w"] * 2).SerializeToString())
        return partition(*arguments)

    monkeypatch.setattr(compiled, "partition", change)
    with pytest.raises(InvalidModelError, match="changed while it was compiled"):
        fuser.compile(path, device="cpu", threads=1)


def test_reading_takes_no_memory(tmp_path: Path) -> None:
    path = written(tmp_path, model(table=np.ones((20000, 256), np.float32)))
    load_mapped(path)
    gc.collect()
    tracemalloc.start()
    try:
        light, mapped = load_mapped(path)
        assert mapped is not None
        import_onnx(light, weights=mapped.weights)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000 < path.stat().st_size


def twice(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(proto.graph.initializer[0])


def longer(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].raw_data += b"1234"


def other_data(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].float_data.append(1.0)


def no_type(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].data_type = 99


def negative(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = -256


def many_dims(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims.extend([1] * 100)


@pytest.mark.parametrize("damage", [twice, longer, other_data, no_type, negative, many_dims])
def test_unusual_weights_go_the_ordinary_way(damage: Any, tmp_path: Path) -> None:
    proto = model()
    damage(proto)
    path = written(tmp_path, proto)
    said = []
    for source in (path, path.read_bytes()):
        try:
            said.append((None, run(source)["y"].tobytes()))
        except FuserError as error:
            said.append((type(error), error.what))
    assert said[0] == said[1]


@pytest.mark.parametrize("kept", [0.001, 0.3, 0.9, 0.9999])
def test_files_cut_short(kept: float, tmp_path: Path) -> None:
    path = written(tmp_path, model())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(InvalidModelError):
        fuser.compile(path, device="cpu")


def test_damaged_keys_and_lengths(tmp_path: Path) -> None:
    """Whatever a byte becomes, the file is read as its bytes are, or refused as they are."""
    data = written(tmp_path, model()).read_bytes()
    random = np.random.default_rng(0)
    heads = [i for i in range(64)] + [data.index(b"table", 400) + i for i in range(-16, 16)]
    for position in heads:
        broken = bytearray(data)
        broken[position] = int(random.integers(256))
        path = tmp_path / "broken.onnx"
        path.write_bytes(broken)
        found = []
        for read in (lambda path=path: load_mapped(path), lambda b=broken: load_model(bytes(b))):
            try:
                made = read()
                light, mapped = made if isinstance(made, tuple) else (made, None)
                weights = mapped.weights if mapped else None
                graph = import_onnx(light, weights=weights)
                found.append([str(value.type) for value in graph.outputs])
            except FuserError as error:
                found.append([type(error).__name__])
        assert found[0] == found[1], position


def test_files_of_countless_fields_are_not_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuser.frontends.onnx.importer.mapped.MOST_FIELDS", 6)
    path = written(tmp_path, model())
    light, mapped = load_mapped(path)
    assert mapped is None and light == load_model(path)


def test_small_files_are_read(tmp_path: Path) -> None:
    proto = model()
    del proto.graph.initializer[:]
    path = written(tmp_path, proto)
    with pytest.raises(InvalidModelError):
        load_mapped(path)


def test_a_model_that_stays_open_holds_its_data(tmp_path: Path) -> None:
    opened = onnx_models.open_model(written(tmp_path, model()))
    assert opened.mapped is None
    first, second = run(opened), run(opened)  # its graph is used again
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
