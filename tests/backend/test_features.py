"""Features of the processor without LLVM: as LLVM has them."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from fuser.backend import features
from fuser.backend.cpu.host import host_target


def test_features_are_those_that_llvm_finds() -> None:
    """LLVM asks the processor, fuser asks the system."""
    for name, there in llvm.get_host_cpu_features().items():
        if name in features._NOT_IN_KERNELS or name.startswith("amx"):
            continue
        assert (features.missing_features(f"+{name}") == []) == there, name


def test_names_that_nobody_knows_are_missing() -> None:
    assert features.missing_features("+sse2,-avx9,+flux-capacitor") == ["flux-capacitor"]
    assert features.missing_features("") == []


def test_the_host_has_what_linux_withholds_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM asks the processor: code for all that it finds would be refused where it is run."""
    flags = features._linux_flags()
    if flags is None:
        pytest.skip("the system does not list flags")
    monkeypatch.setattr(features, "_linux_flags", lambda: flags - {"rdseed", "rdrand", "fma"})
    target = host_target.__wrapped__()  # without the one that this process remembers
    assert "+avx" in target.features.split(",") and "+fma" not in target.features.split(",")
    assert features.missing_features(target.features) == []
