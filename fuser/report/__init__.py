"""Reports on plans: numbers, tables, comparisons."""
