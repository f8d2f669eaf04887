"""Shared and global memory: slots, tensor maps, staged operands, barriers."""
