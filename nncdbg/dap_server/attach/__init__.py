"""Attaching a client to a running process."""
