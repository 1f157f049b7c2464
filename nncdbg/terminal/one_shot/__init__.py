"""One-shot commands: `run`, `print`, `ops`, `diff`."""
