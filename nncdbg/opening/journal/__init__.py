"""Trainings in graph text and the journal: write a run, open it at a step, repeat it or fork it."""
