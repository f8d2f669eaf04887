"""A slow simulator of the GPU IR: what a program computes, and whether its threads may race or wait
for ever. See README.md."""

from fuser.backend.nvptx.simulate.clocks import SimulationError
from fuser.backend.nvptx.simulate.run import simulate

__all__ = ["SimulationError", "simulate"]
