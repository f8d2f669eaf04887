"""Loads that are issued before their data is needed, and before the previous kernel has ended."""
