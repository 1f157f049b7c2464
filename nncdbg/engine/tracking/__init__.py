"""Tracked values of a training: a number per step, computed from values that the step has computed anyway."""
