"""The only user of llvmlite's binding: parse, verify, optimise and emit LLVM IR text.

LLVM reports some defects of its input by ending the process ("Cannot select"), so callers that
must survive compile in worker processes (workers.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from fuser.base.forks import hold_at_fork
from fuser.errors import CompileError

if hasattr(llvm.ffi.lib, "_lock"):
    hold_at_fork("llvm", llvm.ffi.lib._lock)  # llvmlite's own, around every call into LLVM


@dataclass(frozen=True)
class Machine:
    """What code is generated for, in LLVM's words. `triple` "" is the host's."""

    triple: str = ""
    cpu: str = ""
    features: str = ""
    opt: int = 3


@functools.cache
def initialise() -> None:
    """Register every target and printer that this LLVM has; once a process.

    Loop load elimination is switched off where this LLVM can: it compares all pairs of accesses of
    a loop (2 s for 500 of them), and finds nothing in loops whose values are carried in registers.
    """
    if version() >= (22,):
        set_option("--opt-disable=loop-load-elim")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def set_option(option: str) -> None:
    """A global LLVM command-line option such as "--nvptx-short-ptr"; before machines are made."""
    llvm.set_option("fuser", option)


def version() -> tuple[int, ...]:
    """LLVM's version, (major, minor, patch)."""
    return tuple(llvm.llvm_version_info)


def host_triple() -> str:
    """The triple of the running process, such as x86_64-unknown-linux-gnu."""
    return str(llvm.get_process_triple())


def host_cpu() -> str:
    """LLVM's name of the host's processor."""
    return str(llvm.get_host_cpu_name())


def host_features() -> frozenset[str]:
    """The features that the host has, in LLVM's names ("avx512f", "fma", ...)."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


@functools.lru_cache(maxsize=16)
def target_machine(machine: Machine) -> Any:
    """llvmlite's TargetMachine, position independent. Raises CompileError."""
    initialise()
    try:
        target = llvm.Target.from_triple(machine.triple or host_triple())
        return target.create_target_machine(
            cpu=machine.cpu, features=machine.features, opt=machine.opt, reloc="pic"
        )
    except RuntimeError as error:
        raise CompileError(f"LLVM has no target {machine}: {error}") from error


def data_layout(machine: Machine) -> str:
    """The data layout string that a module for this machine should carry."""
    return str(target_machine(machine).target_data)


def compile_module(text: str, machine: Machine, level: int = 2) -> Any:
    """Parse, verify and optimise a module. Raises CompileError with LLVM's words.

    The pipeline never unrolls or vectorises by itself: generators decide both, and LLVM's choice
    would undo them (unrolling the k loop of a register-blocked dot spills its accumulators).
    """
    made = target_machine(machine)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refuses generated code: {error}") from error
    if level:
        options = llvm.create_pipeline_tuning_options(speed_level=level)
        options.loop_unrolling = False
        options.loop_vectorization = False
        options.slp_vectorization = False
        builder = llvm.create_pass_builder(made, options)
        builder.getModulePassManager().run(module, builder)
    return module


def emit_object(text: str, machine: Machine, level: int = 2) -> bytes:
    """A relocatable object of the module."""
    module = compile_module(text, machine, level)
    return bytes(target_machine(machine).emit_object(module))


def emit_assembly(text: str, machine: Machine, level: int = 2) -> str:
    """Assembly (PTX for nvptx) of the module."""
    module = compile_module(text, machine, level)
    return str(target_machine(machine).emit_assembly(module))


def optimised(text: str, machine: Machine, level: int = 2) -> str:
    """The module's text after optimisation, for dumps."""
    return str(compile_module(text, machine, level))
