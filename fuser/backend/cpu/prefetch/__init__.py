"""Prefetches of what dots read next."""
