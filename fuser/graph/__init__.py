"""The graph: a model as SSA over primitives, the passes over it, and the oracle in NumPy."""
