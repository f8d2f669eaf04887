"""Loop nests over tiles."""
