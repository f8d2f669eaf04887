"""Run one case on fuser and compare, to the tolerance of the test itself."""

from __future__ import annotations

import traceback
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import fuser
from fuser.errors import FuserError, InvalidModelError, LimitError, UnsupportedError, UsageError
from tests.ort_operators.cases import TOLERANCES, Array, Case, NotPlain, model_of

NO_FEED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
REFUSALS = (UnsupportedError, InvalidModelError, LimitError, UsageError)


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    verdict: "right", "refused" (a documented error), "wrong", "failed" (an internal error),
    "crashed", "hung", or "unread" (it makes no model). how: "kernels", "folded" or "host".
    confirmed: whether ONNX Runtime itself gives the expected results; "" if it does, else why not.
    """

    name: str
    op: str
    verdict: str
    what: str = ""
    how: str = ""
    confirmed: str = ""
    trace: str = ""


def run_case(case: Case, device: str = "cpu", fusion: bool = True, peer: bool = True) -> Outcome:
    """The outcome of a case. Raises nothing that it could cause."""
    op = f"{case.domain}.{case.op}" if case.domain else case.op
    try:
        model = model_of(case)
    except (NotPlain, ValueError, TypeError, onnx.checker.ValidationError) as error:
        return Outcome(case.name, op, "unread", f"{type(error).__name__}: {error}")
    feeds = {x.name: x.array for x in case.inputs if x.array is not None and not x.constant}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        confirmed = _confirmed(model, feeds, case) if peer else ""
        how, trace = "", ""
        try:
            session = fuser.InferenceSession(model, device=device, fusion=fusion)  # type: ignore[arg-type]
            names = [info.name for info in session.get_outputs()]
            found = dict(zip(names, session.run(None, feeds), strict=True))
            what = mismatch(case, found)
            verdict = "wrong" if what else "right"
            launched = any(plan.launches for plan in session.plans)
            how = "host" if session.fallbacks else "kernels" if launched else "folded"
        except REFUSALS as error:
            verdict, what = "refused", _words(error)
        except Exception as error:
            verdict, what = "failed", _words(error)
            trace = "" if isinstance(error, FuserError) else traceback.format_exc()
    return Outcome(case.name, op, verdict, what, how, confirmed, trace)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:400]


def mismatch(case: Case, found: dict[str, Any]) -> str:
    """Where results are not as expected; empty if nowhere."""
    for expected in case.outputs:
        if expected.array is None:
            continue
        want, have = expected.array, np.asarray(found[expected.name])
        if have.shape != want.shape or (want.dtype != object and have.dtype != want.dtype):
            one, other = (f"{array.dtype}{list(array.shape)}" for array in (have, want))
            return f"{expected.name} is {one}, not {other}"
        wrong = _outside(case, have, want)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            count = f"{int(wrong.sum())} of {wrong.size}"
            return f"{expected.name}: {count} elements are off; at {at} {have[at]}, not {want[at]}"
    return ""


def _outside(case: Case, have: Array, want: Array) -> Array:
    name = want.dtype.name
    if name not in TOLERANCES:
        return np.asarray(have != want)
    absolute, relative = TOLERANCES[name]
    absolute = case.absolute if case.absolute is not None else absolute
    relative = case.relative if case.relative is not None else relative
    one, other = have.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(one - other) <= absolute + relative * np.abs(other)
    return np.asarray(~(near | (one == other) | (np.isnan(one) & np.isnan(other))))


def _confirmed(model: onnx.ModelProto, feeds: dict[str, Any], case: Case) -> str:
    """Empty if ONNX Runtime gives what the test expects, or is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return ""
    if any(x.array is not None and x.array.dtype.name in NO_FEED for x in case.inputs):
        return "no feed of this type from NumPy"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [info.name for info in session.get_outputs()]
        found = dict(zip(names, session.run(None, feeds), strict=True))
    except Exception as error:  # of its own hierarchy, by the version
        return _words(error)[:200]
    return mismatch(case, found)
