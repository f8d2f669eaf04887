"""What programs for ONNX Runtime hand to a session: options, and providers by name.

docs/onnxruntime.md says which of them mean something here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from fuser.errors import DeviceError, UnsupportedError, UsageError
from fuser.pipeline.devices import Device, choose_target

if TYPE_CHECKING:
    from fuser.frontends.onnx.values import OrtValue

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
PROVIDERS: dict[str, Device] = {
    CUDA: "cuda",
    "TensorrtExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "cuda",
    CPU: "cpu",
}
"""Providers that have a meaning here, and the device that it is."""


class GraphOptimizationLevel(IntEnum):
    """ORT_DISABLE_ALL is `fusion=False`; the others are all the same."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """No meaning here: kernels run in order, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """No meaning here: the partitioner orders kernels."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(slots=True)
class SessionOptions:
    """Options of a session, under ONNX Runtime's names."""

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    dims_by_name: dict[str, int] = field(default_factory=dict)
    dims_by_denotation: dict[str, int] = field(default_factory=dict)
    initializers: dict[str, OrtValue] = field(default_factory=dict)
    providers: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    entries: dict[str, str] = field(default_factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Kept, and without a meaning here."""
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """What was set under a key by `add_session_config_entry`."""
        return _entry(self.entries, key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix a symbolic dim: feeds must have this size, and shapes show it."""
        self.dims_by_name[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """The same for dims that the model says to mean this (DATA_BATCH, say)."""
        self.dims_by_denotation[denotation] = size

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """Use this value for a weight of the model."""
        self.initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Values for initializers of the model, by name, in place of its own."""
        self.initializers.update(zip(names, values, strict=True))

    def add_provider(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        """A provider for sessions that name none, with its options."""
        self.providers.append((name, dict(options or {})))

    def has_providers(self) -> bool:
        """Whether `add_provider` was called."""
        return bool(self.providers)

    def register_custom_ops_library(self, path: str) -> None:
        """Raises UnsupportedError: such a library is written for ONNX Runtime's own interface."""
        raise UnsupportedError(
            f"a library of operators for ONNX Runtime cannot be loaded: {path}",
            hint="write them in Python: fuser.register_host_op(domain, name, function)",
        )

    def check(self) -> None:
        """Raise UsageError for what cannot be had and would be missed."""
        if self.optimized_model_filepath:
            raise UsageError(
                "no optimised model is written: what fuser makes of one is no ONNX",
                hint="leave optimized_model_filepath empty; fuser.compile(...).save keeps a plan",
            )


@dataclass(slots=True)
class RunOptions:
    """Options of a run. `terminate`, set beforehand, refuses it; a run that began is not stopped.
    The others have no meaning here."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    training_mode: bool = False
    entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Kept, and without a meaning here."""
        self.entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """What was set under a key by `add_run_config_entry`."""
        return _entry(self.entries, key)

    def add_active_adapter(self, adapter: Any) -> None:
        """Raises UnsupportedError: there are no adapters."""
        raise UnsupportedError("LoRA adapters are not read", hint="merge them into the weights")


def _entry(entries: Mapping[str, str], key: str) -> str:
    if key not in entries:
        raise UsageError(f"there is no entry {key!r}", hint=f"there are {sorted(entries)}")
    return entries[key]


def get_available_providers() -> list[str]:
    """CUDA, where there is a device, and the CPU."""
    try:
        choose_target("cuda")
    except (DeviceError, ImportError):
        return [CPU]
    return [CUDA, CPU]


def get_all_providers() -> list[str]:
    """The providers that have a meaning here."""
    return list(PROVIDERS)


def get_device() -> str:
    """GPU or CPU: what device="auto" takes."""
    return "GPU" if CUDA in get_available_providers() else "CPU"


def chosen_device(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    options: Sequence[Mapping[str, Any]] | None,
) -> tuple[Device, dict[str, dict[str, Any]]]:
    """The device of the first provider that this machine has, and all that are used, with their
    options: the CPU comes last, as every kernel can run there. None, or none: whatever is there.

    Warns of providers that are not here. Raises UsageError for options that do not fit.
    """
    named = [item if isinstance(item, tuple) else (item, {}) for item in providers or ()]
    if options:
        if len(options) != len(named) or any(isinstance(item, tuple) for item in providers or ()):
            raise UsageError("provider_options are one dict for each name in providers")
        named = [(name, given) for (name, _), given in zip(named, options, strict=True)]
    available = get_available_providers()
    if not named:
        return "auto", {name: {} for name in available}
    found: dict[str, dict[str, Any]] = {}
    for name, given in named:
        if not isinstance(name, str):
            raise UsageError(f"{name!r} is no name of a provider", hint=f"there are {available}")
        kind = CUDA if PROVIDERS.get(name) == "cuda" else name
        if kind not in available:
            warnings.warn(f"the provider {name!r} is not here: {available}", stacklevel=4)
            continue
        found.setdefault(kind, {key: str(value) for key, value in given.items()})
    first = next(iter(found), CPU)
    index = int(found.get(CUDA, {}).get("device_id", 0))
    device = f"cuda:{index}" if first == CUDA and index else PROVIDERS[first]
    return device, {**found, CPU: found.get(CPU, {})}
