"""A process that is already there, and a client that joins it."""
