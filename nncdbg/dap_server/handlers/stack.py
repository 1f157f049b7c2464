"""Frames, scopes, variables."""
