"""The prompt of `nncdbg attach --ranks`."""
