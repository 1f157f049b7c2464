"""Presentation of values to a client: scopes, children, statistics, and reference numbers."""
