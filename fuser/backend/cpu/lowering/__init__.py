"""From the Tile IR to LLVM IR: values at points, the driver, one rule an op."""
