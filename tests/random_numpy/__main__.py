"""python -m tests.random_numpy --programs 2000 --seed 0 --jobs 8

Draws random NumPy programs (ufuncs, reductions, indexing, changes in place, dtypes, products), runs
them through `fuser.jit` and compares dtypes, shapes and elements with NumPy's own.

What may differ follows from the operators: evaluations that use the freedom of each say how far
right answers lie apart (tests/fuzzing). A program that fails is printed, made small, as a script.
The last line is JSON: programs, failures by kind, refusals by reason. Exits with 1 if anything
failed that `--skip-kind` does not name.
"""

from __future__ import annotations

import sys

from tests.fuzzing.jobs import main
from tests.random_numpy.check import check

if __name__ == "__main__":
    sys.exit(main("tests.random_numpy", __doc__ or "", "Random NumPy programs: cpu", check))
