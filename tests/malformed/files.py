"""Kinds about the file, its bytes and its external data."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.malformed.kinds import (
    F32,
    INVALID,
    USAGE,
    body,
    external,
    info,
    kind,
    model,
    node,
    relu,
    save,
    tensor,
    with_weight,
)


@kind()
def empty_file(folder: Path) -> bytes:
    return b""


@kind()
def random_bytes(folder: Path) -> bytes:
    return np.random.default_rng(0).bytes(5000)


@kind()
def half_a_file(folder: Path) -> bytes:
    data = with_weight(tensor("w", np.ones((2, 3), np.float32))).SerializeToString()
    return data[: len(data) // 2]


@kind()
def gzipped(folder: Path) -> bytes:
    return gzip.compress(relu().SerializeToString())


@kind()
def pickled(folder: Path) -> bytes:
    return pickle.dumps({"a": 1})


@kind(USAGE)
def a_folder(folder: Path) -> Path:
    return folder


@kind(USAGE)
def no_file(folder: Path) -> Path:
    return folder / "none.onnx"


@kind(USAGE)
def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "m.onnx")
    return folder / "m.onnx"


@kind(USAGE)
def a_device(folder: Path) -> Path:
    (folder / "m.onnx").symlink_to("/dev/zero")
    return folder / "m.onnx"


@kind(USAGE)
def a_link_to_itself(folder: Path) -> Path:
    (folder / "m.onnx").symlink_to(folder / "m.onnx")
    return folder / "m.onnx"


@kind()
def text_that_is_none(folder: Path) -> Path:
    return save(folder, b"<ir_version: 8> nonsense", "m.onnxtxt")


@kind()
def text_in_deep_brackets(folder: Path) -> Path:
    head = b'<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) {'
    head += b"y = If (x) <a = "
    return save(folder, head + b"b () => () { c = If (x) < a = " * 20000, "m.onnxtxt")


@kind()
def no_graph(folder: Path) -> ModelProto:
    return ModelProto(ir_version=8)


@kind()
def names_that_are_no_text(folder: Path) -> bytes:
    return relu().SerializeToString().replace(b"Relu", b"\xff\xfe\xfd\xfc")


# external data ------------------------------------------------------------------------------------


@kind()
def path_traversal(folder: Path) -> Path:
    (folder / "in").mkdir()
    (folder / "secret.bin").write_bytes(bytes(24))
    return save(folder / "in", with_weight(external(location="../secret.bin")))


@kind()
def path_traversal_inside(folder: Path) -> Path:
    (folder / "in" / "sub").mkdir(parents=True)
    (folder / "secret.bin").write_bytes(bytes(24))
    return save(folder / "in", with_weight(external(location="sub/../../secret.bin")))


@kind()
def absolute_path(folder: Path) -> ModelProto:
    return with_weight(external(location="/etc/passwd"))


@kind()
def link_out_of_the_folder(folder: Path) -> Path:
    (folder / "in").mkdir()
    (folder / "secret.bin").write_bytes(bytes(24))
    (folder / "in" / "w.bin").symlink_to(folder / "secret.bin")
    return save(folder / "in", with_weight(external(location="w.bin")))


@kind()
def link_to_another_folder(folder: Path) -> Path:
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    (folder / "out" / "w.bin").write_bytes(bytes(24))
    (folder / "in" / "sub").symlink_to(folder / "out")
    return save(folder / "in", with_weight(external(location="sub/w.bin")))


@kind()
def external_pipe(folder: Path) -> ModelProto:
    os.mkfifo(folder / "w.bin")
    return with_weight(external(location="w.bin"))


@kind()
def external_folder(folder: Path) -> ModelProto:
    return with_weight(external(location="."))


@kind()
def external_without_location(folder: Path) -> ModelProto:
    return with_weight(external(offset="0"))


@kind()
def external_with_a_zero_byte(folder: Path) -> ModelProto:
    return with_weight(external(location="w\0.bin"))


@kind()
def external_with_a_long_name(folder: Path) -> ModelProto:
    return with_weight(external(location="w" * 100_000))


@kind()
def external_missing(folder: Path) -> ModelProto:
    return with_weight(external(location="w.bin"))


def _beside(folder: Path, size: int, **entries: str) -> ModelProto:
    (folder / "w.bin").write_bytes(bytes(size))
    return with_weight(external(location="w.bin", **entries))


@kind()
def external_cut_short(folder: Path) -> ModelProto:
    return _beside(folder, 20)


@kind()
def external_negative_offset(folder: Path) -> ModelProto:
    return _beside(folder, 48, offset="-24", length="24")


@kind()
def external_offset_behind_the_end(folder: Path) -> ModelProto:
    return _beside(folder, 48, offset="4096", length="24")


@kind()
def external_length_behind_the_end(folder: Path) -> ModelProto:
    return _beside(folder, 48, offset="40", length="24")


@kind()
def external_length_of_another_shape(folder: Path) -> ModelProto:
    return _beside(folder, 48, offset="0", length="12")


@kind()
def external_offset_that_is_no_number(folder: Path) -> ModelProto:
    return _beside(folder, 48, offset="many")


@kind()
def external_huge_length(folder: Path) -> ModelProto:
    return _beside(folder, 48, length=str(1 << 62))


@kind()
def external_in_a_constant(folder: Path) -> ModelProto:
    constant = node("Constant", [], ["w"], value=external(location="/etc/passwd"))
    return model(constant, node("Add", ["x", "w"], ["y"]))


@kind()
def external_in_a_branch(folder: Path) -> ModelProto:
    inner = body(
        node("Add", ["x", "w"], ["z"]), inputs=[], outputs=[info("z")],
        initializer=[external(location="/etc/passwd")],
    )  # fmt: skip
    other = body(node("Relu", ["x"], ["z"]), inputs=[], outputs=[info("z")])
    choice = tensor("c", True)
    branch = node("If", ["c"], ["y"], then_branch=inner, else_branch=other)
    return model(branch, initializer=[choice])


@kind()
def external_in_a_function(folder: Path) -> ModelProto:
    function = helper.make_function(
        "local", "F", ["a"], ["b"],
        [node("Constant", [], ["w"], value=external(location="/etc/passwd")),
         node("Add", ["a", "w"], ["b"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    return model(node("F", ["x"], ["y"], domain="local"), functions=[function])


@kind()
def external_in_a_sparse_weight(folder: Path) -> ModelProto:
    made = model(node("Add", ["x", "w"], ["y"]))
    sparse = made.graph.sparse_initializer.add()
    sparse.values.CopyFrom(external(location="/etc/passwd"))
    sparse.indices.CopyFrom(tensor("", np.arange(6)))
    sparse.dims.extend([2, 3])
    return made


@kind()
def weight_with_data_in_the_file_and_outside(folder: Path) -> ModelProto:
    weight = external(location="/etc/passwd")
    weight.raw_data = bytes(24)
    return with_weight(weight)


@kind()
def weight_cut_short(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=F32, dims=[2, 3], raw_data=bytes(20)))


@kind()
def weight_too_long(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=F32, dims=[2, 3], raw_data=bytes(28)))


@kind()
def weight_with_too_few_numbers(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=F32, dims=[2, 3], float_data=[1, 2]))


@kind()
def weight_in_the_wrong_field(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=F32, dims=[2, 3], int32_data=[1] * 6))


@kind()
def weight_with_data_twice(folder: Path) -> ModelProto:
    weight = TensorProto(name="w", data_type=F32, dims=[2, 3], float_data=[1] * 6)
    weight.raw_data = bytes(24)
    return with_weight(weight)


@kind()
def weight_without_a_type(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", dims=[2, 3], raw_data=bytes(24)))


@kind()
def weight_of_a_negative_size(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=F32, dims=[-2, -3], raw_data=bytes(24)))


@kind()
def weight_of_a_huge_size(folder: Path) -> ModelProto:
    return with_weight(TensorProto(name="w", data_type=F32, dims=[1 << 40, 3], raw_data=bytes(24)))


@kind()
def weight_whose_size_wraps(folder: Path) -> ModelProto:
    return with_weight(
        TensorProto(name="w", data_type=F32, dims=[1 << 32, 1 << 32, 6], raw_data=bytes(24))
    )


@kind(INVALID, 4)
def weight_in_segments(folder: Path) -> ModelProto:
    weight = TensorProto(name="w", data_type=F32, dims=[2, 3], raw_data=bytes(24))
    weight.segment.begin, weight.segment.end = 3, 9
    return with_weight(weight)
