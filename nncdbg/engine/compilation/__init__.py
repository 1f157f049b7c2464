"""Graphs compiled to flat code with numbered slots."""
