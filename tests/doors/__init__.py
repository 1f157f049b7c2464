"""Planted faults, asked through every user interface: each must report the same origin and cause."""
