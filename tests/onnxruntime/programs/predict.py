"""Load a model, look at its signature, predict."""

import sys

import numpy as np
import onnxruntime as rt

sess = rt.InferenceSession(sys.argv[1], providers=rt.get_available_providers()[-1:])
first = sess.get_inputs()[0]
print("input", first.name, first.shape, first.type)
for output in sess.get_outputs():
    print("output", output.name, output.shape, output.type)

x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
named = sess.run(["scores"], {first.name: x})[0]
everything = sess.run(None, {first.name: x})
print(named.shape, named.dtype, len(everything))
print(np.round(named, 4).tolist())
print("labels", everything[1].tolist())

meta = sess.get_modelmeta()
print(meta.producer_name, meta.graph_name, meta.version, meta.custom_metadata_map)
print([init.name for init in sess.get_overridable_initializers()])
fed = sess.run(["scores"], {first.name: x, "scale": np.array([0.0], np.float32)})[0]
print(np.round(fed, 4).tolist())
