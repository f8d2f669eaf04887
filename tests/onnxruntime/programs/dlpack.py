"""Tensors of PyTorch in and out of values, without a copy."""

import sys

import onnxruntime as ort
import torch

session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
value = ort.OrtValue.ortvalue_from_numpy(tensor.numpy())
print(value.data_ptr() == tensor.data_ptr())
shared = ort.OrtValue.from_dlpack(tensor)
print(shared.data_ptr() == tensor.data_ptr(), shared.shape())

out = torch.empty(2, 4)
binding = session.io_binding()
binding.bind_input("x", "cpu", 0, 1, tuple(tensor.shape), tensor.data_ptr())
binding.bind_output("scores", "cpu", 0, 1, tuple(out.shape), out.data_ptr())
session.run_with_iobinding(binding)
(want,) = session.run(["scores"], {"x": tensor.numpy()})
print(torch.equal(out, torch.from_numpy(want)))
print(torch.equal(torch.from_dlpack(ort.OrtValue.ortvalue_from_numpy(want)), out))
