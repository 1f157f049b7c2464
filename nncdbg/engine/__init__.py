"""The engine: programs, ops, kernels, memory, time and diagnosis.  `debugger.py` has the public class."""
