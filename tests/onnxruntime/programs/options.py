"""Session and run options, profiling, and a callback."""

import json
import os
import sys
import threading

import numpy as np
import onnxruntime as ort

ort.set_default_logger_severity(3)
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.intra_op_num_threads = 2
options.inter_op_num_threads = 1
options.enable_profiling = True
options.profile_file_prefix = os.path.join(sys.argv[2], "trace")
options.log_severity_level = 3
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
options.add_free_dimension_override_by_name("batch", 2)
session = ort.InferenceSession(
    sys.argv[1], sess_options=options, providers=[("CPUExecutionProvider", {})]
)
print(session.get_inputs()[0].shape, session.get_outputs()[0].shape)
print(session.get_providers(), options.get_session_config_entry("session.intra_op.allow_spinning"))
print(session.get_session_options().intra_op_num_threads)

run_options = ort.RunOptions()
run_options.log_severity_level = 3
run_options.logid = "a run"
x = np.ones((2, 3), np.float32)
before = session.run(None, {"x": x}, run_options)
done = threading.Event()


def finished(outputs, user_data, error):
    user_data["same"] = all((a == b).all() for a, b in zip(outputs, before, strict=True))
    user_data["error"] = error
    done.set()


seen = {}
session.run_async(None, {"x": x}, finished, seen)
print(done.wait(60), seen)

with open(session.end_profiling()) as file:
    events = json.load(file)
print(sum(event["name"] == "model_run" for event in events))
