"""Ways to spoil a model: each takes a valid one and a generator of random numbers, and changes it
in place, or gives the bytes of a file. False where there is nothing of the sort in the model.

With the operators of `bases.py` they are kinds of hostile models: an operator, and what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Rng: TypeAlias = np.random.Generator
Corruption: TypeAlias = Callable[[ModelProto, Rng], "bytes | bool | None"]

CORRUPTIONS: dict[str, Corruption] = {}
HUGE = (1 << 27, 1 << 31, 1 << 40, (1 << 62) + 1, (1 << 63) - 1)
TYPES = [number for number in TensorProto.DataType.values() if number]


def corruption(function: Corruption) -> Corruption:
    CORRUPTIONS[function.__name__] = function  # type: ignore[attr-defined]
    return function


def pick(rng: Rng, items: Any) -> Any:
    items = list(items)
    return items[int(rng.integers(len(items)))]


def node_of(model: ModelProto) -> NodeProto:
    return model.graph.node[0]


def attributes(model: ModelProto, *types: int) -> list[AttributeProto]:
    return [a for a in node_of(model).attribute if a.type in types]


# attributes ---------------------------------------------------------------------------------------


def _numbers(model: ModelProto, rng: Rng, number: int) -> bool:
    """Put a number into an integer attribute, or into an entry of a list."""
    found = attributes(model, AttributeProto.INT, AttributeProto.INTS)
    if not found:
        return False
    attribute = pick(rng, found)
    if attribute.type == AttributeProto.INT:
        attribute.i = number
    elif len(attribute.ints):
        attribute.ints[int(rng.integers(len(attribute.ints)))] = number
    else:
        attribute.ints.append(number)
    return True


@corruption
def attribute_negative(model: ModelProto, rng: Rng) -> bool:
    return _numbers(model, rng, -int(rng.integers(1, 9)))


@corruption
def attribute_zero(model: ModelProto, rng: Rng) -> bool:
    return _numbers(model, rng, 0)


@corruption
def attribute_odd(model: ModelProto, rng: Rng) -> bool:
    return _numbers(model, rng, int(rng.integers(2, 99)))


@corruption
def attribute_huge(model: ModelProto, rng: Rng) -> bool:
    return _numbers(model, rng, pick(rng, HUGE))


@corruption
def attribute_huge_and_negative(model: ModelProto, rng: Rng) -> bool:
    return _numbers(model, rng, -pick(rng, HUGE))


@corruption
def attribute_that_is_no_number(model: ModelProto, rng: Rng) -> bool:
    found = attributes(model, AttributeProto.FLOAT, AttributeProto.FLOATS)
    if not found:
        return False
    attribute, number = pick(rng, found), pick(rng, (np.nan, np.inf, -np.inf, 3e38, -1, 0))
    if attribute.type == AttributeProto.FLOAT:
        attribute.f = number
    else:
        attribute.floats.append(number)
    return True


@corruption
def list_empty(model: ModelProto, rng: Rng) -> bool:
    found = attributes(model, AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS)
    if not found:
        return False
    attribute = pick(rng, found)
    for field in ("ints", "floats", "strings"):
        attribute.ClearField(field)
    return True


@corruption
def list_longer(model: ModelProto, rng: Rng) -> bool:
    found = attributes(model, AttributeProto.INTS)
    if not found:
        return False
    pick(rng, found).ints.extend([1] * int(rng.integers(1, 100)))
    return True


@corruption
def list_shorter(model: ModelProto, rng: Rng) -> bool:
    found = [a for a in attributes(model, AttributeProto.INTS) if len(a.ints)]
    if not found:
        return False
    del pick(rng, found).ints[-1]
    return True


@corruption
def attribute_of_another_type(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    if not node.attribute:
        return False
    name = pick(rng, node.attribute).name
    kept = [a for a in node.attribute if a.name != name]
    value = pick(rng, (1, 1.5, "text", [1, 2], [0.5], ["a"], numpy_helper.from_array(np.ones(2))))
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return True


@corruption
def attribute_left_out(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    if not node.attribute:
        return False
    del node.attribute[int(rng.integers(len(node.attribute)))]
    return True


@corruption
def attribute_unknown(model: ModelProto, rng: Rng) -> bool:
    node_of(model).attribute.append(helper.make_attribute("frobnicate", 1))
    return True


@corruption
def attribute_that_refers_to_nothing(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    if not node.attribute:
        return False
    attribute = pick(rng, node.attribute)
    attribute.ref_attr_name = "nothing"
    return True


@corruption
def text_garbage(model: ModelProto, rng: Rng) -> bool:
    found = attributes(model, AttributeProto.STRING)
    if not found:
        return False
    pick(rng, found).s = pick(rng, (b"nonsense", b"\0", b"%s" * 9, b"a" * 100_000, "é∞".encode()))
    return True


@corruption
def text_that_is_no_utf8(model: ModelProto, rng: Rng) -> bytes:
    model.graph.node[0].name = "QQQQ"
    model.graph.node[0].doc_string = "ZZZZ"
    model.producer_name = "WWWW"
    model.metadata_props.add(key="XXXX", value="v")
    for attribute in attributes(model, AttributeProto.STRING):
        attribute.s = b"VVVV"
    data = model.SerializeToString()
    marks = [m for m in (b"QQQQ", b"ZZZZ", b"WWWW", b"XXXX", b"VVVV") if m in data]
    return data.replace(pick(rng, marks), b"\xff\xfe\xfd\xfc")


@corruption
def subgraph_spoilt(model: ModelProto, rng: Rng) -> bool:
    graphs = [a.g for a in node_of(model).attribute if a.HasField("g")]
    if not graphs:
        return False
    graph = pick(rng, graphs)
    match int(rng.integers(5)):
        case 0:
            del graph.output[:]
        case 1:
            graph.input.extend(graph.output)
        case 2:
            del graph.node[:]
        case 3 if len(graph.input):
            del graph.input[0]
        case _ if len(graph.node) and len(graph.node[0].input):
            graph.node[0].input[0] = "nowhere"
    return True


# operands -----------------------------------------------------------------------------------------


def weights(model: ModelProto, kinds: str) -> list[TensorProto]:
    found = []
    for tensor in model.graph.initializer:
        if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
            continue
        if numpy_helper.to_array(tensor).dtype.kind in kinds:
            found.append(tensor)
    return found


def replace(tensor: TensorProto, array: Any) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), tensor.name))


def _element(model: ModelProto, rng: Rng, number: float, kinds: str) -> bool:
    found = [t for t in weights(model, kinds) if np.prod(t.dims)]
    if not found:
        return False
    tensor = pick(rng, found)
    array = numpy_helper.to_array(tensor).copy()
    if kinds != "f":
        info = np.iinfo(array.dtype)
        number = min(max(int(number), info.min), info.max)
    array.reshape(-1)[int(rng.integers(array.size))] = number
    replace(tensor, array)
    return True


@corruption
def operand_negative(model: ModelProto, rng: Rng) -> bool:
    return _element(model, rng, -int(rng.integers(1, 9)), "iu")


@corruption
def operand_zero(model: ModelProto, rng: Rng) -> bool:
    return _element(model, rng, 0, "iu")


@corruption
def operand_huge(model: ModelProto, rng: Rng) -> bool:
    return _element(model, rng, pick(rng, HUGE), "iu")


@corruption
def operand_huge_and_negative(model: ModelProto, rng: Rng) -> bool:
    return _element(model, rng, -pick(rng, HUGE), "iu")


@corruption
def operand_that_is_no_number(model: ModelProto, rng: Rng) -> bool:
    return _element(model, rng, pick(rng, (np.nan, np.inf, -np.inf, 1e30, -1, 0)), "f")


@corruption
def operand_empty(model: ModelProto, rng: Rng) -> bool:
    found = weights(model, "iufb")
    if not found:
        return False
    tensor = pick(rng, found)
    array = numpy_helper.to_array(tensor)
    replace(tensor, np.zeros((0, *array.shape[1:]), array.dtype))
    return True


@corruption
def operand_longer(model: ModelProto, rng: Rng) -> bool:
    found = [t for t in weights(model, "iufb") if len(t.dims)]
    if not found:
        return False
    tensor = pick(rng, found)
    array = numpy_helper.to_array(tensor)
    replace(tensor, np.concatenate([array] * int(rng.integers(2, 40))))
    return True


@corruption
def operand_of_another_rank(model: ModelProto, rng: Rng) -> bool:
    found = weights(model, "iufb")
    if not found:
        return False
    tensor = pick(rng, found)
    array = numpy_helper.to_array(tensor)
    shapes = [(1, *array.shape), (*array.shape, 1), (-1,), (1,) * 40 + array.shape]
    replace(tensor, array.reshape(pick(rng, shapes)) if array.size else array[None])
    return True


@corruption
def operand_of_another_type(model: ModelProto, rng: Rng) -> bool:
    found = weights(model, "iufb")
    if not found:
        return False
    tensor = pick(rng, found)
    array = numpy_helper.to_array(tensor)
    kinds = ("f2", "f4", "f8", "i1", "i4", "i8", "u1", "u8", "?", "c8")
    with np.errstate(all="ignore"):
        replace(tensor, array.astype(pick(rng, kinds)))
    return True


@corruption
def operand_missing(model: ModelProto, rng: Rng) -> bool:
    if not model.graph.initializer:
        return False
    del model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]
    return True


@corruption
def operand_cut_short(model: ModelProto, rng: Rng) -> bool:
    found = [t for t in model.graph.initializer if t.raw_data]
    if not found:
        return False
    tensor = pick(rng, found)
    tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2] + b"\1" * int(rng.integers(3))
    return True


@corruption
def operand_of_false_dims(model: ModelProto, rng: Rng) -> bool:
    if not model.graph.initializer:
        return False
    tensor = pick(rng, model.graph.initializer)
    number = pick(rng, (-1, 0, 7, *HUGE))
    if len(tensor.dims):
        tensor.dims[int(rng.integers(len(tensor.dims)))] = number
    else:
        tensor.dims.append(number)
    return True


@corruption
def operand_outside(model: ModelProto, rng: Rng) -> bool:
    if not model.graph.initializer:
        return False
    tensor = pick(rng, model.graph.initializer)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    places = ("/etc/passwd", "../secret", "none.bin", "", ".", "a\0b", "/dev/zero")
    tensor.external_data.add(key="location", value=pick(rng, places))
    tensor.external_data.add(key="offset", value=pick(rng, ("0", "-1", "x", str(1 << 63))))
    return True


@corruption
def operand_twice(model: ModelProto, rng: Rng) -> bool:
    if not model.graph.initializer:
        return False
    model.graph.initializer.append(pick(rng, model.graph.initializer))
    return True


@corruption
def operand_from_outside(model: ModelProto, rng: Rng) -> bool:
    """What was a weight is an input: data decides shapes, counts and axes."""
    found = weights(model, "iufb")
    if not found:
        return False
    tensor = pick(rng, found)
    shape = pick(rng, (list(tensor.dims), ["n"] * len(tensor.dims)))
    model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    model.graph.initializer.remove(tensor)
    return True


# inputs -------------------------------------------------------------------------------------------


def _dim(model: ModelProto, rng: Rng, size: int | str) -> bool:
    found = [i for i in model.graph.input if len(i.type.tensor_type.shape.dim)]
    if not found:
        return False
    dim = pick(rng, pick(rng, found).type.tensor_type.shape.dim)
    dim.Clear()
    if isinstance(size, str):
        dim.dim_param = size
    else:
        dim.dim_value = size
    return True


@corruption
def input_of_size_zero(model: ModelProto, rng: Rng) -> bool:
    return _dim(model, rng, 0)


@corruption
def input_of_another_size(model: ModelProto, rng: Rng) -> bool:
    return _dim(model, rng, int(rng.integers(1, 40)))


@corruption
def input_of_negative_size(model: ModelProto, rng: Rng) -> bool:
    return _dim(model, rng, -int(rng.integers(1, 9)))


@corruption
def input_huge(model: ModelProto, rng: Rng) -> bool:
    return _dim(model, rng, pick(rng, HUGE))


@corruption
def input_large(model: ModelProto, rng: Rng) -> bool:
    """Within the limit as it is, not with what is made of it."""
    return _dim(model, rng, 1 << int(rng.integers(12, 21)))


@corruption
def input_all_huge(model: ModelProto, rng: Rng) -> bool:
    found = [i for i in model.graph.input if len(i.type.tensor_type.shape.dim)]
    for info in found:
        for dim in info.type.tensor_type.shape.dim:
            dim.dim_value = pick(rng, (0, *HUGE))
    return bool(found)


@corruption
def input_of_open_size(model: ModelProto, rng: Rng) -> bool:
    return _dim(model, rng, pick(rng, ("n", "n + 1", "x y", "-n", "1//0", "n" * 3000, "(" * 200)))


@corruption
def input_of_another_rank(model: ModelProto, rng: Rng) -> bool:
    found = [i for i in model.graph.input if i.type.HasField("tensor_type")]
    if not found:
        return False
    shape = pick(rng, found).type.tensor_type.shape
    match int(rng.integers(5)):
        case 0:
            shape.Clear()
        case 1:
            shape.dim.add(dim_value=1)
        case 2 if len(shape.dim):
            del shape.dim[-1]
        case 3:
            for _ in range(70):
                shape.dim.add(dim_value=1)
        case _:
            for _ in range(int(rng.integers(2, 60))):
                shape.dim.insert(0, type(shape).Dimension(dim_value=1))
    return True


@corruption
def input_of_unknown_rank(model: ModelProto, rng: Rng) -> bool:
    if not model.graph.input:
        return False
    pick(rng, model.graph.input).type.tensor_type.ClearField("shape")
    return True


@corruption
def input_of_another_type(model: ModelProto, rng: Rng) -> bool:
    found = [i for i in model.graph.input if i.type.HasField("tensor_type")]
    if not found:
        return False
    pick(rng, found).type.tensor_type.elem_type = pick(rng, (*TYPES, 0, 99, -1))
    return True


@corruption
def input_that_is_no_tensor(model: ModelProto, rng: Rng) -> bool:
    if not model.graph.input:
        return False
    info = pick(rng, model.graph.input)
    held = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    info.type.CopyFrom(
        pick(rng, (helper.make_sequence_type_proto(held), helper.make_optional_type_proto(held)))
    )
    return True


@corruption
def input_missing(model: ModelProto, rng: Rng) -> bool:
    if not model.graph.input:
        return False
    del model.graph.input[int(rng.integers(len(model.graph.input)))]
    return True


# nodes --------------------------------------------------------------------------------------------


@corruption
def node_without_an_operand(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    if not node.input:
        return False
    node.input[int(rng.integers(len(node.input)))] = ""
    return True


@corruption
def node_of_fewer_operands(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    if not node.input:
        return False
    del node.input[int(rng.integers(len(node.input))) :]
    return True


@corruption
def node_of_more_operands(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    names = [*node.input, ""]
    node.input.extend([pick(rng, names)] * pick(rng, (1, 2, 40, 3000)))
    return True


@corruption
def node_of_mixed_operands(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    if len(node.input) < 2:
        return False
    names = [str(name) for name in rng.permutation(list(node.input))]
    del node.input[:]
    node.input.extend(names)
    return True


@corruption
def node_of_one_operand_throughout(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    if not node.input:
        return False
    names = [pick(rng, [name for name in node.input if name] or [""])] * len(node.input)
    del node.input[:]
    node.input.extend(names)
    return True


@corruption
def node_of_more_results(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    names = [f"more{i}" for i in range(pick(rng, (1, 3, 500)))]
    node.output.extend(names)
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names[:3])
    return True


@corruption
def node_without_a_result(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    node.output[int(rng.integers(len(node.output)))] = ""
    return True


@corruption
def node_that_reads_its_result(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    if not node.input:
        return False
    node.input[0] = node.output[0]
    return True


@corruption
def node_twice(model: ModelProto, rng: Rng) -> bool:
    model.graph.node.append(node_of(model))
    return True


@corruption
def node_of_another_domain(model: ModelProto, rng: Rng) -> bool:
    node_of(model).domain = pick(rng, ("com.microsoft", "ai.onnx.ml", "local", "\0", "a" * 9999))
    for domain in {node_of(model).domain}:
        model.opset_import.add(domain=domain, version=1)
    return True


@corruption
def node_of_another_operator(model: ModelProto, rng: Rng) -> bool:
    names = ("Conv", "Resize", "Loop", "LSTM", "Attention", "Gather", "Pad", "StringSplit", "", "X")
    node_of(model).op_type = pick(rng, names)
    return True


@corruption
def node_repeated_in_a_row(model: ModelProto, rng: Rng) -> bool:
    node = node_of(model)
    if not node.input or not node.input[0]:
        return False
    last = node.output[0]
    for i in range(pick(rng, (5, 60, 300))):
        more = model.graph.node.add()
        more.CopyFrom(node)
        more.name = f"again{i}"
        more.input[0] = last
        last = f"again{i}"
        del more.output[:]
        more.output.append(last)
    model.graph.output.append(helper.make_empty_tensor_value_info(last))
    return True


# what is around the node --------------------------------------------------------------------------


@corruption
def opset_of_long_ago(model: ModelProto, rng: Rng) -> bool:
    model.opset_import[0].version = int(rng.integers(1, 18))
    return True


@corruption
def opset_unknown(model: ModelProto, rng: Rng) -> bool:
    model.opset_import[0].version = pick(rng, (0, -1, 999, 1 << 62))
    return True


@corruption
def output_of_another_type(model: ModelProto, rng: Rng) -> bool:
    found = [o for o in model.graph.output if o.type.HasField("tensor_type")]
    if not found:
        return False
    pick(rng, found).type.tensor_type.elem_type = pick(rng, (*TYPES, 0, 99))
    return True


@corruption
def output_of_another_shape(model: ModelProto, rng: Rng) -> bool:
    found = [o for o in model.graph.output if o.type.HasField("tensor_type")]
    if not found:
        return False
    pick(rng, found).type.tensor_type.shape.dim.add(dim_value=pick(rng, (-7, 0, 3, 1 << 62)))
    return True


@corruption
def output_twice(model: ModelProto, rng: Rng) -> bool:
    model.graph.output.append(model.graph.output[0])
    return True


@corruption
def output_nowhere(model: ModelProto, rng: Rng) -> bool:
    model.graph.output.append(helper.make_empty_tensor_value_info("nowhere"))
    return True


@corruption
def output_nameless(model: ModelProto, rng: Rng) -> bool:
    model.graph.output[0].name = ""
    return True


@corruption
def names_of_all_sorts(model: ModelProto, rng: Rng) -> bool:
    name = pick(rng, ("a" * 200_000, "\0", "\n\x1b[31m", "../../x", "é" * 99, " "))
    node = node_of(model)
    old = node.output[0]
    node.output[0] = name
    for output in model.graph.output:
        if output.name == old:
            output.name = name
    return True


@corruption
def sparse_weight(model: ModelProto, rng: Rng) -> bool:
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([0, 1 << 40])))
    sparse.dims.extend([pick(rng, (2, -1, 1 << 62)), 3])
    if node_of(model).input:
        node_of(model).input[0] = "sparse"
    return True


@corruption
def within_a_function(model: ModelProto, rng: Rng) -> bool:
    """The node in a function: one that calls itself, calls another deep down, or lacks a result."""
    node = node_of(model)
    inner = NodeProto()
    inner.CopyFrom(node)
    inputs = list(dict.fromkeys(name for name in node.input if name))
    outputs = [name for name in node.output if name]
    call = helper.make_node("F0", inputs, outputs, domain="local")
    imports = [*model.opset_import, helper.make_opsetid("local", 1)]
    kind, depth = int(rng.integers(4)), pick(rng, (1, 5, 90, 400))
    for i in range(depth):
        deeper = helper.make_node(f"F{i + 1}", inputs, outputs, domain="local")
        body = [deeper if i + 1 < depth else inner]
        if kind == 0 and i + 1 == depth:
            body = [call]
        if kind == 1:
            body = [*body, *body]
        made = helper.make_function(
            "local", f"F{i}", inputs, outputs if kind != 2 else [*outputs, "none"], body, imports
        )
        model.functions.append(made)
    node.CopyFrom(call)
    model.opset_import.add(domain="local", version=1)
    return True


@corruption
def within_a_loop(model: ModelProto, rng: Rng) -> bool:
    """The node in the body of a loop, of many or endless iterations."""
    node = node_of(model)
    outputs = [name for name in node.output if name]
    iterations = pick(rng, (-1, 0, 3, 1500, 1 << 62))
    flags = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("go_in", "go_out")]
    body = helper.make_graph(
        [node, helper.make_node("Identity", ["go_in"], ["go_out"])], "body",
        [helper.make_tensor_value_info("step", TensorProto.INT64, []), flags[0]],
        [flags[1], *(helper.make_empty_tensor_value_info(name) for name in outputs)],
    )  # fmt: skip
    limit = numpy_helper.from_array(np.array(iterations, np.int64), "iterations")
    model.graph.initializer.append(limit)
    made = [f"all_{name}" for name in outputs]
    loop = helper.make_node("Loop", ["iterations", ""], made, body=body)
    for output in model.graph.output:
        output.CopyFrom(helper.make_empty_tensor_value_info(f"all_{output.name}"))
    model.graph.node[0].CopyFrom(loop)
    return True


@corruption
def within_branches(model: ModelProto, rng: Rng) -> bool:
    """The node in branches within branches."""
    node = NodeProto()
    node.CopyFrom(node_of(model))
    outputs = [name for name in node.output if name]
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
    for _ in range(pick(rng, (1, 4, 24))):
        graph = helper.make_graph([node], "branch", [], infos)
        node = helper.make_node("If", ["yes"], outputs, then_branch=graph, else_branch=graph)
        if node.ByteSize() > 1 << 18:
            break
    model.graph.node[0].CopyFrom(node)
    return True


# the file -----------------------------------------------------------------------------------------


@corruption
def file_cut_short(model: ModelProto, rng: Rng) -> bytes:
    data = model.SerializeToString()
    return data[: int(rng.integers(len(data)))]


@corruption
def file_with_flipped_bits(model: ModelProto, rng: Rng) -> bytes:
    data = bytearray(model.SerializeToString())
    for _ in range(int(rng.integers(1, 4))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


@corruption
def file_with_bytes_exchanged(model: ModelProto, rng: Rng) -> bytes:
    data = bytearray(model.SerializeToString())
    for _ in range(int(rng.integers(1, 4))):
        data[int(rng.integers(len(data)))] = int(rng.integers(256))
    return bytes(data)


@corruption
def file_with_a_tail(model: ModelProto, rng: Rng) -> bytes:
    return model.SerializeToString() + rng.bytes(int(rng.integers(1, 50)))


@corruption
def file_written_twice(model: ModelProto, rng: Rng) -> bytes:
    return model.SerializeToString() * 2


@corruption
def nothing_wrong(model: ModelProto, rng: Rng) -> bool:
    return True
