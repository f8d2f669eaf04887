"""Operators in NumPy for the host: what the reference implementation of the onnx package has not,
or has too slowly, and what callers register.

fuser.register_host_op("my.domain", "Twice", lambda x, factor=2: factor * x)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from fuser.errors import UsageError
from fuser.frontends.onnx.importer.registry import domains_with_handlers

_OPERATORS: dict[tuple[str, str], type[OpRun]] = {}


def register_host_op(domain: str, name: str, function: Callable[..., Any]) -> None:
    """Let models with an operator of a caller's own run: on the host, where there is a host
    (`InferenceSession`, `fuser.compile(..., host="allow")`).

    function: called with the operands (arrays; None for one that is left out; lists for sequences)
    by position and the attributes that the node has by name. It returns an array, or a tuple of
    as many as the node has outputs, and must not write to its operands. The last function that is
    registered counts, for sessions that are made afterwards. Raises UsageError for an operator
    that has a kernel.
    """
    domain = "" if domain == "ai.onnx" else domain
    if (domain, name) in domains_with_handlers():
        raise UsageError(
            f"{name} of {domain or 'ai.onnx'} is compiled, so it never runs on the host",
            hint="give the operator another domain",
        )

    def run(self: OpRun, *operands: Any, **attributes: Any) -> tuple[Any, ...]:
        found = function(*operands, **attributes)
        return tuple(_value(item) for item in (found if isinstance(found, tuple) else (found,)))

    _OPERATORS[domain, name] = type(name, (OpRun,), {"op_domain": domain, "_run": run})


def _value(item: Any) -> Any:
    return item if isinstance(item, list) else np.asarray(item)


def evaluator(model: ModelProto) -> ReferenceEvaluator:
    """What runs a model on the host, operator by operator. Raises what the onnx package raises."""
    return ReferenceEvaluator(model, new_ops=list(_OPERATORS.values()))


def runs_on_host(domain: str, name: str, opset: int) -> bool:
    """Whether the host has code for an operator: the onnx package's, fuser's or a caller's."""
    node = NodeProto(op_type=name, domain=domain, output=["y"])
    model = ModelProto(
        ir_version=8,
        opset_import=[helper.make_opsetid(key, n) for key, n in {"": 17, domain: opset}.items()],
        graph=GraphProto(name="one", node=[node], output=[ValueInfoProto(name="y")]),
    )
    try:
        evaluator(model)
    except NotImplementedError:
        return False
    except Exception:  # it knows the operator, and misses its attributes
        return True
    return True


def non_max_suppression(
    boxes: np.ndarray, scores: np.ndarray, most: Any = None, overlap: Any = None,
    least: Any = None, center_point_box: int = 0,
) -> np.ndarray:  # fmt: skip
    """NonMaxSuppression: int64 [selected, 3] of (batch, class, box).

    boxes: [batches, boxes, 4], two corners, or centre and sizes; scores: [batches, classes, boxes].
    most: boxes a class, none without it; overlap: intersection over union of a suppressed box is
    more than this (0); least: scores are more than this, any without it. These are scalars or
    arrays of one element. Of equal scores the first box goes first.
    """
    limit = int(_scalar(most, 0))
    threshold = np.float32(_scalar(overlap, 0))
    floor = _scalar(least, None)
    selected: list[tuple[int, int, int]] = []
    for batch, corners in enumerate(_corners(boxes, center_point_box)):
        for kind, row in enumerate(scores[batch]):
            order = np.argsort(-row, kind="stable")
            if floor is not None:
                order = order[row[order] > floor]
            for _ in range(limit):
                if not len(order):
                    break
                best, order = order[0], order[1:]
                selected.append((batch, kind, int(best)))
                order = order[_overlaps(corners[best], corners[order]) <= threshold]
    return np.array(selected, np.int64).reshape(-1, 3)


def _scalar(operand: Any, default: Any) -> Any:
    return default if operand is None or not np.size(operand) else np.asarray(operand).ravel()[0]


def _corners(boxes: np.ndarray, centred: int) -> np.ndarray:
    """[..., 4]: the least and then the greatest coordinates."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centred:
        return np.concatenate([first - second / 2, first + second / 2], axis=-1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of a box with each other, 0 where one is empty."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = np.where((sides > 0).all(axis=1), sides.prod(axis=1), 0)
    area, areas = (box[2:] - box[:2]).prod(), (others[:, 2:] - others[:, :2]).prod(axis=1)
    union = area + areas - common
    known = (area > 0) & (areas > 0) & (union > 0)
    return np.where(known, common / np.where(known, union, 1), 0)


def zip_map(
    rows: np.ndarray,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
) -> list[dict[Any, float]]:
    """ZipMap of ai.onnx.ml: for each row of float32 [n, classes], or for the one row [classes], a
    dict from the label to the number."""
    labels = list(classlabels_strings or classlabels_int64s or ())
    return [dict(zip(labels, row.tolist(), strict=True)) for row in np.atleast_2d(rows)]


register_host_op("", "NonMaxSuppression", non_max_suppression)
register_host_op("ai.onnx.ml", "ZipMap", zip_map)
