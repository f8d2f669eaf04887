"""The rewrites of passes, emitters and back ends that are not exact, and what they do to numbers.

Rules of single nodes are in graph/passes/rules_*.py. Each entry here has a check of its class in
tests/rules/test_rewrites.py, and none runs where the numerics of the graph do not allow its class.
docs/numerics.md is made from both tables (`python -m tests.rules`).
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.graph.numerics import RuleClass


@dataclass(frozen=True)
class Rewrite:
    """name: as reports have it. where: the module that does it. what: one line for the docs."""

    name: str
    kind: RuleClass
    where: str
    what: str


REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        "fold_affine", "fast", "fuser/graph/passes/fold_affine.py",
        "(x - a) / b + c with constants -> x * s + t; scales go into constant weights",
    ),
    Rewrite(
        "hoist_scales", "fast", "fuser/partition/passes/hoist_scales.py",
        "matmul(x * c, y) -> matmul(x, y) * c; of float16 it is `hoist_half_scales`",
    ),
    Rewrite(
        "hoist_half_scales", "order", "fuser/partition/passes/hoist_scales.py",
        "the same for float16 operands, whose sums in float32 cannot overflow",
    ),
    Rewrite(
        "winograd", "fast", "fuser/tilegen/emit/winograd.py",
        "3x3 convolutions by transforms of squares, which mix pixels that an output does not see",
    ),
    Rewrite(
        "digits", "fast", "fuser/tilegen/emit/digits.py",
        "a row by 4-bit weights in whole numbers: errors are those of a block's largest element",
    ),
    Rewrite(
        "contraction", "fast", "fuser/backend/",
        "a product and a sum of two operators are rounded once",
    ),
    Rewrite(
        "approximate_division", "fast", "fuser/backend/nvptx/emit/elementwise.py",
        "float32 divisions and reciprocal roots on GPUs, up to 2 units in the last place off",
    ),
    Rewrite(
        "wide_halves", "wider", "fuser/tilegen/emit/primitives.py",
        "results of float16 and bfloat16 operators that stay in a kernel stay in float32, those of"
        " their steps (before the scale of a normalization) as well",
    ),
    Rewrite(
        "unrounded_casts", "fast", "fuser/tilegen/emit/primitives.py",
        "so do results of Cast to float16 and bfloat16",
    ),
    Rewrite(
        "short_functions", "function", "fuser/backend/nvptx/lowering/fast_math.py",
        "exp, tanh, erf, GELU, reciprocals, softmax's quotient for results rounded to 16 bits",
    ),
    Rewrite(
        "online_softmax", "order", "fuser/tilegen/emit/attention.py",
        "attention: sums over keys in blocks, rescaled; the division by the sum after the matmul",
    ),
    Rewrite(
        "hidden_keys", "finite", "fuser/tilegen/emit/attention.py",
        "attention: keys that a mask hides from all rows of a block are not read; the model's sum "
        "has 0 times their values, which is NaN where these are infinite",
    ),
    Rewrite(
        "split_k", "order", "fuser/partition/passes/split_k.py",
        "matmuls of few rows: sums in parts that are added up",
    ),
    Rewrite(
        "split_contractions", "order", "fuser/partition/passes/split_contractions.py",
        "the same for matmuls and convolutions of few blocks",
    ),
    Rewrite(
        "split_sums", "order", "fuser/partition/passes/split_sums.py",
        "sums over rows that lie apart, in parts that are added up",
    ),
    Rewrite(
        "integer_matmuls", "order", "fuser/graph/integer_matmuls.py",
        "matmuls of dequantised bytes as exact integer sums, scaled once",
    ),
    Rewrite(
        "fp8_matmuls", "order", "fuser/graph/fp8_matmuls.py",
        "matmuls of 8-bit floats by their codes, scaled once, for results of 16 bits",
    ),
    Rewrite(
        "store_grids", "order", "fuser/graph/precision.py",
        "weights that are whole numbers times a scale: the scale is applied to the sum",
    ),
    Rewrite(
        "norms_in_epilogues", "order", "fuser/partition/passes/norms_in_epilogues.py",
        "RMSNorm before a matmul of few rows: the factor of a row is applied to the sums",
    ),
    Rewrite(
        "fold_norms", "fast", "fuser/partition/passes/fold_norms.py",
        "norms in the weights of the matmuls after them, if the caller asks for it",
    ),
)  # fmt: skip

BY_NAME = {item.name: item for item in REWRITES}

__all__ = ["BY_NAME", "REWRITES", "Rewrite"]
