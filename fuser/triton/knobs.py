"""triton.knobs: settings by group, from the environment unless a program sets them.

    knobs.runtime.debug = True
    with knobs.compilation.scope(): ...

Those of fuser are in docs/configuration.md. Of Triton's, fuser reads runtime.debug, the hooks of
runtime, autotuning.print and autotuning.cache; the others are kept and change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

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
        text = os.environ.get(self.key)
        return self.default if text is None else self.read(text)

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
    impl: Any = None


class cache_knobs(base_knobs):
    home_dir = env_base("TRITON_HOME", os.path.expanduser("~/"))
    dump_dir = env_base("TRITON_DUMP_DIR")
    override_dir = env_base("TRITON_OVERRIDE_DIR")
    dir = env_base("TRITON_CACHE_DIR", os.path.join(os.path.expanduser("~/"), ".triton", "cache"))
    manager_class = env_base("TRITON_CACHE_MANAGER")
    remote_manager_class = env_base("TRITON_REMOTE_CACHE_BACKEND")


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
    listener: Any = None


class autotuning_knobs(base_knobs):
    cache = _flag("TRITON_CACHE_AUTOTUNING")
    print = _flag("TRITON_PRINT_AUTOTUNING")


class runtime_knobs(base_knobs):
    interpret = _flag("TRITON_INTERPRET")
    debug = _flag("TRITON_DEBUG")
    override_arch = env_base("TRITON_OVERRIDE_ARCH")
    launch_enter_hook: Any = HookChain()
    launch_exit_hook: Any = HookChain(reversed=True)
    kernel_load_start_hook: Any = HookChain()
    kernel_load_end_hook: Any = HookChain(reversed=True)
    jit_cache_hook: Any = None
    jit_post_compile_hook: Any = None
    add_stages_inspection_hook: Any = None


class language_knobs(base_knobs):
    fp32_default = env_base("TRITON_F32_DEFAULT")
    default_fp_fusion = _flag("TRITON_DEFAULT_FP_FUSION", True)


@dataclass(frozen=True)
class NvidiaTool:
    """A tool of CUDA's."""

    path: str
    version: str


class nvidia_knobs(base_knobs):
    disable_ptxas_opt = _flag("DISABLE_PTXAS_OPT")
    dump_nvptx = _flag("NVPTX_ENABLE_DUMP")
    libdevice_path = env_base("TRITON_LIBDEVICE_PATH")
    ptxas: Any = NvidiaTool("", "12.8")


class amd_knobs(base_knobs):
    libhip_path = env_base("TRITON_LIBHIP_PATH")


class proton_knobs(base_knobs):
    disable = _flag("TRITON_PROTON_DISABLE")


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
cache = cache_knobs()
compilation = compilation_knobs()
autotuning = autotuning_knobs()
runtime = runtime_knobs()
language = language_knobs()
nvidia = nvidia_knobs()
amd = amd_knobs()
proton = proton_knobs()


def refresh_knobs() -> None:
    """Read the environment again: nothing is kept of it."""
