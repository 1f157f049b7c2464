"""Text of expression results: those of `print`, and the lines of `display`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from nncdbg.errors import ExpressionError
from nncdbg.expression import resolve_name
from nncdbg.ir.records import Map
from nncdbg.presentation.element_grid import grid
from nncdbg.presentation.elements import element, type_of
from nncdbg.presentation.tensor_text import described, map_text
from nncdbg.text.short_names import ShortNames

if TYPE_CHECKING:
    from nncdbg.presentation.screen import Screen
    from nncdbg.target.target import Target


class AsWritten(ShortNames):
    """The name of a value as the source writes it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def spelled(self, name: str) -> str:
        return self._name


def displayed(target: Target, screen: Screen, text: str) -> Text:
    """Return the line that shows an expression at a stop. Raises NncdbgError."""
    result = target.evaluate(text)
    if isinstance(result, np.ndarray) and result.ndim:
        layout = screen.line_layout
        if text in target.scope().aliases():
            layout = replace(layout, names=AsWritten(text))
        return described(value_named(target, text) or text, result, layout)
    return Text(f"{text} = {result_text(screen, result)}")


def value_named(target: Target, text: str) -> str | None:
    """Return the value name in `%h`, `%"odd name"` or plain `h`; None for other expressions."""
    scope = target.scope()
    try:
        return resolve_name(text, scope.has, scope.names, scope.aliases)
    except ExpressionError:
        return None


def result_text(screen: Screen, result: Any) -> Text:
    """Return the result of an expression as `print` shows it: a number, or type and elements."""
    tensors = isinstance(result, tuple) and any(isinstance(item, np.ndarray) for item in result)
    if isinstance(result, Map):
        return Text(map_text(result, most=len(result[0])))
    if isinstance(result, list) or tensors:
        return Text("\n").join(
            Text(f"[{i}] ").append_text(result_text(screen, item)) for i, item in enumerate(result)
        )
    if isinstance(result, np.ndarray) and result.ndim:
        return Text(f"{type_of(result)}\n").append_text(grid(result, layout=screen.layout))
    if isinstance(result, (np.ndarray, np.generic)):
        result = np.asarray(result)[()]
    return Text(element(result) if isinstance(result, (bool, np.bool_, str, bytes)) else str(result))
