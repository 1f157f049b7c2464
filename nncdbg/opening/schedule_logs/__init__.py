"""Schedules read from logs: which kernels a program launched on which streams, and what ordered them.

A reader of a format turns a file into the records of `records`; `programs` makes a program with a schedule of
them, and `byte_ranges` finds which launch wrote the bytes that another one reads.
"""
