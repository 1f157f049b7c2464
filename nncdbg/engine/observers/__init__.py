"""Observers of results while a program runs: checks, findings and statistics."""
