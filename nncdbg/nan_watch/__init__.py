"""NaN watch for CI: runs a program and reports the op where the first NaN originates, and why."""
