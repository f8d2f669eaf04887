"""Where programs look for the classes of ONNX Runtime."""

from fuser.frontends.onnx.io_binding import IOBinding
from fuser.frontends.onnx.session import InferenceSession
from fuser.frontends.onnx.values import OrtDevice, OrtValue

Session = InferenceSession

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue", "Session"]
