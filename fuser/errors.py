"""The error tree. Every error says what happened, where, and what to do next.

`where` is the ONNX node, file, tensor or region at fault; `hint` is the mend. `exit_code` is what
the command line returns: 2 usage, 3 invalid model, 4 unsupported, 5 device, 6 memory or another
limit, 70 internal.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar


class FuserError(Exception):
    """The root of everything that fuser raises on purpose."""

    exit_code = 70

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = self.what
        if self.where:
            text += f" (at {self.where})"
        if self.hint:
            text += f"; {self.hint}"
        return text


def nearest(name: str, known: Iterable[str], what: str = "known:") -> str:
    """A hint for a name that there is not: the nearest one that there is, or all of them."""
    import difflib  # where there is an error

    names = list(known)
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"{what} {', '.join(names)}"


class UsageError(FuserError):
    """The call, flag or argument is wrong, not the model."""

    exit_code = 2


class ArgumentTypeError(UsageError, TypeError):
    """An argument is of a type that the call does not take."""


class KeywordError(UsageError, TypeError):
    """A call has no such keyword, or not for what it is called with."""


def check_keywords(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise KeywordError for a keyword that a call does not know."""
    names = list(known)
    for name in given:
        if name not in names:
            raise KeywordError(
                f"{call} has no keyword {name!r}", hint=nearest(name, names, "its keywords are")
            )


P = ParamSpec("P")
R = TypeVar("R")


def names_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose unknown keywords are a KeywordError, which names the nearest known one."""
    known = [p.name for p in inspect.signature(function).parameters.values() if p.kind >= 1]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        check_keywords(f"fuser.{function.__name__}", kwargs, known)
        return function(*args, **kwargs)

    return checked


class CompilerAbsentError(UsageError, AttributeError):
    """What is asked for needs the compiler, and only fuser-runtime is installed."""

    def __init__(self, what: str, *, instead: str = "") -> None:
        """instead: what does it here."""
        whole = "pip uninstall fuser-runtime, then pip install fuser-compiler"
        super().__init__(
            f"{what}, and this is fuser-runtime, which runs plan files and compiles nothing",
            hint=f"{instead}; for all of fuser: {whole}" if instead else whole,
        )


class FeedError(UsageError):
    """An input array is missing, unknown, or has the wrong dtype or shape."""


class ExportError(UsageError, BufferError):
    """An array cannot be handed to another library in the way that it asks for."""


class InvalidModelError(FuserError):
    """The model file cannot be read, or breaks the ONNX specification."""

    exit_code = 3


class ShapeError(InvalidModelError):
    """The shapes of a node do not fit together."""


class SecurityError(InvalidModelError):
    """The model refers to data outside its own folder."""


class UnsupportedError(FuserError):
    """The model is valid, but fuser cannot compile it."""

    exit_code = 4


class ValueNeededError(UnsupportedError):
    """A shape, an axis or a count depends on what is fed to `inputs`: bind their values.

    ends_loop: it is the condition of a loop, computed by its body."""

    def __init__(
        self, what: str, inputs: Iterable[str], *, where: str = "", hint: str = ""
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.inputs = frozenset(inputs)
        self.ends_loop = False


class UnsupportedOpError(UnsupportedError):
    """One or more operators are not supported; the message lists every such node. operators:
    domain, name and opset of each, where they are ONNX's."""

    operators: tuple[tuple[str, str, int], ...] = ()


class UnsupportedDTypeError(UnsupportedError):
    """An element type is not supported."""


class TraceError(UnsupportedError, TypeError):
    """A traced function does what cannot be recorded, such as branching on the values of data."""


class NumberRangeError(UsageError, OverflowError):
    """A Python integer does not fit the dtype of the array that it meets, or any dtype."""


class LanguageError(FuserError):
    """A kernel of the block language does what the language has not. `where` is the user's file and
    line; excerpt: that line with a caret; kernel: the function it is in; calls: where that was
    called, and where the caller was, outwards."""

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        excerpt: str = "",
        kernel: str = "",
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.excerpt = excerpt
        self.kernel = kernel
        self.calls: tuple[str, ...] = ()

    @property
    def error_message(self) -> str:
        """What is wrong, without the place."""
        return self.what

    def __str__(self) -> str:
        lines = [super().__str__()]
        if self.excerpt:
            lines.append(self.excerpt)
        for place, same in itertools.groupby(self.calls):
            count = len(list(same))
            lines.append(f"called from {place}" + (f" ({count} times)" if count > 1 else ""))
        return "\n".join(lines)


class CheckError(FuserError):
    """A checked launch (`check=True`, FUSER_CHECK=1) went out of bounds or raced, or one that is
    not checked surely would go out of bounds. `where` is the user's file and line; excerpt: that
    line; program: the program (x, y, z); array, element: what it reached."""

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        excerpt: str = "",
        program: tuple[int, ...] = (),
        array: str = "",
        element: int = 0,
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.excerpt = excerpt
        self.program = program
        self.array = array
        self.element = element

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n{self.excerpt}" if self.excerpt else text


class DeviceAssertionError(LanguageError, AssertionError, RuntimeError):
    """What a kernel asserts with device_assert did not hold in a launch with debug=True. A
    RuntimeError, as PyTorch has it of device-side asserts."""


class StaticAssertionError(LanguageError):
    """What a kernel asserts while it is compiled does not hold."""


class VerifyError(FuserError):
    """An intermediate program breaks an invariant: a defect of fuser."""


class ParseError(FuserError):
    """Text of an intermediate program cannot be parsed."""

    exit_code = 2


class LoweringError(FuserError):
    """A tile program cannot be lowered to the target: a defect or a limit of fuser."""


class CompileError(FuserError):
    """LLVM, ptxas or the driver refused generated code; `where` names the region and a folder."""


class CompileTimeoutError(CompileError):
    """A kernel takes longer to compile than it may; `where` names the region."""


class DeviceError(FuserError):
    """No device, no driver, or the device failed."""

    exit_code = 5


class LimitError(FuserError):
    """The model asks for more than fuser/base/limits.py allows."""

    exit_code = 6


class OutOfMemoryError(LimitError):
    """The plan does not fit into memory."""
