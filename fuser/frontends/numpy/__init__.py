"""NumPy-style functions: tracing, `fuser.jit`, loops."""
