"""The dynamic graph: `nncdbg.eager()` executes ops as they are called, and its trace is a program."""
