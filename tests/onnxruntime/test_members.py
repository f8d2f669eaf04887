"""The members of ONNX Runtime's session: what each does here, and what is refused."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fuser
import fuser.onnxruntime as ort
from fuser.errors import DeviceError, FeedError, UnsupportedError, UsageError
from fuser.frontends.onnx import settings
from fuser.frontends.onnx.node_args import output_infos

Array = np.ndarray[Any, Any]
ADD = "m (float[n, 4] x, float[n, 4] w) => (float[n, 4] y, float[n, 4] z) { y = Add(x, w) z = Mul(x, w) }"  # noqa: E501


def model(text: str, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    return ort.InferenceSession(model(ADD).SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture
def feeds(rng: np.random.Generator) -> dict[str, Array]:
    return {name: rng.standard_normal((2, 4)).astype(np.float32) for name in ("x", "w")}


# what a call costs -------------------------------------------------------------------------------


def calls_of(session: ort.InferenceSession, names: list[str] | None, feeds: dict[str, Any]) -> int:
    """Functions, of Python and of C, that a run calls."""
    seen = []
    sys.setprofile(lambda frame, event, what: seen.append(event))
    try:
        session.run(names, feeds)
    finally:
        sys.setprofile(None)
    return sum(event in ("call", "c_call") for event in seen)


def test_a_run_of_known_feeds_checks_nothing_again(feeds: dict[str, Array]) -> None:
    """What a run calls is a few for each input, and no more than what `plan.run` calls."""
    session = fuser.InferenceSession(model(ADD), device="cpu")
    first = calls_of(session, None, feeds)
    again = calls_of(session, None, feeds)
    assert first > 10 * again
    assert calls_of(session, ["z"], feeds) <= again + 2
    plan, seen = session.plans[0], []
    sys.setprofile(lambda frame, event, what: seen.append(event))
    try:
        plan.run(feeds)
    finally:
        sys.setprofile(None)
    assert again <= sum(event in ("call", "c_call") for event in seen)
    executor = plan.executor
    seen.clear()
    arrays = list(feeds.values())
    sys.setprofile(lambda frame, event, what: seen.append(event))
    try:
        executor.run(arrays)
    finally:
        sys.setprofile(None)
    beyond = again - sum(event in ("call", "c_call") for event in seen)
    assert beyond <= 6 + 4 * len(feeds)


def test_feeds_that_are_not_known_are_checked(feeds: dict[str, Array]) -> None:
    """The short way is for arrays just as they were checked; all others go the long one."""
    session = fuser.InferenceSession(model(ADD), device="cpu")
    want = feeds["x"] + feeds["w"]
    for _ in range(2):
        np.testing.assert_array_equal(session.run(["y"], feeds)[0], want)
    wide = np.zeros((2, 8), np.float32)
    wide[:, ::2] = feeds["x"]
    for x in (wide[:, ::2], np.asfortranarray(feeds["x"]), feeds["x"].astype(">f4")):
        np.testing.assert_array_equal(session.run(["y"], {**feeds, "x": x})[0], want)
    swapped = dict(reversed(feeds.items()))
    np.testing.assert_array_equal(session.run(["z", "y"], swapped)[1], want)
    for wrong in ({"x": feeds["x"]}, {**feeds, "q": want}, {**feeds, "x": want.astype(float)}):
        with pytest.raises(FeedError):
            session.run(None, wrong)
    session.plans[0].close()
    np.testing.assert_array_equal(session.run(["y"], feeds)[0], want)


def test_sizes_that_change_are_each_known(feeds: dict[str, Array]) -> None:
    session = fuser.InferenceSession(model(ADD), device="cpu")
    for n in (1, 3, 2, 1, 3, 2):
        x = np.full((n, 4), n, np.float32)
        y, z = session.run(None, {"x": x, "w": x})
        assert y.tolist() == (2 * x).tolist() and z.tolist() == (x * x).tolist()
    met = calls_of(session, None, {"x": x, "w": x})
    assert met == calls_of(session, None, {name: np.ones((3, 4), np.float32) for name in "xw"})
    assert 10 * met < calls_of(session, None, {name: np.ones((7, 4), np.float32) for name in "xw"})


# signatures --------------------------------------------------------------------------------------


def test_output_shapes_are_inferred() -> None:
    proto = model("""m (float[batch, 6] x) => (float a, float[batch, k] b, int64 c) {
        a = Softmax(x)
        shape = Constant<value = int64[2] {-1, 3}>()
        b = Concat<axis = 1>(x, x)
        folded = Reshape(x, shape)
        c = ArgMax<axis = 1, keepdims = 0>(folded)
    }""")
    for output in (proto.graph.output[0], proto.graph.output[2]):
        output.type.tensor_type.ClearField("shape")
    found = {info.name: info.shape for info in output_infos(proto)}
    assert found == {"a": ["batch", 6], "b": ["batch", "k"], "c": [None]}


def test_metadata_and_overridable_initializers() -> None:
    proto = model(
        "m (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }"
    )
    session = fuser.InferenceSession(proto, device="cpu")
    assert [info.name for info in session.get_inputs()] == ["x"]
    assert [info.name for info in session.get_overridable_initializers()] == ["w"]
    x = np.ones(2, np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [1, 2]
    assert session.run(None, {"x": x, "w": 5 * x})[0].tolist() == [5, 5]
    assert session.run(None, {"x": x})[0].tolist() == [1, 2]


# options -----------------------------------------------------------------------------------------


def test_options_that_mean_something(feeds: dict[str, Array]) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.add_free_dimension_override_by_name("n", 2)
    text = ADD.replace("float[n, 4] y, float[n, 4] z", "float[n, 4] z")
    session = ort.InferenceSession(model(text), options, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [2, 4]
    session.run(None, feeds)
    (plan,) = session.plans
    assert plan.report().kernels.after == plan.report().kernels.before
    assert "1 thread)" in plan.device_name
    with pytest.raises(FeedError):
        session.run(None, {name: array[:1] for name, array in feeds.items()})
    assert session.get_session_options() is options


def test_initializers_that_options_replace() -> None:
    proto = model("m (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }")
    options = ort.SessionOptions()
    options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(np.full(2, 7, np.float32)))
    session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [7, 7]
    assert proto.graph.initializer[0].float_data[0] == 1, "the caller's model is as it was"
    options.add_initializer("v", ort.OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32)))
    with pytest.raises(UsageError, match="no initializer 'v'"):
        ort.InferenceSession(proto, options)


def test_what_cannot_be_had_is_an_error() -> None:
    proto, options = model(ADD), ort.SessionOptions()
    with pytest.raises(AttributeError):
        options.no_such_option = 1  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="register_host_op"):
        options.register_custom_ops_library("libops.so")
    options.optimized_model_filepath = "optimised.onnx"
    with pytest.raises(UsageError, match="optimised"):
        ort.InferenceSession(proto, options)
    with pytest.raises(UsageError, match="no keyword 'thread'"):
        ort.InferenceSession(proto, thread=1)
    with pytest.raises(UnsupportedError, match="LoRA"):
        ort.RunOptions().add_active_adapter(None)
    with pytest.raises(UsageError, match="two ways"):
        fuser.InferenceSession(proto, device="cpu", providers=["CPUExecutionProvider"])


def test_a_run_that_is_ended_beforehand(
    session: ort.InferenceSession, feeds: dict[str, Array]
) -> None:
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(UsageError, match="terminate"):
        session.run(None, feeds, options)
    options.terminate = False
    assert len(session.run([], feeds, options)) == 2


# providers ---------------------------------------------------------------------------------------


def test_providers_are_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, here = settings.chosen_device, lambda: [settings.CUDA, settings.CPU]
    monkeypatch.setattr(settings, "get_available_providers", here)
    assert chosen(["CPUExecutionProvider"], None) == ("cpu", {settings.CPU: {}})
    device, used = chosen([settings.CUDA, settings.CPU], [{"device_id": 1}, {}])
    assert device == "cuda:1" and list(used) == [settings.CUDA, settings.CPU]
    assert chosen([("TensorrtExecutionProvider", {})], None)[0] == "cuda"
    assert chosen(None, None)[0] == "auto"
    monkeypatch.setattr(settings, "get_available_providers", lambda: [settings.CPU])
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        assert chosen([settings.CUDA, settings.CPU], None)[0] == "cpu"
    with pytest.raises(UsageError, match="one dict for each"):
        chosen([settings.CPU], [{}, {}])


def test_providers_of_a_session(feeds: dict[str, Array]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = ort.InferenceSession(model(ADD), providers=ort.get_available_providers())
        session.set_providers(["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    assert ort.get_device() in ("CPU", "GPU")
    np.testing.assert_array_equal(session.run(["y"], feeds)[0], feeds["x"] + feeds["w"])


# values and bindings -----------------------------------------------------------------------------


def test_values() -> None:
    import ml_dtypes

    value = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 3), ml_dtypes.bfloat16))
    assert (value.data_type(), value.element_type()) == ("tensor(bfloat16)", 16)
    assert value.tensor_size_in_bytes() == 12
    bits = np.array([0x3F80], np.uint16)
    assert float(ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16).numpy()[0]) == 1
    with pytest.raises(UsageError, match="the array"):
        value.update_inplace(np.zeros((2, 3), np.float32))
    with pytest.raises(DeviceError, match="no values on 'dml'"):
        ort.OrtValue.ortvalue_from_numpy(bits, "dml", 0)
    assert ort.OrtValue([bits]).data_type() == "seq(tensor(uint16))"
    assert np.from_dlpack(ort.OrtValue.ortvalue_from_numpy(bits)).tolist() == bits.tolist()


def test_bindings_that_do_not_fit(session: ort.InferenceSession, feeds: dict[str, Array]) -> None:
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    with pytest.raises(UsageError, match="no output is bound"):
        session.run_with_iobinding(binding)
    small = np.zeros((1, 4), np.float32)
    binding.bind_output("y", "cpu", 0, np.float32, small.shape, small.ctypes.data)
    with pytest.raises(UsageError, match=r"'y' is float32\[1, 4\], the array float32\[2, 4\]"):
        session.run_with_iobinding(binding)


def test_an_output_may_be_bound_where_an_input_is(session: ort.InferenceSession) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_cpu_input("w", np.ones((2, 4), np.float32))
    binding.bind_output("y", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    for _ in range(3):
        session.run_with_iobinding(binding)
    assert x.ravel().tolist() == [3 + i for i in range(8)]


def test_errors_of_a_run_in_a_thread(session: ort.InferenceSession) -> None:
    import threading

    done, told = threading.Event(), []
    session.run_async(None, {}, lambda *found: (told.append(found), done.set()), "mine")
    assert done.wait(60)
    assert told[0][:2] == ([], "mine") and "missing feeds" in told[0][2]


def test_names_of_the_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of a named package find it, with its submodules, its version and its errors."""
    (tmp_path / "written_for_ort.py").write_text(
        "import importlib.metadata, importlib.util\n"
        "import onnxruntime\n"
        "from onnxruntime import InferenceSession\n"
        "from onnxruntime.capi import _pybind_state as C\n"
        "from onnxruntime.transformers.io_binding_helper import TypeHelper\n"
        "version = importlib.metadata.version('onnxruntime')\n"
        "found = importlib.util.find_spec('onnxruntime').name\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    real = sys.modules.get("onnxruntime")
    with ort.imports("written_for_ort"):
        import written_for_ort as written
    assert written.onnxruntime is ort and written.InferenceSession is fuser.InferenceSession
    assert written.version == ort.__version__ and written.found == "fuser.onnxruntime"
    assert written.C.InvalidArgument is UsageError
    assert written.TypeHelper.ort_type_to_numpy_type("tensor(float16)") is np.float16
    assert sys.modules.get("onnxruntime") is real
    missing = [name for name in ort.__all__ if not hasattr(ort, name)]
    assert not missing
