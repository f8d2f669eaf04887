"""One compile for many sizes: results beside the oracle, and what is compiled when."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx.helper as oh
import pytest
from onnx import parser

import fuser
from fuser.cli.main import run
from fuser.dtypes import from_numpy
from fuser.errors import InvalidModelError, LoweringError, UsageError
from fuser.frontends.onnx.model import Model, open_model, random_feeds, reference
from fuser.graph.ir import Graph
from fuser.graph.sizes import Sizes, is_symbolic
from fuser.pipeline.compiled import compile_kernels
from fuser.pipeline.devices import Device
from fuser.pipeline.dynamic import DynamicPlan
from fuser.runtime.plan import Plan
from fuser.tilegen.parse import parse_kernel, sizes_of
from fuser.tilegen.text import canonical_text
from models import TINY, build, save
from tests.numerics import assert_close


def check(plan: DynamicPlan, model: Model, **dims: int) -> None:
    feeds = random_feeds(model, dims, seed=sum(dims.values()))
    outputs = plan.run(feeds)
    for name, expected in reference(model, feeds, dims).items():
        assert outputs[name].shape == expected.shape
        assert_close(outputs[name], expected, from_numpy(outputs[name].dtype), 4096)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def tiny(name: str, **more: Any) -> Model:
    return open_model(build(name, **{**TINY[name], **more}))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mlp", "softmax"])
def test_any_batch_by_one_compile(name: str, device: Device) -> None:
    model = tiny(name)
    compiles: list[str] = []
    plan = DynamicPlan(model, device=device, progress=compiles.append)
    for batch in (3, 2, 17, 64, 5):
        check(plan, model, batch=batch)
    (variant,) = plan.variants
    assert not variant.conditions and not variant.note
    assert len(compiles) == 1 and len(plan.plans) == 5
    check(plan, model, batch=1)
    assert len(plan.variants) == len(compiles) == 2


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float32") for name in ("layernorm", "attention", "bert", "gpt2", "tiny_llama")]
    + [("attention", "float16"), ("bert", "bfloat16")],
)
@pytest.mark.parametrize("device", DEVICES)
def test_any_batch_and_sequence_by_one_compile(name: str, dtype: str, device: Device) -> None:
    model = open_model(build(name, dtype, **TINY[name]))
    plan = DynamicPlan(model, device=device)
    for batch, sequence in ((3, 40), (2, 33), (7, 9), (4, 17), (2, 2)):
        dims = {"batch": batch, "sequence": sequence}
        check(plan, model, **{k: v for k, v in dims.items() if k in str(model.inputs)})
    assert len(plan.variants) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_longer_sequences_have_kernels_of_their_own(device: Device) -> None:
    model = tiny("attention")
    plan = DynamicPlan(model, device=device)
    for sequence in (30, 100, 129, 40, 257, 64):
        check(plan, model, batch=2, sequence=sequence)
    assert len(plan.variants) == 2
    text = plan.explain()
    assert "sequence 2..64" in text and "sequence 65..512" in text
    check(plan, model, batch=1, sequence=30)
    assert "batch 1," in plan.explain()


@pytest.mark.parametrize("device", DEVICES)
def test_equal_sizes_of_two_dims(device: Device) -> None:
    x = oh.make_tensor_value_info("x", 1, ["a", "b"])
    y = oh.make_tensor_value_info("y", 1, ["b", "a"])
    z = oh.make_tensor_value_info("z", 1, None)
    nodes = [oh.make_node("MatMul", ["x", "y"], ["p"]), oh.make_node("Softmax", ["p"], ["z"])]
    model = open_model(oh.make_model(oh.make_graph(nodes, "g", [x, y], [z])))
    plan = DynamicPlan(model, device=device)
    for a, b in ((3, 5), (4, 4), (30, 20), (7, 7), (2, 45)):
        check(plan, model, a=a, b=b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [7, 40])
def test_more_open_dims_than_the_example_of_one(count: int, device: Device) -> None:
    """Each dim has an example of its own, of at least 2: as many as there are dims. With 40 of each
    kind the inner ones run out of sizes in 2..64."""
    names = range(count)
    inputs = [oh.make_tensor_value_info(f"x{i}", 1, [f"a{i}", f"b{i}"]) for i in names]
    outputs = [oh.make_tensor_value_info(f"y{i}", 1, None) for i in names]
    nodes = [oh.make_node("Sin", [f"x{i}"], [f"y{i}"]) for i in names]
    model = open_model(oh.make_model(oh.make_graph(nodes, "g", inputs, outputs)))
    plan = DynamicPlan(model, device=device)
    sizes = {f"a{i}": 2 + i % 5 for i in names} | {f"b{i}": 3 + i % 4 for i in names}
    check(plan, model, **sizes)
    check(plan, model, **{name: size + 9 for name, size in sizes.items()})


@pytest.mark.parametrize("device", DEVICES)
def test_shape_arithmetic_stays_open(device: Device) -> None:
    """Shape, Gather, Concat, Reshape, Expand, Slice by half of a dim, Pad and Range."""
    x = oh.make_tensor_value_info("x", 1, ["n", 6, "t"])
    out = oh.make_tensor_value_info("out", 1, None)
    constants = [
        oh.make_tensor(name, 7, [len(values)] if isinstance(values, list) else [], np.ravel(values))
        for name, values in {
            "zero": [0], "two": [2], "six": [6], "minus": [-1], "start": 0, "one": 1, "last": 2,
        }.items()
    ]  # fmt: skip
    nodes = [
        oh.make_node("Shape", ["x"], ["shape"]),
        oh.make_node("Gather", ["shape", "zero"], ["n"]),
        oh.make_node("Gather", ["shape", "two"], ["t"]),
        oh.make_node("Concat", ["n", "minus", "two", "t"], ["split"], axis=0),
        oh.make_node("Reshape", ["x", "split"], ["r"]),
        oh.make_node("Transpose", ["r"], ["p"], perm=[0, 3, 1, 2]),
        oh.make_node("Concat", ["n", "t", "six"], ["flat"], axis=0),
        oh.make_node("Reshape", ["p", "flat"], ["f"]),
        oh.make_node("Div", ["t", "two"], ["half"]),
        oh.make_node("Slice", ["f", "zero", "half", "one1"], ["s"]),
        oh.make_node("Gather", ["shape", "last"], ["count"]),
        oh.make_node("Range", ["start", "count", "one"], ["range"]),
        oh.make_node("Cast", ["range"], ["places"], to=1),
        oh.make_node("Add", ["x", "places"], ["moved"]),
        oh.make_node("ReduceMean", ["moved"], ["mean"], axes=[2], keepdims=1),
        oh.make_node("Squeeze", ["mean", "two"], ["row"]),
        oh.make_node("Unsqueeze", ["row", "one1"], ["wide"]),
        oh.make_node("Add", ["s", "wide"], ["out"]),
    ]
    constants.append(oh.make_tensor("one1", 7, [1], [1]))
    graph = oh.make_graph(nodes, "g", [x], [out], constants)
    made = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)])
    model = open_model(made)
    plan = DynamicPlan(model, device=device)
    for n, t in ((3, 10), (2, 7), (5, 20), (9, 4), (10, 10)):
        check(plan, model, n=n, t=t)
    assert len(plan.variants) == 1, plan.explain()
    check(plan, model, n=9, t=3)  # half of 3 is 1, which broadcasts
    assert len(plan.variants) == 2
    assert "(t//2) != 1" in plan.explain()


def test_fixed_dims_and_wrong_ones() -> None:
    model = tiny("attention")
    plan = fuser.compile(model, device="cpu", dynamic=True, dims={"sequence": 24})
    check(plan, model, batch=3, sequence=24)
    assert plan.variants[0].buckets["sequence"].least == 24
    with pytest.raises(UsageError, match="sequence = 24"):
        check(plan, model, batch=3, sequence=25)
    with pytest.raises(UsageError, match="unknown dim"):
        fuser.compile(model, device="cpu", dynamic=True, dims={"length": 24})
    assert str(plan.inputs[0]) == "f32[batch, 2, sequence, 16]"


@pytest.mark.parametrize("device", DEVICES)
def test_a_session_serves_ranges_from_its_second_size_on(device: Device) -> None:
    model = tiny("mlp")
    session = fuser.InferenceSession(model, device=device)
    how: Any = session._runner._how
    for batch, variants in ((4, 0), (4, 0), (6, 1), (9, 1), (4, 1)):
        feeds = random_feeds(model, {"batch": batch})
        (y,) = session.run(None, feeds)
        assert_close(y, reference(model, feeds, {"batch": batch})["y"], from_numpy(y.dtype), 64)
        assert len(how.variants) == variants


def test_kernels_with_symbols_survive_text() -> None:
    from fuser.frontends.onnx.importer import import_onnx
    from fuser.graph.passes import run_passes
    from fuser.partition import Options, partition
    from fuser.pipeline.devices import choose_target
    from fuser.pipeline.kernels import emit_programs

    model = tiny("tiny_llama")
    with Sizes({"batch": 3, "sequence": 40}):
        graph = run_passes(import_onnx(model.proto, {}))
        target = choose_target("cpu")
        cut = partition(graph, target, Options())
        texts = [canonical_text(program.kernel) for program in emit_programs(cut, target)]
    for text in set(texts):
        sizes = sizes_of(text)
        assert sizes is not None and sizes.examples == {"batch": 3, "sequence": 40}
        with sizes:
            assert canonical_text(parse_kernel(text)) == text


def test_what_cannot_stay_open_is_compiled_for_its_sizes() -> None:
    """A resize needs the size itself: the table says so."""
    x = oh.make_tensor_value_info("x", 1, ["n", 3, "h", 8])
    y = oh.make_tensor_value_info("y", 1, None)
    scales = oh.make_tensor("scales", 1, [4], [1.0, 1.0, 2.0, 2.0])
    node = oh.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    graph = oh.make_graph([node], "g", [x], [y], [scales])
    model = open_model(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)]))
    plan = DynamicPlan(model, device="cpu")
    for n, h in ((2, 6), (3, 6), (2, 9)):
        check(plan, model, n=n, h=h)
    assert len(plan.variants) <= 3 and "h" in plan.explain()


@pytest.mark.cuda
def test_plans_of_a_gpu_share_code_and_memory() -> None:
    """Sizes that fit in the memory of earlier ones use it; each plan runs right after the others,
    and when others are closed."""
    model = tiny("tiny_llama")
    plan = DynamicPlan(model, device="cuda")
    sizes = [(4, 60), (2, 30), (3, 17), (9, 64)]
    for batch, sequence in sizes:
        check(plan, model, batch=batch, sequence=sequence)
    executors: list[Any] = [item.executor for item in plan.plans]
    assert len({id(item.shared) for item in executors}) == 1
    assert len({item.addresses.base for item in executors[:3]}) == 1
    assert executors[3].addresses.base != executors[0].addresses.base
    plan.plans[0].close()
    for batch, sequence in sizes[1:]:
        check(plan, model, batch=batch, sequence=sequence)
    plan.close()


def test_explain_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "attention.onnx"
    save(build("attention", **TINY["attention"]), path)
    assert run(["explain", str(path), "--device", "cpu", "--dynamic", "--dim", "sequence=30"]) == 0
    text = capsys.readouterr().out
    assert "batch 2.., sequence 2..64" in text and "batch 1, sequence 2..64" in text


# files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["attention", "tiny_llama"])
def test_a_saved_plan_serves_its_ranges_and_compiles_nothing(
    name: str, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = tiny(name), tmp_path / "ranges.plan"
    plan = DynamicPlan(model, device=device)
    check(plan, model, batch=3, sequence=40)
    check(plan, model, batch=2, sequence=66)  # rows are swept in groups
    assert not plan.variants[1].conditions and not plan.variants[1].note
    feeds = random_feeds(model, {"batch": 4, "sequence": 33})
    wanted = plan.run(feeds)
    plan.save(path)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr("fuser.pipeline.compiled.compile_kernels", never)
    again = DynamicPlan.load(path, threads=1)
    assert list(map(str, again.inputs)) == list(map(str, plan.inputs))
    assert again.explain() == plan.explain() and len(again.variants) == len(plan.variants)
    for key, array in again.run(feeds).items():
        np.testing.assert_array_equal(array, wanted[key])
    for batch, sequence in ((5, 9), (2, 64), (3, 201), (5, 65)):
        check(again, model, batch=batch, sequence=sequence)
    assert len(again.plans) == 5
    report = again.report(feeds)
    assert report.dims == {"batch": 4, "sequence": 33} and report.kernels.after > 0
    assert again.prepare({"batch": 8, "sequence": 20}) is again.variants[0]
    with pytest.raises(UsageError, match=r"no kernels for batch = 1, sequence = 7: it has them"):
        check(again, model, batch=1, sequence=7)
    for variants in (plan.variants, again.variants):
        one, two = (
            {id(a) for a in variant.bound.constants.values() if a.nbytes > 1 << 16}
            for variant in variants
        )
        assert bool(one & two) == (name == "tiny_llama"), "weights are shared"


def test_a_plan_that_cannot_be_saved_or_read(tmp_path: Path) -> None:
    path = tmp_path / "mlp.plan"
    plan = DynamicPlan(tiny("mlp"), device="cpu")
    with pytest.raises(UsageError, match="nothing is compiled"):
        plan.save(path)
    with pytest.raises(UsageError, match="nothing is compiled"):
        pickle.dumps(plan)
    assert repr(plan) == "<DynamicPlan x f32[batch, 24]; 0 ranges of sizes>"
    plan.prepare({"batch": 4})
    assert repr(plan).endswith("-> y f32[batch, 10]; cpu, 1 range of sizes>")
    assert "batch 2.." in plan._repr_html_()
    again: DynamicPlan = pickle.loads(pickle.dumps(plan))
    check(again, tiny("mlp"), batch=5)
    assert again.explain() == plan.explain()
    assert copy.deepcopy(plan) is copy.copy(plan) is plan
    fixed: Plan = pickle.loads(pickle.dumps(again.plans[0]))
    assert fixed.report().dims == {"batch": 5}
    plan.save(path)
    data = path.read_bytes()
    for damaged in (data[:-1], data[:100], b"", data[:60] + b"x" + data[61:]):
        path.write_bytes(damaged)
        with pytest.raises(InvalidModelError):
            DynamicPlan.load(path)
    fuser.compile(tiny("mlp"), device="cpu").save(path)
    with pytest.raises(InvalidModelError, match="not a plan"):
        DynamicPlan.load(path)
    with pytest.raises(UsageError):
        DynamicPlan.load(tmp_path / "absent")


@pytest.mark.parametrize("device", DEVICES)
def test_a_plan_that_was_closed_is_made_again(device: Device) -> None:
    model = tiny("mlp")
    plan = DynamicPlan(model, device=device)
    check(plan, model, batch=3)
    plan.close()
    check(plan, model, batch=4)
    check(plan, model, batch=3)
    assert len(plan.variants) == 1


def test_a_defect_is_no_reason_for_narrower_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiling does not raise on purpose is shown, not compiled around."""
    seen: list[Any] = []

    def broken(*arguments: object, **options: object) -> None:
        seen.append(arguments)
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("fuser.pipeline.compiled.compile_kernels", broken)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        DynamicPlan(tiny("mlp"), device="cpu").prepare({"batch": 3})
    assert len(seen) == 1


