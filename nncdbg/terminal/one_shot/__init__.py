"""Commands that do one thing and end: `run`, `print`, `ops`."""
