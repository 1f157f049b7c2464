"""The Debug Adapter Protocol server: any client that speaks it can debug a graph."""
