"""Schedules: which stream runs each statement of a program, which events order them, and what is unordered.

A schedule is an overlay on a program: the margins `Placement` of its statements.  `launches` lists what the
host issues, `ordering` derives what happens before what, and `races` and `checks` report what is not ordered.
"""
