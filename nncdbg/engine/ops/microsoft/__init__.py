"""The ops that onnxruntime adds to ONNX, in the domains ``com.microsoft`` and ``com.microsoft.nchwc``.

Its optimizers and quantizers write them to the models that they save.
"""
