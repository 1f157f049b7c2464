"""Schedules read from logs: which kernels a program launched on which streams, and what ordered them.

`reading` has a reader for each format, which turns a file into records; `programs` makes a program of them.
"""
