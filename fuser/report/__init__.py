"""What is said of a plan: numbers, tables, comparisons."""
