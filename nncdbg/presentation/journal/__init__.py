"""Runs of a journal as text: their list, the log of one, its curves, and the rows of a query."""
