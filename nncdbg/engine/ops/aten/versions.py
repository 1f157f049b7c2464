"""The versions of torch that nncdbg works with."""

from __future__ import annotations

import warnings
from functools import cache

from nncdbg.errors import UsageError

OLDEST, NEWEST = (2, 10), (2, 15)
"""The oldest and the newest version of torch that the tests ran with."""


def check_version() -> None:
    """Raise UsageError for another module named torch, and one that is too old or lacks a name.

    A version after `NEWEST` gives a warning, once.
    """
    import torch

    if not hasattr(torch, "__version__"):
        place = torch.__file__ or [*torch.__path__][0]
        hint = "rename it, or start nncdbg in another folder"
        raise UsageError(f"the module torch is {place}, not PyTorch", hint=hint)
    _check(str(torch.__version__))


@cache
def _check(version: str) -> None:
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    low, high = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    if numbers < OLDEST:
        raise UsageError(
            f"torch {version} is not supported: nncdbg works with torch {low} or newer",
            hint=f"pip install 'torch>={low}'",
        )
    try:
        from nncdbg.engine.ops.aten import internals

        if numbers > NEWEST:
            internals.check_names()
    except (AttributeError, ImportError, RuntimeError, TypeError) as error:
        raise UsageError(
            f"nncdbg does not work with torch {version}, in which undocumented names are others: {error}",
            hint=f"upgrade nncdbg, or install a version that it was tested with: {low} to {high}",
        ) from error
    if numbers > NEWEST:
        warnings.warn(
            f"torch {version} is newer than the versions that nncdbg was tested with, {low} to {high}",
            stacklevel=4,
        )
