"""The declaration of a function of the language: its parameters, its kernel, its help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Function:
    """A function `run(**arguments)` with `parameters`, of which the first `needed` are required.

    `help` is one line.  `spread` names a parameter that can be written as several arguments, as in
    `zeros(2, 3)`.  `torch` is a hint: PyTorch's function of this name gives other numbers, so the
    prefix `torch.` is refused.
    """

    parameters: tuple[str, ...]
    needed: int
    run: Callable[..., Any] | None
    """None for `stats`, `prev` and derivatives, which the evaluator computes from its scope."""
    help: str
    spread: str = ""
    torch: str = ""

    def usage(self, name: str) -> str:
        """Return the usage, such as `topk(x, k, [axis], [largest])`."""
        words = [
            parameter if position < self.needed else f"[{parameter}]"
            for position, parameter in enumerate(self.parameters)
        ]
        return f"{name}({', '.join(words)})"
