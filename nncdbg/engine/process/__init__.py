"""The process around the engine: threads, garbage collection, limits of memory, state files."""
