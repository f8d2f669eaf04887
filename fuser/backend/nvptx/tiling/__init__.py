"""Tiles that are processed in strips or slices, and rows that stay in shared memory."""
