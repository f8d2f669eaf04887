"""`InferenceSession`: a model with the API that users of ONNX Runtime know.

    session = fuser.InferenceSession("model.onnx")
    (logits,) = session.run(None, {"x": array})

Plans are compiled on the first run with feeds of given shapes, and kept. docs/onnxruntime.md lists
the members.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser.base.config import within
from fuser.base.forks import new_lock
from fuser.base.limits import Limits
from fuser.errors import FuserError, UsageError, check_keywords
from fuser.frontends.onnx.importer import load_model
from fuser.frontends.onnx.io_binding import IOBinding, Target
from fuser.frontends.onnx.model import Model
from fuser.frontends.onnx.node_args import (
    ModelMetadata,
    TensorInfo,
    metadata,
    output_infos,
    tensor_info,
)
from fuser.frontends.onnx.overrides import overridden
from fuser.frontends.onnx.profiling import Profile, span
from fuser.frontends.onnx.runner import PLAIN, Ready, Runner, Running
from fuser.frontends.onnx.settings import (
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    chosen_device,
)
from fuser.frontends.onnx.values import OrtValue, is_on_gpu, on_host, plain
from fuser.graph.numerics import Mode, using
from fuser.graph.units import counted
from fuser.pipeline.devices import Device, check_device, parse_device
from fuser.pipeline.fusion import Fusing
from fuser.pipeline.options import CompileOptions
from fuser.pipeline.precision import Precision
from fuser.runtime.device_tensors import DeviceArray
from fuser.runtime.shown import MOST_ROWS, Shown, Summary, specs_shown

if TYPE_CHECKING:
    from onnx import ModelProto

MOST_READY = 32
"""Signatures of feeds that run without being looked at again."""
KEYWORDS = (
    "device",
    "threads",
    "fusion",
    "precision",
    "numerics",
    "batch_invariant",
    "fallback",
    "limits",
)
IGNORED = ("disabled_optimizers", "enable_fallback", "read_config_from_model")
"""Keywords of ONNX Runtime that have no meaning here."""


class InferenceSession(Running, Shown):
    """A model that is compiled for the feeds it meets.

    path_or_bytes: a path, the bytes of a model, a ModelProto or a `Model`. sess_options, providers,
    provider_options: as for ONNX Runtime; docs/onnxruntime.md says what they mean here. device,
    threads, fusion, precision, numerics, batch_invariant, limits: as for `fuser.compile`. fallback:
    what cannot be compiled runs on the host (frontends/onnx/host.py) instead of being an error;
    `fallbacks` lists it.
    Raises UsageError, InvalidModelError, LimitError; `run` raises what compiling raises.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | ModelProto | Model,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        device: Device | None = None,
        threads: int | None = None,
        fusion: Fusing = True,
        precision: Precision = "model",
        numerics: Mode | None = None,
        batch_invariant: bool | None = None,
        fallback: bool = True,
        limits: Limits | None = None,
        **ignored: Any,
    ) -> None:
        check_keywords("InferenceSession", ignored, (*KEYWORDS, *IGNORED))
        options = sess_options or SessionOptions()
        options.check()
        if device is not None and (providers or options.providers):
            raise UsageError("device= and providers are two ways to say one thing")
        self._session_options = options
        self._profile = Profile(options.profile_file_prefix) if options.enable_profiling else None
        self._limits = limits
        self._fallback = fallback
        found, self._providers = chosen_device(providers or options.providers, provider_options)
        if options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL:
            fusion = False
        self._options = CompileOptions(
            device=device or found,
            threads=threads if threads is not None else options.intra_op_num_threads or None,
            fusion=fusion,
            precision=precision,
        )
        check_device(self._options.device, self._options.threads)
        if parse_device(self._options.device)[0] == "cpu":
            self._providers = {"CPUExecutionProvider": {}}
        self._model_path: str | None = None
        with using(numerics, batch_invariant):
            self._open(path_or_bytes)

    def _open(self, source: str | os.PathLike[str] | bytes | ModelProto | Model) -> None:
        if isinstance(source, str | os.PathLike):
            self._model_path = os.fspath(source)
            source = Path(source)
        with within(self._limits), span(self._profile, "session_initialization"):
            model = source if isinstance(source, Model) else None
            proto = source.proto if isinstance(source, Model) else load_model(source)
            changed = overridden(proto, self._session_options)
            if changed is not proto:
                proto, model = changed, None
            held = {tensor.name for tensor in proto.graph.initializer}
            self._inputs = [tensor_info(i) for i in proto.graph.input if i.name not in held]
            self._overridable = [tensor_info(i) for i in proto.graph.input if i.name in held]
            self._runner = Runner(proto, model, self._options, self._fallback)
        self._outputs: list[TensorInfo] | None = None
        self._output_names = [info.name for info in proto.graph.output]
        self._input_names = [info.name for info in self._inputs]
        self._ready: dict[tuple[Any, ...], Ready] = {}
        self._lock = new_lock()

    # running ------------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """The named outputs (None: all), in order: arrays; lists for sequences. Raises FeedError,
        UsageError."""
        if run_options is None and self._profile is None and type(input_feed) is dict:
            # feeds of a signature that was checked before go straight to the executor
            arrays: list[np.ndarray] = []
            signature: list[Any] = []
            for name in self._input_names:
                array = input_feed.get(name)
                if type(array) is not np.ndarray or array.flags.num & PLAIN != PLAIN:
                    break
                arrays.append(array)
                signature += (array.shape, array.dtype)
            else:
                ready = self._ready.get(tuple(signature))
                if ready is not None and len(input_feed) == len(arrays):
                    results = ready.run(arrays, output_names)
                    if results is not None:
                        return results
        self._check_run(output_names, run_options)
        with span(self._profile, "model_run"), within(self._limits):
            return self._run(output_names, input_feed)

    def _check_run(self, names: Sequence[str] | None, options: RunOptions | None) -> None:
        if options is not None and options.terminate:
            raise UsageError("the run was ended: RunOptions.terminate is set")
        for name in names or ():
            if name not in self._output_names:
                raise UsageError(
                    f"there is no output {name!r}", hint=f"outputs: {self._output_names}"
                )

    def _run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        if isinstance(feeds, Mapping):
            feeds = {name: plain(value) for name, value in feeds.items()}
        found = self._runner.run(feeds)
        ready = self._runner.ready(feeds, self._input_names, self._output_names)
        if ready is not None:
            with self._lock:
                if len(self._ready) >= MOST_READY:
                    del self._ready[next(iter(self._ready))]
                self._ready[ready.signature] = ready
        return [found[name] for name in output_names or self._output_names]

    def run_bound(
        self, feeds: Mapping[str, Any], targets: Mapping[str, Target],
        run_options: RunOptions | None = None,
    ) -> list[Any]:  # fmt: skip
        """`run` for an IOBinding: on what lies on the GPU, where the model runs there; else that is
        copied to the host."""
        fed = [value for value in feeds.values() if isinstance(value, DeviceArray)]
        if fed or any(is_on_gpu(target) for target in targets.values()):
            self._check_run(list(targets), run_options)
            into = {name: t for name, t in targets.items() if isinstance(t, DeviceArray)}
            with span(self._profile, "model_run"), within(self._limits):
                found = self._runner.run_on_gpu(feeds, into)
            if found is not None:
                return [found[name] for name in targets]
            feeds = {name: on_host(value) for name, value in feeds.items()}
        return self.run(list(targets), feeds, run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """`run` from values to values in host memory."""
        return [OrtValue(r) for r in self.run(output_names, input_dict_ort_values, run_options)]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run in a thread; then callback(outputs, user_data, error), the error "" if it went
        well."""

        def work() -> None:
            try:
                results, problem = self.run(output_names, input_feed, run_options), ""
            except FuserError as error:
                results, problem = [], str(error)
            callback(results, user_data, problem)

        Thread(target=work, name="fuser run_async").start()

    def io_binding(self) -> IOBinding:
        """An IOBinding for this session, with nothing bound yet."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run what is bound. Raises UsageError for an output that does not fit."""
        iobinding.run(run_options)

    # what the model is --------------------------------------------------------------------------

    def get_inputs(self) -> list[TensorInfo]:
        """The inputs that need a feed."""
        return list(self._inputs)

    def get_outputs(self) -> list[TensorInfo]:
        """The outputs; types and shapes that the model does not declare are inferred."""
        if self._outputs is None:
            self._outputs = output_infos(self._runner.proto)
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[TensorInfo]:
        """The inputs that have a value when they are not fed."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """The model's producer, graph, domain, version and properties."""
        return metadata(self._runner.proto)

    # how it runs --------------------------------------------------------------------------------

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._session_options

    def get_providers(self) -> list[str]:
        """The providers in use, the CPU last."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """The options of the providers in use, by their name."""
        return {name: dict(options) for name, options in self._providers.items()}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Run on another device from now on; everything is compiled anew."""
        device, self._providers = chosen_device(providers, provider_options)
        self._options = self._options.but(device=device)
        self._runner = Runner(self._runner.proto, None, self._options, self._fallback)
        self._ready = {}

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """No meaning here."""

    def enable_fallback(self) -> None:
        """No meaning here: a device that fails is an error."""

    def disable_fallback(self) -> None:
        """No meaning here: a device that fails is an error."""

    def end_profiling(self) -> str:
        """The file with the times of runs (`enable_profiling`), "" without any."""
        profile, self._profile = self._profile, None
        return profile.write() if profile is not None else ""

    def get_profiling_start_time_ns(self) -> int:
        """When the profile began, in nanoseconds; 0 without `enable_profiling`."""
        return self._profile.start_ns if self._profile is not None else 0

    def _summary(self) -> Summary:
        def shown(info: TensorInfo) -> tuple[str, str]:
            sizes = ("?" if size is None else str(size) for size in info.shape)
            return info.name, f"{info.type}[{', '.join(sizes)}]"

        inputs, outputs = map(shown, self.get_inputs()), map(shown, self.get_outputs())
        plans = self.plans
        facts = [("device", plans[0].device_name if plans else str(self._options.device))]
        for plan in plans:
            fed = ", ".join(f"{name} {type}" for name, type in specs_shown(plan.inputs))
            facts.append((counted(plan.launches, "kernel"), fed))
        short = [str(self._options.device), counted(len(plans), "plan")]
        return Summary("", list(inputs), list(outputs), facts[: MOST_ROWS + 1], short)

    @property
    def value_inputs(self) -> tuple[str, ...]:
        """Inputs that decide shapes: each of their values has plans of its own."""
        return self._runner.value_inputs
