"""Runs of a journal for other programs, written by their own libraries."""
