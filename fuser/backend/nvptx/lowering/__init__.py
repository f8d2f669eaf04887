"""Tile IR to GPU IR: one rule an op, and what the rules record with."""
