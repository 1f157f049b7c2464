"""The types of values before the run: one set of rules for compiler, importer, gradients and editor."""
