"""Kernels as callables: `kernel[grid](x, y, n, BLOCK=128)`.

A launch classifies its arguments (arguments.py). For each class there are variants, each right for
the sizes at which its guards hold; a launch that no variant serves compiles another.
"""

from __future__ import annotations

import functools
import logging
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fuser.base import recording
from fuser.base.config import Config, start_logs
from fuser.errors import UsageError
from fuser.language.blocks import Block
from fuser.language.functions import Function
from fuser.language.outside import Outside
from fuser.language.tensors import unwrap

if TYPE_CHECKING:  # the compiler and LLVM load at the first launch
    from fuser.language.arguments import Arguments
    from fuser.language.check import Check, Checked
    from fuser.language.compile import Options
    from fuser.language.steady import Steady
    from fuser.language.variants import Variant
    from fuser.runtime.front import Watch

_log = logging.getLogger("fuser.recompiles")
Grid = Sequence[int] | Callable[[dict[str, Any]], Sequence[int] | int] | int

COMPILED_FOR = {
    "num_warps": "num_warps", "num_stages": "num_stages", "debug": "debug",
    "deterministic": "deterministic", "fp_fusion": "enable_fp_fusion",
    "overflow": "sanitize_overflow", "num_ctas": "num_ctas", "maxnreg": "maxnreg",
    "launch_pdl": "launch_pdl",
}  # fmt: skip
"""The options that code is compiled for, and the keyword of each."""
KEY = ("the grid (2: two and more programs)", *COMPILED_FOR.values(), "the device")
"""What a compile is for beside its arguments, in the order of the keys."""
OPTIONS = (
    "num_warps", "num_stages", "num_ctas", "maxnreg", "debug", "enable_fp_fusion", "launch_pdl",
    "launch_cooperative_grid", "sanitize_overflow", "arch", "warp_size", "extern_libs",
    "allow_fp8e4nv", "max_num_imprecise_acc_default", "ir_override", "instrumentation_mode",
    "check", "deterministic",
)  # fmt: skip
"""Keywords of a launch that are no arguments of the kernel."""
MOST_THREADS, MOST_CTAS = 1024, 16
"""Maximum threads of a block, which are as many warps where a warp is a thread (on CPUs), and
blocks of a cluster."""
MOST_SMALL = 8
"""Launches too small to choose the extents of blocks by; then the defaults stay."""


class Recorded:
    """What a launch gives that became a part of a graph: nothing was compiled yet."""


RECORDED = Recorded()


