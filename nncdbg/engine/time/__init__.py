"""Stepping back: undo, checkpoints, replay, branches and edits."""