def test_what_open_sizes_cannot_do_is_compiled_for_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(graph: Graph, *options: Any) -> Any:
        if any(is_symbolic(*value.shape) for value in graph.inputs):
            raise LoweringError("no kernel of open sizes")
        return compile_kernels(graph, *options)

    monkeypatch.setattr("fuser.pipeline.compiled.compile_kernels", picky)
    model = tiny("mlp")
    plan = DynamicPlan(model, device="cpu")
    check(plan, model, batch=3)
    (variant,) = plan.variants
    assert variant.note == "narrower: LoweringError: no kernel of open sizes"
    assert variant.serves({"batch": 3}) and not variant.serves({"batch": 4})


@pytest.mark.parametrize(
    "attributes",
    [
        'auto_pad = "SAME_UPPER"',
        "ceil_mode = 1, pads = [1, 1, 1, 1], count_include_pad = 1",
        "ceil_mode = 1, pads = [1, 1, 1, 1]",
    ],
)
def test_averages_of_images_of_any_size(attributes: str) -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 20]> g (float[2, 3, h, w] x) => (float[2, 3, k, l] y) '
        f"{{ y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], {attributes}>(x) }}"
    )
    model = open_model(parser.parse_model(text))
    plan = DynamicPlan(model, device="cpu")
    for h, w in ((5, 6), (8, 7)):  # each odd once, and even once
        check(plan, model, h=h, w=w)
    assert not any("Error" in variant.note for variant in plan.variants)
