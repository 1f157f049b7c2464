"""Frames, the machine that runs linked code, its journal, and its events."""
