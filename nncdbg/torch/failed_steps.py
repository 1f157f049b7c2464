"""What the exception that ended a step tells about NaN and Inf in the step."""

from __future__ import annotations

import re
from inspect import CO_OPTIMIZED
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch

from nncdbg.torch.finiteness import not_finite
from nncdbg.torch.source_lines import Lines, is_user_code

_SUSPICIOUS = re.compile(
    r"\bnan\b|\binf\b|finite|invalid value|converge|singular|positive.definite|between 0 and 1|probabilit",
    re.IGNORECASE,
)
"""Words of messages for which NaN may be the reason."""


def may_be_of_nan(error: BaseException) -> bool:
    """Return whether NaN or Inf may have raised an error: by its message, or the variables of its frames."""
    return bool(_SUSPICIOUS.search(str(error))) or any(
        isinstance(value, torch.Tensor) and not_finite(value)
        for frame, _ in walk_tb(error.__traceback__)
        for value in _values(frame)
    )


def _values(frame: FrameType) -> list[Any]:
    """Return the values of the variables of a frame."""
    variables = frame.f_locals
    values = [*variables.values()]
    if type(variables) is dict and frame.f_code.co_flags & CO_OPTIMIZED:
        # A copy, which a frame that still runs would keep, and with it the error and the tensors of the step.
        variables.clear()
    return values


def user_lines_of(error: BaseException) -> Lines:
    """Return the user's lines that an error has passed, innermost first."""
    passed = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    return tuple((code.co_filename, line) for code, line in reversed(passed) if is_user_code(code))
