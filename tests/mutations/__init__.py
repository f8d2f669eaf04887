"""Seeded faults: is each found by the proofs at compile time or by random graphs?

`faults.py` lists faults of the partitioner and the emitters as replacements of source text.
`trial.py` applies one in a copy of the tree and runs random graphs until one fails.
`python -m tests.mutations` makes the table of docs/mutations.md.
"""
