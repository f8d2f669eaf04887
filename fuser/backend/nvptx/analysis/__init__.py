"""What is found out about a kernel before its code is written: accesses, ranges, hazards,
decisions."""
