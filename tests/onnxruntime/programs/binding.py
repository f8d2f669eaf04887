"""Inputs and outputs that are bound to memory."""

import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
x = np.arange(6, dtype=np.float32).reshape(2, 3)

binding = session.io_binding()
binding.bind_cpu_input("x", x)
binding.bind_output("scores")
binding.bind_output("labels", "cpu")
session.run_with_iobinding(binding)
scores, labels = binding.copy_outputs_to_cpu()
print(np.round(scores, 4).tolist(), labels.tolist())

value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
print(value.shape(), value.data_type(), value.device_name(), value.is_tensor(), value.has_value())
room = onnxruntime.OrtValue.ortvalue_from_shape_and_type([2, 4], np.float32, "cpu", 0)
binding = session.io_binding()
binding.bind_input(
    name="x", device_type=value.device_name(), device_id=0, element_type=np.float32,
    shape=value.shape(), buffer_ptr=value.data_ptr(),
)  # fmt: skip
binding.bind_ortvalue_output("scores", room)
session.run_with_iobinding(binding)
print(np.array_equal(room.numpy(), scores), len(binding.get_outputs()))

value.update_inplace(np.zeros((2, 3), np.float32))
binding.synchronize_inputs()
session.run_with_iobinding(binding)
binding.synchronize_outputs()
print(np.round(binding.get_outputs()[0].numpy(), 4).tolist())

target = np.empty((2, 4), np.float32)
binding.clear_binding_outputs()
binding.bind_output("scores", "cpu", 0, np.float32, target.shape, target.ctypes.data)
session.run_with_iobinding(binding)
print(np.array_equal(target, room.numpy()))

plain = session.run_with_ort_values(["labels"], {"x": value})
print([v.numpy().tolist() for v in plain])
