"""What goes wrong most often, and what is caught."""

import sys

import numpy as np
import onnxruntime as rt
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

session = rt.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
good = np.zeros((1, 3), np.float32)
mistakes = {
    "a wrong type": lambda: session.run(["scores"], {"x": good.astype(np.float64)}),
    "a name that is no output": lambda: session.run(["score"], {"x": good}),
    "a size that does not fit": lambda: session.run(None, {"x": np.zeros((1, 4), np.float32)}),
    "an axis too few": lambda: session.run(None, {"x": np.zeros(3, np.float32)}),
    "a name that is no input": lambda: session.run(None, {"x": good, "z": good}),
}
for name, make in mistakes.items():
    try:
        make()
    except (InvalidArgument, Fail) as error:
        print(name, "is told:", bool(str(error)))
try:
    rt.InferenceSession("nowhere.onnx", providers=["CPUExecutionProvider"])
except Exception as error:
    print("nowhere.onnx" in str(error))
