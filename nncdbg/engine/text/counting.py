"""Counts in messages."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, which gets an "s" unless the count is 1: ``1 step``, ``2,000 steps``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
