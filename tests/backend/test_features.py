"""Features of the processor without LLVM: as LLVM has them."""

from __future__ import annotations

import llvmlite.binding as llvm

from fuser.backend import features


def test_features_are_those_that_llvm_finds() -> None:
    """LLVM asks the processor, fuser asks the system."""
    for name, there in llvm.get_host_cpu_features().items():
        if name in features._OF_SYSTEMS or name.startswith("amx"):
            continue
        assert (features.missing_features(f"+{name}") == []) == there, name


def test_names_that_nobody_knows_are_missing() -> None:
    assert features.missing_features("+sse2,-avx9,+flux-capacitor") == ["flux-capacitor"]
    assert features.missing_features("") == []
