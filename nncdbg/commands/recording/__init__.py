"""Recorded sessions: their file, and replays that compare each stop and result with the recorded one."""
