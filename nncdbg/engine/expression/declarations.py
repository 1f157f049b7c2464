"""What a function of the language declares: its parameters, its kernel, its help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Function:
    """`run(**arguments)` under the names in `parameters`, of which the first `needed` must be given.

    `help` is one line.  `spread` names a parameter that may be written as several arguments, as in
    `zeros(2, 3)`.  `torch` is the hint where PyTorch's function of this name gives other numbers, so
    that the prefix `torch.` is refused.
    """

    parameters: tuple[str, ...]
    needed: int
    run: Callable[..., Any] | None
    """None for `stats` and `prev`, which the evaluator computes from its scope."""
    help: str
    spread: str = ""
    torch: str = ""

    def usage(self, name: str) -> str:
        """`topk(x, k, [axis], [largest])`."""
        words = [
            parameter if position < self.needed else f"[{parameter}]"
            for position, parameter in enumerate(self.parameters)
        ]
        return f"{name}({', '.join(words)})"
