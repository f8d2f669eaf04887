"""Native code for CPUs: compile_kernel, lower_to_llvm and the host's Target."""

from fuser.backend.cpu.compile import assembly, compile_kernel, lower_to_llvm
from fuser.backend.cpu.host import host_target

__all__ = ["assembly", "compile_kernel", "host_target", "lower_to_llvm"]
