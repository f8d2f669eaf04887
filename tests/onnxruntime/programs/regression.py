"""A model of scikit-learn: labels, and probabilities as dicts."""

import os
import sys

import numpy
import onnxruntime as rt

path = os.path.join(os.path.dirname(sys.argv[1]), "regression.onnx")
sess = rt.InferenceSession(path, providers=rt.get_available_providers()[-1:])
input_name = sess.get_inputs()[0].name
label_name = sess.get_outputs()[0].name
print([(out.name, out.type) for out in sess.get_outputs()])
X_test = numpy.arange(12, dtype=numpy.float64).reshape(3, 4) / 10
pred_onx = sess.run([label_name], {input_name: X_test.astype(numpy.float32)})[0]
print(pred_onx.tolist())
prob_rt = sess.run(["output_probability"], {input_name: X_test.astype(numpy.float32)})[0]
for row in prob_rt:
    print({label: round(odds, 4) for label, odds in row.items()})
