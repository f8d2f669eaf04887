"""triton.backends.nvidia: fuser's back end for NVIDIA GPUs, by Triton's names."""
