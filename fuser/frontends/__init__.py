"""Where models come from: ONNX files, PyTorch programs, NumPy functions. Each gives graphs to the
pipeline, and runs its plans the way its callers know."""
