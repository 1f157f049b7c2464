"""The types of values before the run: shared rules for compiler, importer, gradients and editor."""
