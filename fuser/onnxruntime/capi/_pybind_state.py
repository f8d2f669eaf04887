"""Another name of onnxruntime_pybind11_state."""

from fuser.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
