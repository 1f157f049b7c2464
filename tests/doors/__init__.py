"""Planted faults: every user interface must report the same origin and cause."""
