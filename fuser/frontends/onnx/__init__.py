"""ONNX: the importer, models, sessions, and what runs on the host."""
