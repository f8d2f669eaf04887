"""Outputs beside a reference: numbers, whether they are close enough, and what differs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuser.dtypes import ALL, NARROW
from fuser.report.report import Comparison

# Relative error of a whole tensor, ||out - ref|| / ||ref||. A float32 model sums a few thousand
# rounded products (2**-24 each); 16-bit models round every stored tensor (2**-11, 2**-8).
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-2}

# What one rounding of a number near one may cost, in the dtype that kernels compute in. Where
# numbers near one cancel, that is all there is: an output that differs by less is no mismatch.
ROUNDING = {"float64": 2.0**-53}
ROUNDING_FLOAT32 = 2.0**-24


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
    """Compare the outputs with a reference that has all of them and no others.

    With rtol or atol: element by element, |out - ref| <= atol + rtol * |ref|. Otherwise the
    relative error of each float output must be at most `tolerance`, or the difference of an element
    (root mean square) at most one rounding of 1; and integers must be equal. NaN and infinity must
    stand at the same places. `Comparison.differs` names each output that is not as expected, with
    the reason.
    """
    max_abs = max_rel = 0.0
    differs = [f"{key}: not compared, {name} has none" for key in outputs if key not in reference]
    differs += [f"{key}: expected, but there is no such output" for key in reference
                if key not in outputs]  # fmt: skip
    for key, output in outputs.items():
        if key not in reference:
            continue
        out = np.asarray(output)
        ref = _as_saved(np.asarray(reference[key]), out.dtype)
        if problem := _unlike(out, ref):
            differs.append(f"{key}: {problem}")
            continue
        kind = _kind(out)
        if kind not in ("float", "int", "bool"):
            if not np.array_equal(out, ref):
                differs.append(f"{key}: not equal")
            continue
        left, right = _wide(out, ref)
        special = ~np.isfinite(right)
        same_special = np.array_equal(left[special], right[special], equal_nan=True)
        if not same_special or not np.isfinite(left[~special]).all():
            differs.append(f"{key}: NaN or infinity where the other has none")
        both = np.isfinite(left) & ~special
        left, right = np.where(both, left, 0), np.where(both, right, 0)
        difference = np.abs(left - right)
        largest = float(difference.max(initial=0.0))
        error, norm = float(np.linalg.norm(difference)), float(np.linalg.norm(right))
        relative = error / norm if norm else float(largest > 0)
        max_abs, max_rel = max(max_abs, largest), max(max_rel, relative)
        at = np.unravel_index(int(difference.argmax()), out.shape) if largest else ()
        found = f"{key}: relative error {relative:.2e}, largest difference {largest:.2e}"
        found += f" at {[int(place) for place in at]}" if at else ""
        if rtol is not None or atol is not None:
            beyond = difference > (atol or 0.0) + (rtol or 0.0) * np.abs(right)
            if beyond.any():
                differs.append(f"{found}; {int(beyond.sum())} of {out.size} elements differ")
        elif kind != "float":
            if wrong := int((out != ref).sum()):
                differs.append(f"{found}; {wrong} of {out.size} elements differ")
        elif relative > tolerance:
            floor = ROUNDING.get(out.dtype.name, ROUNDING_FLOAT32) * out.size**0.5
            if error > floor:
                differs.append(f"{found}; at most {tolerance:.0e} is expected")
    compared = len(outputs.keys() & reference.keys())
    return Comparison(max_abs, max_rel, not differs, name, tuple(differs), compared)


def _as_saved(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A file of NumPy keeps bfloat16 and other types that it does not know as bare bytes."""
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    return array


def _unlike(out: np.ndarray, ref: np.ndarray) -> str:
    """Why two arrays cannot be compared, or ""."""
    if out.shape != ref.shape:
        return f"has the shape {list(out.shape)}, expected is {list(ref.shape)}"
    return f"is {out.dtype}, expected is {ref.dtype}" if _kind(out) != _kind(ref) else ""


def _kind(array: np.ndarray) -> str:
    """ "float", "int", "bool" and "string", or the name of another dtype."""
    if array.dtype.kind in "OUS":
        return "string"
    found = (dtype.kind for dtype in (*ALL, *NARROW) if dtype.numpy == array.dtype)
    return next(found, array.dtype.name).removeprefix("u")


def _wide(out: np.ndarray, ref: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both in float64; what is beyond the dtype of the output is infinite in the reference, too."""
    left, right = out.astype(np.float64), ref.astype(np.float64)
    if out.dtype != ref.dtype and _kind(out) == "float":
        with np.errstate(over="ignore"):
            right = np.where(np.isfinite(ref.astype(out.dtype)), right, ref.astype(out.dtype))
    return left, right
