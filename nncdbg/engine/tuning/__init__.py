"""Measuring the kernels of all backends, statement by statement, to choose the fastest correct one."""
