"""enable_fp_fusion: whether products are contracted with sums."""

from __future__ import annotations

import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl


@triton.jit
def difference(a, x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    u, v = tl.load(a + at), tl.load(x + at)
    tl.store(out + at, u * v + (-u) * v)


@pytest.mark.parametrize(("given", "fused"), [({}, True), ({"enable_fp_fusion": True}, True),
                                              ({"enable_fp_fusion": False}, False)])  # fmt: skip
def test_products_are_contracted_unless_told_otherwise(
    given: dict[str, bool], fused: bool, rng: np.random.Generator
) -> None:
    a, x = rng.standard_normal((2, 64)).astype(np.float32)
    for _ in range(4):  # the later launches go the short way
        out = np.zeros(64, np.float32)
        difference[(1,)](a, x, out, BLOCK=64, **given)
        assert bool(np.any(out)) is fused


@pytest.mark.parametrize("form", ["program", "environment"])
@pytest.mark.parametrize(
    ("setting", "value", "given", "fused"),
    [("default_fp_fusion", False, {}, False),
     ("default_fp_fusion", False, {"enable_fp_fusion": True}, True),
     ("force_disable_fp_fusion", True, {}, False),
     ("force_disable_fp_fusion", True, {"enable_fp_fusion": True}, False)],
)  # fmt: skip
def test_settings_of_all_launches(
    setting: str, value: bool, given: dict[str, bool], fused: bool, form: str,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    a, x = rng.standard_normal((2, 64)).astype(np.float32)

    def fuses(**named: bool) -> bool:
        found = []
        for _ in range(4):
            out = np.zeros(64, np.float32)
            difference[(1,)](a, x, out, BLOCK=64, **named)
            found.append(bool(np.any(out)))
        assert len(set(found)) == 1
        return found[0]

    assert fuses()
    with triton.knobs.language.scope():
        if form == "program":
            setattr(triton.knobs.language, setting, value)
        else:
            knob = triton.knobs.language.knob_descriptors[setting]
            monkeypatch.setenv(knob.key, str(int(value)))
        assert fuses(**given) is fused
    monkeypatch.undo()
    assert fuses()
