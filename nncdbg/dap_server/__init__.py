"""The Debug Adapter Protocol server: any DAP client can debug a graph."""
