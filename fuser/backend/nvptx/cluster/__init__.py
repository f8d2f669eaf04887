"""Blocks that form a cluster: shared rows, split reductions, multicast loads."""