class KernelFunction(recording.Launchable, Function):
    """A function that can be launched as a kernel, or called by other functions of the language."""

    def __init__(
        self,
        fn: Callable[..., Any],
        options: dict[str, Any],
        plain: Iterable[str | int] = (),
    ) -> None:
        """plain: parameters for whose values no code is made of its own, by name or position."""
        super().__init__(fn, options)
        start_logs()
        names = list(self.signature.parameters)
        self.plain = frozenset(names[n] if isinstance(n, int) else n for n in plain)
        self.variants: dict[Any, list[Variant]] = {}
        self._lock = threading.Lock()
        self.outside = Outside()
        self._extents = {
            p.name: p.default.default
            for p in self.signature.parameters.values() if isinstance(p.default, Block)
        }  # fmt: skip
        self._small = 0

    @functools.cached_property
    def _steady(self) -> Steady[Variant]:
        from fuser.language.steady import Steady

        return Steady(self._launch, self._watches)

    def __call__(self, *args: Any, **named: Any) -> Any:
        raise UsageError(
            f"{self.fn.__name__} is a kernel: it is launched over a grid",
            hint=f"{self.fn.__name__}[(blocks,)](...), or call it from another kernel",
        )

    def __getitem__(self, grid: Grid) -> Callable[..., Any]:
        """The launcher for a grid: 1 to 3 numbers of programs, or a function of the arguments that
        gives them."""
        if recording.captures is not None and recording.captures():
            return recording.launcher(self, grid)  # type: ignore[misc]
        return self._steady.bind(grid)

    def _watches(self) -> Sequence[Watch] | None:
        """What native launches depend on besides their arguments; None: on what native code cannot
        see."""
        return self.outside.watches()

    def keep_up(self) -> None:
        """Forget what was compiled where constants that it read have changed."""
        read = self.outside.changed()
        if read is not None:
            _log.info("%s is compiled again: %s has changed", self.fn.__name__, read.name)
            self.forget()

    def forget(self) -> None:
        """Forget what was compiled."""
        self.variants.clear()
        self._steady.clear()
        self.outside = Outside()

    def run(
        self, *args: Any, grid: Grid, warmup: bool = False, **named: Any
    ) -> Variant | Checked | Recorded:
        """Launch. warmup: compile only. Raises LanguageError, UsageError, CheckError and what
        compiling raises."""
        if warmup:
            return self.warmup(*args, grid=grid, **named)
        return self[grid](*args, **named)  # type: ignore[no-any-return]

    def _launch(self, grid: Grid, /, *args: Any, **named: Any) -> Variant | Checked | Recorded:
        """What is launched natively is mostly not seen here."""
        if self.outside.reads:
            self.keep_up()
        known: Variant | None = self._steady.launch(grid, args, named, grid_of)
        if known is not None:
            return known
        from fuser.language.arguments import classify
        from fuser.language.stored import sizes_of
        from fuser.language.variants import launch

        given = dict(named)
        recorded = self._recorded(grid, args, named)
        if recorded is not None:
            return recorded
        bound, options, left = self._settled(grid, args, named)
        found = classify(bound, self.constexprs, self.plain, self.annotated)
        extents = grid_of(grid, bound)
        if options.check and all(extents):
            from fuser.language.check import run_checked

            return run_checked(self, found, extents, options, options.check)
        variant = self.variant(found, extents, options)
        if all(extents):
            launch(variant, found, extents)
            with self._lock:
                same = all(bound[name] == self._extents[name] for name in left)
                if same and not self._is_open(grid, left):
                    sizes = sizes_of(variant.program, found, extents)
                    self._steady.remember(
                        args, given, bound, found, self.plain, variant, variant, sizes
                    )
        return variant

    def _recorded(self, grid: Grid, args: Sequence[Any], named: dict[str, Any]) -> Recorded | None:
        """The launch, as one that a trace has recorded, if its arrays are those of a trace."""
        record = recording.recorder_of((*args, *named.values()))
        if record is None:
            return None
        bound, options = self.bind(args, named)
        record(self, bound, grid_of(grid, bound), options)
        return RECORDED

    def warmup(self, *args: Any, grid: Grid, **named: Any) -> Variant:
        """Compile for these arguments without a launch."""
        from fuser.language.arguments import classify

        bound, options, _ = self._settled(grid, args, named)
        found = classify(bound, self.constexprs, self.plain, self.annotated)
        return self.variant(found, grid_of(grid, bound), options)

    def _settled(
        self, grid: Grid, args: Sequence[Any], named: dict[str, Any]
    ) -> tuple[dict[str, Any], Options, frozenset[str]]:
        """`bind`, and the blocks that a launch leaves out. Their extents are chosen now if it is
        the one for that: the first that fills the device, among the first few."""
        given = {*list(self.signature.parameters)[: len(args)], *named}
        bound, options = self.bind(args, named)
        left = frozenset(self._extents.keys() - given)
        if self._is_open(grid, left):
            from fuser.language.extents import choose_extents

            found = choose_extents(  # unlocked: the caller's grid may launch this kernel
                self, bound, sorted(left), functools.partial(grid_of, grid), options, self.plain
            )
            with self._lock:
                if self._is_open(grid, left):
                    self._small = self._small + 1 if found is None else MOST_SMALL
                    if found is not None:
                        _log.info("%s has blocks of %s", self.fn.__name__, found)
                        self._extents.update(found)
                        self.forget()
        return {**bound, **{name: self._extents[name] for name in left}}, options, left

    def _is_open(self, grid: Grid, left: frozenset[str]) -> bool:
        """Whether extents are still to be chosen, by what a grid makes of them."""
        return bool(left) and callable(grid) and self._small < MOST_SMALL

    def bind(self, args: Sequence[Any], named: dict[str, Any]) -> tuple[dict[str, Any], Options]:
        """Arguments by parameter, and the options of the launch. Raises UsageError."""
        from fuser.language.compile import Options

        parameters = self.signature.parameters
        asked = {
            name: named.pop(name) for name in list(named)
            if name in OPTIONS and name not in parameters
        }  # fmt: skip
        try:
            bound = self.signature.bind(*args, **named)
        except TypeError as error:
            raise UsageError(
                f"{self.fn.__name__}: {error}", hint=f"its parameters: {', '.join(parameters)}"
            ) from None
        bound.apply_defaults()
        options = Options(
            num_warps=_whole(asked, "num_warps", 4, MOST_THREADS),
            num_stages=_whole(asked, "num_stages", 3),
            debug=bool(asked.get("debug", False)),
            check=_check_of(asked.get("check")),
            deterministic=bool(asked.get("deterministic", False)),
            fp_fusion=asked.get("enable_fp_fusion") is not False,
            overflow=bool(asked.get("debug")) and self._finds_overflow(asked),
            num_ctas=_whole(asked, "num_ctas", 1, MOST_CTAS),
            maxnreg=_whole(asked, "maxnreg", 0),
            launch_pdl=bool(asked.get("launch_pdl", False)),
        )
        arguments = {
            name: self._extents[name] if isinstance(value, Block) else value
            for name, value in bound.arguments.items()
        }
        return arguments, options

    def _finds_overflow(self, asked: dict[str, Any]) -> bool:
        """Whether integers that do not fit are errors of a debug launch: in the spelling where they
        wrap, unless the launch says otherwise."""
        wanted = asked.get("sanitize_overflow")
        return bool(self.options.get("wraps") if wanted is None else wanted)

    def variant(self, found: Arguments, grid: Sequence[int], options: Options) -> Variant:
        """The variant for a launch, compiled now if there is none."""
        key = self._key(found, grid, options)
        with self._lock:
            variants = self.variants.setdefault(key, [])
            reasons = []
            for item in variants:
                broken = item.broken(found, grid, options)
                if not broken:
                    return item
                reasons.append(broken)
            if variants or len(self.variants) > 1:
                why = "; and ".join(reasons) or ", ".join(self._changes(key))
                _log.info("%s is compiled again: %s", self.fn.__name__, why)
            from fuser.language.variants import make_variant

            made = make_variant(self, found, _programs(grid), options)
            self._add(key, made)
            return made

    def variants_of(
        self, launches: Sequence[tuple[Arguments, Sequence[int], Options]]
    ) -> list[Variant | None]:
        """The variants for several launches on one device; those that there are not are compiled
        together. None where one does not compile: `variant` says why."""
        from fuser.language.variants import Wanted, make_variants

        with self._lock:
            left = [item for item in launches if self._known(*item) is None]
            while left:
                chosen = {self._key(*item): item for item in reversed(left)}
                wanted = [Wanted(self, a, _programs(grid), o) for a, grid, o in chosen.values()]
                for key, made in zip(chosen, make_variants(wanted), strict=True):
                    if made is not None:
                        self._add(key, made)
                # others of a key, for which that one is not right
                tried = {id(item) for item in chosen.values()}
                left = [x for x in left if id(x) not in tried and self._known(*x) is None]
            return [self._known(*launch) for launch in launches]

    def _key(self, found: Arguments, grid: Sequence[int], options: Options) -> tuple[Any, ...]:
        """What a compile is for: KEY."""
        shape = tuple(min(extent, 2) for extent in _programs(grid))
        meant = options.meant(found.device[0] == "cuda")
        told = (getattr(meant, name) for name in COMPILED_FOR)
        return (tuple(found.classes.values()), shape, *told, found.device)

    def _known(self, found: Arguments, grid: Sequence[int], options: Options) -> Variant | None:
        known = self.variants.get(self._key(found, grid, options), ())
        return next((item for item in known if not item.broken(found, grid, options)), None)

    def _add(self, key: tuple[Any, ...], made: Variant) -> None:
        self.outside.reads.update(made.program.outside.reads)
        for function in made.program.outside.functions - {self}:
            function.callers.add(self)
        self.variants.setdefault(key, []).append(made)

    def _changes(self, key: tuple[Any, ...]) -> list[str]:
        """What is not as at the compile that is most like this one."""
        from fuser.language.reasons import changes

        names = list(self.signature.parameters)
        classes = dict(zip(names, key[0], strict=False))
        found: list[list[str]] = []
        for other in self.variants:
            if other is not key and self.variants[other]:
                more = zip(KEY, key[1:], other[1:], strict=True)
                rest = [f"{what} is {now} (was {was})" for what, now, was in more if now != was]
                old = dict(zip(names, other[0], strict=False))
                found.append(changes(old, classes) + rest)
        return min(found, key=len, default=[])

    def explain(self, *args: Any, grid: Grid, **named: Any) -> str:
        """What a launch with these arguments would run, as text; it is compiled, not launched."""
        return self.warmup(*args, grid=grid, **named).explain()


