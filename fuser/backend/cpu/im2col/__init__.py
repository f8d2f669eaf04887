"""Windows of images as left operands of dots."""
