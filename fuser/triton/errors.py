"""Triton's errors by name. Those of the compiler are fuser's own (fuser/errors.py)."""

from __future__ import annotations

from fuser.errors import CompileError, FuserError, LanguageError, StaticAssertionError, UsageError

TritonError = FuserError
CompilationError = LanguageError
CompileTimeAssertionFailure = StaticAssertionError
UnsupportedLanguageConstruct = LanguageError
PTXASError = CompileError


class OutOfResources(FuserError):
    """A kernel needs more of something than the device has."""

    exit_code = 6

    def __init__(self, required: int, limit: int, name: str) -> None:
        super().__init__(
            f"out of resource: {name}, Required: {required}, Hardware limit: {limit}",
            hint="make blocks smaller, or lower num_stages",
        )
        self.required, self.limit, self.name = required, limit, name

    def __reduce__(self) -> tuple[type[OutOfResources], tuple[int, int, str]]:
        return type(self), (self.required, self.limit, self.name)


class InterpreterError(FuserError):
    """An error of Triton's interpreter, which fuser has not: it compiles for the CPU instead."""

    def __init__(self, error_message: str = "") -> None:
        super().__init__(error_message)


class AutotunerError(UsageError):
    """No config is left to choose from."""

    def __str__(self) -> str:
        return f"Autotuner error: {super().__str__()}"


class UnknownKeywordError(UsageError, KeyError):
    """A keyword of a launch is no parameter of the kernel and no option of a launch."""
