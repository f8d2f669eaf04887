"""Sharding: layouts of tensors over ranks (layout), how they follow from one another (rules,
wishes), and the graph of a rank (shard, exchange). Plans load `layout` alone."""
