"""Loops: which iterations overlap, in which order ops are issued, and which warps run them."""
