"""Programs as ONNX models: calls inlined, ops without an ONNX form expanded, states as a training."""
