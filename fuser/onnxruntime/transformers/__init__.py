"""What other packages use of ONNX Runtime's tools for transformers."""
