"""triton.knobs: settings by group, from the environment unless a program sets them.

    knobs.runtime.debug = True
    with knobs.compilation.scope(): ...

Those of fuser are in docs/command-line.md. Of Triton's, fuser reads runtime.debug, the hooks of
runtime, autotuning (cache, print, listener) and in language the two on fusion of floats; the others
are kept and change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from fuser.triton.absent import names
from fuser.triton.hooks import HookChain

propagate_env = True
_NOTHING = object()


class Env:
    """`knobs.group.name = knobs.env` goes back to what the environment says."""


env = Env()


class env_base:
    """One setting: `key` is its variable of the environment."""

    def __init__(self, key: str, default: Any = None, read: Callable[[str], Any] = str) -> None:
        self.key, self.default, self.read, self.name = key, default, read, ""
        self._raw: Any = os.environ.encodekey(key)

    def get(self) -> Any:
        """What the environment says."""
        text = os.environ.get(self.key)
        return self.default if text is None else self.read(text)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None:
            return self
        held = owner.__dict__.get(self.name, _NOTHING)
        if held is not _NOTHING:
            return held
        # Each launch asks: a look at the variables as they are kept takes a tenth of the time.
        if self._raw not in getattr(os.environ, "_data", (self._raw,)):
            return self.default
        return self.get()

    def __set__(self, owner: Any, value: Any) -> None:
        if isinstance(value, Env):
            owner.__dict__.pop(self.name, None)
            return
        owner.__dict__[self.name] = value
        if not propagate_env or not (value is None or isinstance(value, bool | int | str)):
            return
        if value is None:
            os.environ.pop(self.key, None)
        else:
            os.environ[self.key] = str(int(value)) if isinstance(value, bool) else str(value)

    def __delete__(self, owner: Any) -> None:
        owner.__dict__.pop(self.name, None)


def _truth(text: str) -> bool:
    return text.lower() in ("1", "true", "on", "y", "yes")


def _flag(key: str, default: bool = False) -> Any:
    return env_base(key, default, _truth)


def env_bool(key: str, default: bool = False) -> env_base:
    """A setting that is true or false."""
    return env_base(key, default, _truth)


def env_int(key: str, default: int = 0) -> env_base:
    """A setting that is a whole number."""
    return env_base(key, default, int)


def env_str(key: str, default: str) -> env_base:
    """A setting that is a text."""
    return env_base(key, default)


def env_opt_str(key: str) -> env_base:
    """A setting that is a text, or None."""
    return env_base(key)


def env_opt_bool(key: str) -> env_base:
    """A setting that is true, false or None."""
    return env_base(key, None, _truth)


class base_knobs:
    """A group of settings."""

    @property
    def knob_descriptors(self) -> dict[str, env_base]:
        return {k: v for k, v in type(self).__dict__.items() if isinstance(v, env_base)}

    @property
    def knobs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.knob_descriptors}

    def copy(self) -> Self:
        made = type(self)()
        made.__dict__.update(self.__dict__)
        return made

    def reset(self) -> Self:
        """Forget what the program set."""
        for name in self.knob_descriptors:
            delattr(self, name)
        return self

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Settings of the group that are made inside end with it."""
        keys = [knob.key for knob in self.knob_descriptors.values()]
        variables = {key: os.environ.get(key) for key in keys}
        held = dict(self.__dict__)
        try:
            yield
        finally:
            self.__dict__.clear()
            self.__dict__.update(held)
            for key, text in variables.items():
                if text is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = text


class build_knobs(base_knobs):
    cc = env_base("CC")
    cudacrt_path = env_base("TRITON_CUDACRT_PATH")
    cudart_path = env_base("TRITON_CUDART_PATH")
    impl: Any = None

    @property
    def backend_dirs(self) -> set[str]:
        return {path for path in (self.cudacrt_path, self.cudart_path) if path is not None}


class redis_knobs(base_knobs):
    key_format = env_base("TRITON_REDIS_KEY_FORMAT", "triton:{key}:{filename}")
    host = env_base("TRITON_REDIS_HOST", "localhost")
    port = env_int("TRITON_REDIS_PORT", 6379)


