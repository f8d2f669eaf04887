"""Kernels of the block language that are changed without changing what they mean.

A mutant of a small kernel (`corpus.py`) computes what the kernel computes, by another way through
the compiler: branches that are never taken, tiles that go through memory, loops taken apart
(`mutate.py`). So no oracle is needed: `check.py` runs both on the CPU and in the interpreter and
compares bits. Where a kernel adds numbers up, its inputs are such that sums are exact in any order.
`python -m tests.equivalence.kernels --help` runs as many mutants as wanted.
"""
