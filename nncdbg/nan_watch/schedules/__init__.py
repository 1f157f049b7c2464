"""Findings of schedules: races, and events and waits that are wrong."""
