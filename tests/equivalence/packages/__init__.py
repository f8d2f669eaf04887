"""Kernels of packages written for Triton that are changed without changing what they mean.

`launches.py` calls a function of a package on the CPU and keeps its launches; `check.py` changes
the kernel of one by `tests/equivalence/kernels/mutate.py` and launches both on the same memory.
Nothing of a package is in this tree: its text is read where it is installed.
`python -m tests.equivalence.packages --help` runs as many mutants as wanted.
"""
