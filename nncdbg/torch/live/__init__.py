"""Debug a training while it runs: breakpoints on operators, modules, parameters and lines of the user."""
