"""Schedules: which stream runs each statement of a program, which events order them, and what is unordered.

A schedule is an overlay on a program: the margins `Placement` of its statements.  `launches` lists what the
host issues, `races` derives what happens before what, and with `validation` reports what is not ordered.
"""
