"""triton.backends: the names of targets; fuser has its own back ends."""
