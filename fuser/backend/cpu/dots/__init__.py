"""Dots: how they are blocked, how their operands are read, their micro-kernels."""
