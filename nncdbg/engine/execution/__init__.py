"""Frames, the machine that runs linked code, its undo log, and its events."""
