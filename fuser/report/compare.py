"""Outputs beside a reference: numbers, and whether they are close enough."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuser.report.report import Comparison

# Relative error of a whole tensor, ||out - ref|| / ||ref||. A float32 model sums a few thousand
# rounded products (2**-24 each); 16-bit models round every stored tensor (2**-11, 2**-8).
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-2}


def tolerance_of(dtypes: set[str], device: str) -> float:
    """The tolerance for the narrowest float type of a model; a GPU reorders float32 sums more."""
    found = [TOLERANCE[name] for name in dtypes if name in TOLERANCE]
    tolerance = max(found, default=0.0)
    return max(tolerance, 1e-4) if device == "cuda" and "float32" in dtypes else tolerance


def compare(
    outputs: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    *,
    tolerance: float,
    rtol: float | None = None,
    atol: float | None = None,
    name: str = "reference",
) -> Comparison:
    """Compare the outputs that both have.

    With rtol or atol: element by element, |out - ref| <= atol + rtol * |ref|. Otherwise the
    relative error of each float output must be at most `tolerance`, and integers must be equal.
    NaN and infinity must stand at the same places. No common output is a failure.
    """
    max_abs = max_rel = 0.0
    ok = bool(set(outputs) & set(reference))
    for key in outputs.keys() & reference.keys():
        out, ref = np.asarray(outputs[key]), np.asarray(reference[key])
        if out.shape != ref.shape:
            ok = False
            continue
        is_float = out.dtype.kind not in "iub"
        left, right = out.astype(np.float64), ref.astype(np.float64)
        special = ~np.isfinite(right)
        same_special = np.array_equal(left[special], right[special], equal_nan=True)
        ok &= same_special and bool(np.isfinite(left[~special]).all())
        left, right = np.where(special, 0, left), np.where(special, 0, right)
        difference = np.abs(left - right)
        largest = float(difference.max(initial=0.0))
        norm = float(np.linalg.norm(right))
        relative = float(np.linalg.norm(difference)) / norm if norm else float(largest > 0)
        max_abs, max_rel = max(max_abs, largest), max(max_rel, relative)
        if rtol is not None or atol is not None:
            ok &= bool((difference <= (atol or 0.0) + (rtol or 0.0) * np.abs(right)).all())
        else:
            ok &= relative <= (tolerance if is_float else 0.0)
    return Comparison(max_abs, max_rel, bool(ok), name)