def _programs(grid: Sequence[int]) -> list[int]:
    """The grid that code is compiled for; none at all is one."""
    return [max(1, extent) for extent in grid]


@functools.cache
def _always_checked() -> bool:
    """Whether FUSER_CHECK asks for it, read once."""
    return Config.from_environment().check


def _whole(asked: dict[str, Any], name: str, default: int, most: int = 0) -> int:
    """An option that is a whole number from 0 on, where 0 and None are the default; most: one that
    is a power of 2 up to that. Raises UsageError."""
    value = unwrap(asked.get(name))
    try:
        number = default if value is None else operator.index(value) or default
    except TypeError:
        number = -1
    if number < 0 or (most and (number & (number - 1) or number > most)):
        what = f"a power of 2 up to {most}" if most else "a whole number from 0 on"
        raise UsageError(f"{name}={value!r}", hint=f"it is {what}")
    return number


def _check_of(asked: Any) -> Check:
    if asked is None:
        return _always_checked()
    if asked not in (True, False, "benign"):
        raise UsageError(f"check={asked!r}", hint='it is True, False or "benign"')
    return asked  # type: ignore[no-any-return]


def grid_of(grid: Grid, bound: dict[str, Any]) -> tuple[int, ...]:
    """1 to 3 numbers of programs. Raises UsageError."""
    try:
        found = grid(bound) if callable(grid) else grid
    except KeyError as error:
        name = error.args[0] if error.args else None
        if name in bound or not isinstance(name, str):
            raise
        raise UsageError(
            f"the grid asks for {name!r}, which is no argument of the kernel",
            hint=f"its arguments: {', '.join(bound)}",
        ) from error
    items = tuple(found) if isinstance(found, tuple | list) else (found,)
    if not 1 <= len(items) <= 3:
        raise UsageError(f"a grid of {len(items)} axes", hint="it has 1 to 3")
    try:
        extents = tuple(operator.index(item) for item in items)
    except TypeError:
        raise UsageError(f"the grid {items} holds what is no whole number") from None
    if any(extent < 0 for extent in extents):
        raise UsageError(f"the grid {extents} is negative on an axis")
    return extents
