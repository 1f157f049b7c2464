"""Recorded sessions: their file, and replays that compare each stop with the recorded one."""
