"""triton.autotune: the fastest of some configs, found by timing them; triton.heuristics."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fuser.base.recording import recorder_of
from fuser.errors import (
    CompileError,
    FuserError,
    LimitError,
    LoweringError,
    StaticAssertionError,
    UsageError,
)
from fuser.triton import knobs
from fuser.triton.backends.compiler import make_backend
from fuser.triton.configs import Config
from fuser.triton.driver import Driver, driver
from fuser.triton.errors import AutotunerError, OutOfResources
from fuser.triton.jit import KernelInterface, gathering
from fuser.triton.timing import measure, measure_in_graph

LOSES = (OutOfResources, StaticAssertionError, CompileError, LoweringError, LimitError)
"""Errors that take a config out of the contest: it cannot be compiled for this device."""


HOPELESS = 2.0
"""A config whose first three runs take this many times as long as another config is measured no
further."""


class Autotuner(KernelInterface):
    """A kernel with configs. cache: by key, the config that won. configs_timings: of the last
    contest, milliseconds (median, and the 20th and 80th percentile) by config."""

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Iterable[Config],
        key: Sequence[str],
        reset_to_zero: Iterable[str] | None,
        restore_value: Iterable[str] | None,
        pre_hook: Callable[..., Any] | None = None,
        post_hook: Callable[..., Any] | None = None,
        prune_configs_by: dict[str, Any] | None = None,
        warmup: float | None = None,
        rep: float | None = None,
        use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None,
        cache_results: bool = False,
    ) -> None:
        self.fn, self.arg_names, self.keys = fn, list(arg_names), list(key)
        self.base_fn = fn
        while hasattr(self.base_fn, "fn"):
            self.base_fn = self.base_fn.fn
        self.configs = list(configs) or [Config({})]
        self.cache: dict[tuple[Any, ...], Config] = {}
        self.cache_results = cache_results or knobs.autotuning.cache
        self.reset_to_zero, self.restore_value = (
            list(reset_to_zero or ()),
            list(restore_value or ()),
        )
        # names that subclasses of packages read and set
        self.user_defined_pre_hook = pre_hook is not None
        self.user_defined_post_hook = post_hook is not None
        self.pre_hook, self.post_hook = pre_hook or self._reset, post_hook or self._restore
        pruning = prune_configs_by or {}
        self.perf_model = pruning.get("perf_model")
        self.configs_top_k = pruning.get("top_k", 1.0)
        self.early_config_prune = pruning.get("early_config_prune")
        self._do_bench, self.num_warmups, self.num_reps = do_bench, warmup, rep
        self.use_cuda_graph = use_cuda_graph
        self.nargs: dict[str, Any] | None = None
        self.best_config: Config | None = None
        self.bench_time = 0.0
        self.configs_timings: dict[Config, list[float]] = {}
        self.restore_copies: dict[str, Any] = {}
        self._failed: FuserError | None = None
        self._limit = math.inf
        """Milliseconds, of a contest: what takes longer cannot win."""

    def _reset(self, named: dict[str, Any], reset_only: bool = False) -> None:
        for name in self.reset_to_zero:
            if named[name] is not None:  # an optional array that is not there
                named[name].zero_()
        if not reset_only:
            given = {name: named[name] for name in self.restore_value}
            self.restore_copies = {
                name: item.clone() for name, item in given.items() if item is not None
            }

    def _restore(self, named: dict[str, Any], exception: BaseException | None) -> None:
        for name, copy in self.restore_copies.items():
            named[name].copy_(copy)
        self.restore_copies = {}

    @property
    def do_bench(self) -> Callable[..., Any]:
        """What times a config: `do_bench(call, quantiles=...)`."""
        if self._do_bench is not None:
            return self._do_bench
        if self.use_cuda_graph:
            rep = 100 if self.num_reps is None else self.num_reps
            return lambda call, quantiles: measure_in_graph(
                driver.active, call, rep, None, quantiles
            )
        if self.num_warmups is not None or self.num_reps is not None:
            times = (self.num_warmups or 25, self.num_reps or 100)
            return lambda call, quantiles: measure(driver.active, call, *times, None, quantiles)
        if isinstance(driver.active, Driver):
            return partial(measure, driver.active, limit=self._limit)
        return driver.active.get_benchmarker()  # type: ignore[no-any-return]

    def _bench(self, *args: Any, config: Config, **named: Any) -> list[float]:
        """Milliseconds of a config; infinite where it cannot be compiled."""
        twice = named.keys() & config.kwargs.keys()
        if twice:
            raise ValueError(
                f"Conflicting meta-parameters: {', '.join(sorted(twice))}. Make sure that you "
                "don't re-define auto-tuned symbols."
            )
        current = {**named, **config.all_kwargs()}
        everything = {**(self.nargs or {}), **current}

        def call() -> None:
            if config.pre_hook is not None:
                config.pre_hook(everything)
            self.pre_hook(everything)
            try:
                self.fn.run(*args, **current)
            except Exception as error:
                self.post_hook(everything, exception=error)
                raise
            self.post_hook(everything, exception=None)

        try:
            found = self.do_bench(call, quantiles=(0.5, 0.2, 0.8))
        except LOSES as error:
            self._failed = error
            if knobs.autotuning.print:
                print(f"{self.base_fn.__name__}: {config} fails: {error}")
            return [float("inf")] * 3
        return list(found) if isinstance(found, Sequence) else [float(found)] * 3

    def _kinds(
        self, candidates: Sequence[Config], args: tuple[Any, ...], named: dict[str, Any]
    ) -> dict[Config, Any]:
        """By config the code that it leads to, which is compiled for all of them at once: configs
        for which this is equal are timed once. A config whose hook, or whose caller's timer, may
        tell it apart is one of its own, and so is one whose code is not known."""
        kinds: dict[Config, Any] = {config: config for config in candidates}
        launches: dict[Config, Any] = {}
        for config in candidates:
            if config.pre_hook is None:
                found = self._gathered(config, args, named)
                if len(found) == 1:
                    launches[config] = found[0]
        for kernel in {launch[0] for launch in launches.values()}:
            mine = [config for config, launch in launches.items() if launch[0] is kernel]
            wanted = [launches[config][1:] for config in mine]
            for config, launch, variant in zip(
                mine, wanted, kernel.variants_of(wanted), strict=True
            ):
                if variant is not None and self._do_bench is None:
                    kinds[config] = variant.runs(*launch[:2])
        return kinds

    def _gathered(
        self, config: Config, args: tuple[Any, ...], named: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        """The launches of kernels that a run with this config consists of; none where that is not
        known."""
        found: list[tuple[Any, ...]] = []
        token = gathering.set(found)
        try:
            self.fn.run(*args, **{**named, **config.all_kwargs(), "warmup": True})
        except Exception:  # of the user's code as well: the run that is timed meets it again
            found = []
        finally:
            gathering.reset(token)
        return found

    def _key(self, named: dict[str, Any]) -> tuple[Any, ...]:
        given = {**(self.nargs or {}), **named}
        known = {name: item for name, item in given.items() if name in self.arg_names}
        values = [known[name] for name in self.keys if name in known]
        dtypes = [str(item.dtype) for item in known.values() if hasattr(item, "dtype")]
        return (*values, *dtypes)

    def _contest(self, key: tuple[Any, ...], args: tuple[Any, ...], named: dict[str, Any]) -> None:
        candidates = self.prune_configs(named)

        def bench() -> None:
            self._time(key, candidates, args, named)

        if self.cache_results:
            known = self.check_disk_cache(key, candidates, bench)
        else:
            known = False
            bench()
        if knobs.autotuning.listener is not None:
            knobs.autotuning.listener(
                fn=self.base_fn, key=key, best_config=self.cache[key], cache_hit=known,
                configs_timings=self.configs_timings, duration=None if known else self.bench_time,
            )  # fmt: skip

    def check_disk_cache(
        self, tuning_key: tuple[Any, ...], configs: Sequence[Config], bench_fn: Callable[[], None]
    ) -> bool:
        """Whether an earlier process timed these configs for this key, on this device and with
        this kernel; then the fastest of them is taken, else bench_fn times them and they are
        kept: below knobs.cache.dir."""
        from fuser.triton.runtime.cache import get_cache_manager  # which imports this module

        files = get_cache_manager(self._digest(tuning_key, configs))
        name = f"{self.base_fn.__name__[:150]}.autotune.json"
        timings = _read_timings(files.get_file(name), len(configs))
        if timings is not None:
            self.configs_timings = dict(zip(configs, timings, strict=True))
            self.cache[tuning_key] = min(configs, key=lambda config: self.configs_timings[config])
            return True
        bench_fn()
        found = [self.configs_timings[config] for config in configs]
        files.put(json.dumps({"timings": found}), name, binary=False)
        return False

    def _digest(self, key: tuple[Any, ...], configs: Sequence[Config]) -> str:
        """A name for what timings depend on. A hook's code is no part of it."""
        function = self.fn
        while not hasattr(function, "cache_key"):
            function = function.fn
        target = driver.active.get_current_target()
        material = [
            make_backend(target).hash(), _device(), function.cache_key, repr(key),
            *(f"{config}, {config.ir_override}" for config in configs),
        ]  # fmt: skip
        return hashlib.sha256("\0".join(material).encode()).hexdigest()

    def _time(
        self,
        key: tuple[Any, ...],
        candidates: Sequence[Config],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        """Time configs, and choose the fastest. Raises what the last raised if none can run."""
        start = time.perf_counter()
        self._failed = None
        timings: dict[Config, list[float]] = {}
        alike: dict[Any, list[float]] = {}
        kinds = self._kinds(candidates, args, named)
        for config in candidates:
            kind = kinds[config]
            self._limit = HOPELESS * min((times[0] for times in alike.values()), default=math.inf)
            if kind not in alike:
                alike[kind] = self._bench(*args, config=config, **named)
            timings[config] = alike[kind]
        self.bench_time = time.perf_counter() - start
        best = min(timings, key=lambda config: timings[config])
        if timings[best][0] == float("inf") and self._failed is not None:
            raise self._failed
        self.cache[key] = best
        self.configs_timings = timings
        everything = {**(self.nargs or {}), **named, **best.all_kwargs()}
        self.pre_hook(everything, reset_only=True)
        if knobs.autotuning.print:
            print(f"{self.base_fn.__name__}, {key}: {best}, after {self.bench_time:.2f} s")

    def run(self, *args: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        named = {**named, "grid": grid, "warmup": warmup}
        config = self.configs[0]
        if len(self.configs) > 1 and recorder_of((*args, *named.values())) is not None:
            config = self._known(named)
        elif len(self.configs) > 1:
            key = self._key(named)
            if key not in self.cache:
                self._contest(key, args, named)
            config = self.cache[key]
        self.best_config = config
        twice = named.keys() & config.kwargs.keys()
        if twice:
            raise ValueError(f"Conflicting meta-parameters: {', '.join(sorted(twice))}.")
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **named, **config.all_kwargs()})
        found = self.fn.run(*args, **{**named, **config.all_kwargs()})
        self.nargs = None
        return found

    def _known(self, named: dict[str, Any]) -> Config:
        """A recorded launch, which nobody can time: what was the fastest before, else
        the first config that is not pruned."""
        found = self.cache.get(self._key(named))
        return found or self.prune_configs(named)[0]

    def warmup(self, *args: Any, grid: Any, **named: Any) -> list[Any]:
        """Compile every config."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        found = [
            self.fn.warmup(*args, grid=grid, **{**named, **config.all_kwargs()})
            for config in self.prune_configs(named)
        ]
        self.nargs = None
        return found

    def prune_configs(self, named: dict[str, Any]) -> list[Config]:
        """The configs to time: those that early_config_prune keeps, of them the top_k that
        perf_model takes for the fastest."""
        nargs = self.nargs or {}
        kept = self.configs
        if self.early_config_prune is not None:
            kept = list(self.early_config_prune(self.configs, nargs, **named))
            if not kept:
                raise AutotunerError(
                    "No valid autotuner configs after pruning. `early_config_prune` should return "
                    "at least one config."
                )
        if self.perf_model is None:
            return kept
        count = self.configs_top_k
        if isinstance(count, float) and count <= 1.0:
            count = int(len(self.configs) * count)
        if not isinstance(count, int):
            raise TypeError("top_k must be a whole number, or a part of 1.0")
        guesses = {
            config: self.perf_model(**{**nargs, **named, **config.all_kwargs()}) for config in kept
        }
        return sorted(kept, key=lambda config: guesses[config])[:count]


def _device() -> str:
    """The device that is current; of a CPU what kernels have of it, and their threads."""
    if driver.active.on_gpu:
        return str(driver.active.get_device_interface().get_device_name())
    from fuser.pipeline.devices import choose_target

    return str(choose_target("cpu"))


def _read_timings(path: str | None, count: int) -> list[list[float]] | None:
    """The timings of a file, in the order of the configs; None where it has none, or others."""
    if path is None:
        return None
    try:
        found = json.loads(Path(path).read_text())["timings"]
        timings = [[float(number) for number in row] for row in found]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    right = len(timings) == count and all(len(row) == 3 for row in timings)
    return timings if right and min(timings)[0] != float("inf") else None


def autotune(
    configs: Iterable[Config],
    key: Sequence[str],
    prune_configs_by: dict[str, Any] | None = None,
    reset_to_zero: Iterable[str] | None = None,
    restore_value: Iterable[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: float | None = None,
    rep: float | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
) -> Callable[[Any], Autotuner]:
    """Time the configs whenever an argument of `key` changes, and launch with the fastest.

    prune_configs_by: early_config_prune, perf_model, top_k. reset_to_zero, restore_value: arrays to
    clear, or to put back, around each run. pre_hook, post_hook: instead of that. do_bench: what
    times a run. cache_results: the timings last on disk, for later processes
    (knobs.autotuning.cache: of all kernels).
    """

    def decorate(fn: Any) -> Autotuner:
        return Autotuner(
            fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook, post_hook,
            prune_configs_by, warmup, rep, use_cuda_graph, do_bench, cache_results,
        )  # fmt: skip

    return decorate


class Heuristics(KernelInterface):
    """A kernel of which some constexpr arguments are computed from the others."""

    def __init__(
        self, fn: Any, arg_names: Sequence[str], values: dict[str, Callable[..., Any]]
    ) -> None:
        self.fn, self.arg_names, self.values = fn, list(arg_names), values

    def run(self, *args: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
        for name, compute in self.values.items():
            named[name] = compute({**dict(zip(self.arg_names, args, strict=False)), **named})
        return self.fn.run(*args, grid=grid, warmup=warmup, **named)


def heuristics(values: dict[str, Callable[..., Any]]) -> Callable[[Any], Heuristics]:
    """Compute constexpr arguments: functions of all arguments, by name of the parameter."""
    return lambda fn: Heuristics(fn, fn.arg_names, values)


__all__ = ["Autotuner", "Config", "Heuristics", "UsageError", "autotune", "heuristics"]
