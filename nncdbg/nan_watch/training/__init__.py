"""The watch over a training in PyTorch: reports the op where a NaN originates while the user's code runs."""
