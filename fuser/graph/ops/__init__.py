"""The primitives, one file a family: the types of their results, and NumPy's evaluation."""
