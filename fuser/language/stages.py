"""The text of a user's kernel after each stage: what `fuser dump` has for a model's kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from fuser.backend.module import CompiledKernel
from fuser.base.target import Target
from fuser.errors import UnsupportedError
from fuser.graph.sizes import Guard, Sizes
from fuser.language.compile import ArgumentClass, Program
from fuser.language.functions import Function
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.passes import run_passes
from fuser.tilegen.text import print_kernel


class Variant(Protocol):
    """What texts need of a compiled kernel (fuser/language/variants.py)."""

    program: Program
    compiled: CompiledKernel
    guards: tuple[Guard, ...]
    loaded: Any
    tile: str
    function: Function
    target: Target
    classes: dict[str, ArgumentClass]
    emitted: str
    examples: dict[str, int]


class NoStageError(UnsupportedError, KeyError):
    """A stage that the compiler has not."""


class Stages(Mapping[str, str]):
    """Texts by stage, made when they are asked for.

    source: the function. tile: the Tile IR as the language emits it. passes: after each pass that
    changed it. optimised: after all. gpu-passes (GPU): the GPU IR after each of its passes. gpu
    (GPU): the GPU IR. cpu (CPU): what the back
    end decided. llvm: LLVM IR. asm (CPU) or ptx (GPU): machine code as text.
    """

    def __init__(self, variant: Variant) -> None:
        self.variant = variant

    @property
    def _names(self) -> tuple[str, ...]:
        cuda = self.variant.target.is_cuda
        machine = ("gpu-passes", "gpu", "llvm", "ptx") if cuda else ("cpu", "llvm", "asm")
        return ("source", "tile", "passes", "optimised", *machine)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, stage: str) -> str:
        from fuser.backend import cpu, nvptx  # heavy, and not needed to launch

        variant = self.variant
        match stage:
            case "source":
                return variant.function.source.text
            case "tile":
                return variant.emitted
            case "optimised":
                return variant.tile
            case "ptx" if variant.target.is_cuda:
                return variant.compiled.code.decode()
        if stage not in self._names:
            raise NoStageError(
                f"there is no stage {stage!r} of a kernel for {variant.target.arch}",
                hint=f"it has {', '.join(self)}",
            )
        with Sizes(variant.examples):
            if stage == "passes":
                return self._passes()
            kernel = parse_kernel(variant.tile)
            if stage == "gpu-passes":
                return nvptx.gpu_pass_texts(kernel, variant.target)
            if stage == "gpu":
                return nvptx.gpu_text(kernel, variant.target)
            if stage == "cpu":
                return cpu.decisions_text(kernel, variant.target)
            if stage == "llvm":
                lower = nvptx.lower_to_llvm if variant.target.is_cuda else cpu.lower_to_llvm
                return lower(kernel, variant.target)
            return cpu.assembly(kernel, variant.target)

    def _passes(self) -> str:
        kernel = parse_kernel(self.variant.emitted)
        last, parts = self.variant.emitted, []

        def note(name: str, now: object) -> None:
            nonlocal last
            text = print_kernel(kernel)
            changed = "" if text == last else f"\n{text}"
            parts.append(f"# after {name}{changed or ': no change'}")
            last = text

        run_passes(kernel, after=note)
        return "\n".join(parts)
