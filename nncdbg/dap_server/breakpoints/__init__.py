"""The client's breakpoints and exception filters."""
