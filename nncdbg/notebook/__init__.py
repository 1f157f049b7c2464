"""HTML representations of programs, debuggers, reports and tensors, for notebooks."""

from nncdbg.notebook.rendering import render

__all__ = ["render"]
