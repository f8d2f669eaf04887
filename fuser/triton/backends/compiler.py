"""triton.backends.compiler: what a back end of Triton is. fuser has its own (fuser/backend/)."""

from __future__ import annotations

import enum
import hashlib
import json
from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any

from fuser.errors import UsageError
from fuser.triton.absent import refuse
from fuser.triton.targets import GPUTarget


class Language(enum.Enum):
    """What a kernel is written in."""

    TRITON = 0
    GLUON = 1


class BaseBackend(ABC):
    """The interface of Triton's back ends. A class of it is not asked to compile anything here."""

    supports_native_tensor_specialization = True

    def __init__(self, target: GPUTarget) -> None:
        """Raises UsageError for a target of another back end."""
        if not self.supports_target(target):
            raise UsageError(f"{type(self).__name__} is no back end for {target}")
        self.target = target

    @staticmethod
    @abstractmethod
    def supports_target(target: GPUTarget) -> bool:
        """Whether it compiles for a target."""

    @abstractmethod
    def hash(self) -> str:
        """A name of the back end and its version."""

    @abstractmethod
    def parse_options(self, options: dict[str, Any]) -> Any:
        """Options of a launch as an object."""

    @abstractmethod
    def add_stages(self, stages: dict[str, Any], options: Any, language: Language) -> None:
        """The stages of a compile, by name."""


class FuserBackend(BaseBackend):
    """fuser, as a back end of Triton is asked about: by its target, its options and its version."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend in ("cuda", "cpu")

    def hash(self) -> str:
        return f"{version_key()}-{self.target.backend}-{self.target.arch}"

    def parse_options(self, options: dict[str, Any]) -> Any:
        known = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "debug": False}
        return SimpleNamespace(**(known | options))

    def add_stages(self, stages: dict[str, Any], options: Any, language: Language) -> None:
        """Raises UnsupportedError: no stage of Triton's is run."""
        refuse(
            "add_stages",
            "fuser compiles in stages of its own",
            "kernel.asm has them: tile, gpu, ptx",
        )


def version_key() -> str:
    """A digest of fuser's source and of what it generates code with."""
    from fuser.pipeline.plan_cache import versions  # which reads the source

    return hashlib.sha256(json.dumps(versions(), sort_keys=True).encode()).hexdigest()


def make_backend(target: GPUTarget) -> FuserBackend:
    """The back end for a target. Raises UsageError."""
    return FuserBackend(target)


__all__ = ["BaseBackend", "FuserBackend", "GPUTarget", "Language", "make_backend", "version_key"]
