"""The process around the engine: threads, garbage collection, memory limits, state files."""
