"""What is known and decided of a kernel before any code is written."""
