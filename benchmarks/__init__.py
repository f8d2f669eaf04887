"""Timings of fuser beside its peers, in one run."""