class cache_knobs(base_knobs):
    home_dir = env_base("TRITON_HOME", os.path.expanduser("~/"))
    dump_dir = env_base("TRITON_DUMP_DIR")
    override_dir = env_base("TRITON_OVERRIDE_DIR")
    dir = env_base("TRITON_CACHE_DIR", os.path.join(os.path.expanduser("~/"), ".triton", "cache"))
    manager_class = env_base("TRITON_CACHE_MANAGER")
    remote_manager_class = env_base("TRITON_REMOTE_CACHE_BACKEND")

    def get_triton_dir(self, dirname: str) -> str:
        """A folder of the home."""
        return os.path.join(self.home_dir, ".triton", dirname)


class compilation_knobs(base_knobs):
    override = _flag("TRITON_KERNEL_OVERRIDE")
    dump_ir = _flag("TRITON_KERNEL_DUMP")
    store_binary_only = _flag("TRITON_STORE_BINARY_ONLY")
    always_compile = _flag("TRITON_ALWAYS_COMPILE")
    use_ir_loc = env_base("USE_IR_LOC")
    enable_asan = _flag("TRITON_ENABLE_ASAN")
    disable_line_info = _flag("TRITON_DISABLE_LINE_INFO")
    front_end_debugging = _flag("TRITON_FRONT_END_DEBUGGING")
    allow_non_constexpr_globals = _flag("TRITON_ALLOW_NON_CONSTEXPR_GLOBALS")
    instrumentation_mode: str = ""
    dump_ir_extract_di_local_variables = _flag("LLVM_EXTRACT_DI_LOCAL_VARIABLES")
    fpsan_homomorphic_casts = _flag("TRITON_FPSAN_HOMOMORPHIC_CASTS")
    listener: Any = None


class autotuning_knobs(base_knobs):
    cache = _flag("TRITON_CACHE_AUTOTUNING")
    print = _flag("TRITON_PRINT_AUTOTUNING")
    listener: Any = None


class runtime_knobs(base_knobs):
    interpret = _flag("TRITON_INTERPRET")
    debug = _flag("TRITON_DEBUG")
    override_arch = env_base("TRITON_OVERRIDE_ARCH")
    launch_enter_hook: Any = HookChain()
    launch_exit_hook: Any = HookChain(reversed=True)
    kernel_load_start_hook: Any = HookChain()
    kernel_load_end_hook: Any = HookChain(reversed=True)
    kernel_unload_hook: Any = HookChain()
    jit_cache_hook: Any = None
    jit_post_compile_hook: Any = None
    add_stages_inspection_hook: Any = None


class language_knobs(base_knobs):
    fp32_default = env_base("TRITON_F32_DEFAULT")
    default_fp_fusion = _flag("TRITON_DEFAULT_FP_FUSION", True)
    force_disable_fp_fusion = _flag("TRITON_FORCE_DISABLE_FP_FUSION")

    def fp_fusion_enabled(self, requested: bool | None) -> bool:
        """Whether a launch that asks for this contracts a * b + c."""
        wanted = self.default_fp_fusion if requested is None else requested
        return bool(wanted) and not self.force_disable_fp_fusion


@dataclass(frozen=True)
class NvidiaTool:
    """A tool of CUDA's."""

    path: str
    version: str

    @staticmethod
    def from_path(path: str) -> NvidiaTool | None:
        """The tool at a path; None: fuser asks no tool for its version."""
        return None


class nvidia_knobs(base_knobs):
    disable_ptxas_opt = _flag("DISABLE_PTXAS_OPT")
    dump_nvptx = _flag("NVPTX_ENABLE_DUMP")
    libdevice_path = env_base("TRITON_LIBDEVICE_PATH")
    ptxas_options = env_base("PTXAS_OPTIONS")
    mock_ptx_version = env_base("TRITON_MOCK_PTX_VERSION")
    dump_ptxas_log = _flag("TRITON_DUMP_PTXAS_LOG")
    libcuda_path = env_base("TRITON_LIBCUDA_PATH")
    ptxas: Any = NvidiaTool("", "12.8")
    ptxas_blackwell: Any = ptxas
    cuobjdump: Any = ptxas
    nvdisasm: Any = ptxas


