"""Random valid graphs over every primitive and dtype, checked against proven error bounds.

`draw.py` draws a graph with its feeds and, as it goes, `bounds.py` computes for every value the
interval that any correct evaluation order and rounding must stay in. `check.py` runs the graph
fused and unfused, natively or by the Tile IR interpreter, and compares. `reduce.py` makes a failing
graph small. `python -m tests.random_graphs --help` runs as many as wanted.
"""
