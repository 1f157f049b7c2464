"""What Jupyter, VS Code notebooks and others ask an object for to show it as HTML."""

from __future__ import annotations


class RichOutput:
    """An object that renders as HTML in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from nncdbg.notebook import render

        return render(self)