def _kept(name: str, texts: str, flags: str, on: str = "") -> Any:
    """A group of settings that nobody here reads: texts, flags and flags that are set from the
    start, as `name=VARIABLE`."""
    rows = {row.partition("=")[0]: env_base(row.partition("=")[2]) for row in texts.split()}
    for told, default in ((flags, False), (on, True)):
        rows |= {row.partition("=")[0]: _flag(row.partition("=")[2], default)
                 for row in told.split()}  # fmt: skip
    return type(name, (base_knobs,), rows)


amd_knobs = _kept(
    "amd_knobs",
    "codegen_path=TRITON_AMD_CODEGEN_PATH libhip_path=TRITON_LIBHIP_PATH dump_mir=TRITON_DUMP_MIR "
    "swap_mir=TRITON_SWAP_MIR use_block_pingpong=TRITON_HIP_USE_BLOCK_PINGPONG "
    "use_in_thread_transpose=TRITON_HIP_USE_IN_THREAD_TRANSPOSE "
    "use_async_copy=TRITON_HIP_USE_ASYNC_COPY "
    "use_coexec_scheduler=TRITON_HIP_USE_COEXEC_SCHEDULER "
    "use_expert_scheduling=TRITON_HIP_USE_EXPERT_SCHEDULING",
    "buffer_ops_analyze_small_tensor_range=AMDGCN_ANALYZE_SMALL_TENSOR_RANGE "
    "dump_amdgcn=AMDGCN_ENABLE_DUMP scalarize_packed_fops=AMDGCN_SCALARIZE_PACKED_FOPS "
    "swap_mir_enable_misched=TRITON_SWAP_MIR_ENABLE_MISCHED",
    "use_buffer_ops=AMDGCN_USE_BUFFER_OPS use_buffer_atomics=AMDGCN_USE_BUFFER_ATOMICS",
)
proton_knobs = _kept(
    "proton_knobs",
    "cupti_lib_dir=TRITON_CUPTI_LIB_PATH cupti_lib_blackwell_dir=TRITON_CUPTI_LIB_BLACKWELL_PATH "
    "hsa_runtime_path=TRITON_HSA_RUNTIME_PATH hsa_runtime_library=TRITON_HSA_RUNTIME_LIBRARY "
    "rocprofiler_sdk_include_path=TRITON_ROCPROFILER_SDK_INCLUDE_PATH "
    "rocprofiler_sdk_lib_path=TRITON_ROCPROFILER_SDK_LIB_PATH "
    "rocprofiler_sdk_library=TRITON_ROCPROFILER_SDK_LIBRARY "
    "roctracer_lib_path=TRITON_ROCTRACER_LIB_PATH roctracer_library=TRITON_ROCTRACER_LIBRARY "
    "roctx_lib_path=TRITON_ROCTX_LIB_PATH roctx_library=TRITON_ROCTX_LIBRARY "
    "profile_buffer_size=TRITON_PROFILE_BUFFER_SIZE "
    "profile_metric_buffer_size=TRITON_PROFILE_METRIC_BUFFER_SIZE",
    "disable=TRITON_PROTON_DISABLE enable_hw_trace=TRITON_ENABLE_HW_TRACE",
    "enable_nvtx=TRITON_ENABLE_NVTX",
)


@dataclass(frozen=True)
class CompileTimes:
    """How long a compile took, in microseconds."""

    ir_initialization: int
    lowering_stages: list[tuple[str, int]]
    store_results: int

    @property
    def total_lowering(self) -> int:
        return sum(time for _, time in self.lowering_stages)

    @property
    def total(self) -> int:
        return self.ir_initialization + self.total_lowering + self.store_results


build = build_knobs()
redis = redis_knobs()
cache = cache_knobs()
compilation = compilation_knobs()
autotuning = autotuning_knobs()
runtime = runtime_knobs()
language = language_knobs()
nvidia = nvidia_knobs()
amd = amd_knobs()
proton = proton_knobs()


__getattr__ = names(
    __name__,
    "AutotuneListener BuildImpl CompilationListener InitHandleHook JITHook JITHookCompileInfo "
    "LaunchHook PipelineStagesHook env_class env_nvidia_tool env_str_callable_default knobs_type "
    "setenv toenv",
    "settings of fuser have no such types",
)


def refresh_knobs() -> None:
    """Read the environment again: nothing is kept of it."""
