"""Frames, the machine that runs linked code, its journal, and what happens in it."""
