"""What the exception that ended a step tells about NaN and Inf in the step."""

from __future__ import annotations

import re
from traceback import walk_tb

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
        for value in [*frame.f_locals.values()]
    )


def user_lines_of(error: BaseException) -> Lines:
    """Return the user's lines that an error has passed, innermost first."""
    passed = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    return tuple((code.co_filename, line) for code, line in reversed(passed) if is_user_code(code))
