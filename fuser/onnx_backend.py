"""fuser as a backend of the onnx package: `fuser.onnx_backend.prepare(model).run(inputs)`."""

from fuser.frontends.onnx.backend import *  # noqa: F403
from fuser.frontends.onnx.backend import __all__  # noqa: F401
