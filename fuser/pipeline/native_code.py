"""The runtime's own native code in the cache: LLVM makes it once, not once a process."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata

from fuser.errors import FuserError
from fuser.runtime.cache import KernelCache
from fuser.runtime.jit import links_itself, native_object, offer_object


def recall(cache: KernelCache, text: str) -> None:
    """Let the object of this LLVM IR come from the cache, or be there for later processes."""
    if not links_itself():
        return
    material = f"native code\n{metadata.version('llvmlite')}\n{text}"
    found = cache.get_bytes(material) if cache.holds(material) else None
    if found is not None:
        offer_object(text, bytes(found[1]))
        return
    with suppress(FuserError, ModuleNotFoundError):  # whoever needs it says so
        offer_object(text, native_object(text))
        cache.put_bytes(material, {}, native_object(text))
