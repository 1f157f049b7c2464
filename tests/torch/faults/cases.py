"""Records of the second corpus: training scripts with one planted fault and its truth, and clean ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

MARKER = "# FAULT"

COMPILED = "compiled"
"""The cause of a NaN or Inf that only compiled code makes."""

Script = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """A script that trains, with the place and the cause of its first NaN or Inf."""

    script: Script
    step: int
    """The number of the step, as the watch counts: from 1, and a write after update 3 is in step 4."""
    op: str
    """The base name of the operator that makes the value, or that reads bad data first."""
    value: str
    """nan or inf."""
    cause: str
    also: tuple[str, ...] = ()
    """Other names of the cause that are right as well."""

    @property
    def name(self) -> str:
        """Return the name of the script."""
        return self.script.__name__

    @property
    def group(self) -> str:
        """Return the class of the fault: the file's name."""
        return self.script.__module__.rpartition(".")[2]

    @property
    def file(self) -> str:
        """Return the file of the marked line."""
        return inspect.getfile(self.script)

    @cached_property
    def line(self) -> int:
        """Return the marked line of the script; of an operator in backward, that of the forward operator."""
        lines, first = inspect.getsourcelines(self.script)
        [marked] = [first + index for index, line in enumerate(lines) if line.rstrip().endswith(MARKER)]
        return marked


@dataclass(frozen=True)
class CleanScript:
    """A script that trains without a fault, and what looks like one."""

    script: Script
    looks_like: str

    @property
    def name(self) -> str:
        """Return the name of the script."""
        return self.script.__name__


def fault(
    step: int, op: str, value: str, cause: str, also: tuple[str, ...] = ()
) -> Callable[[Script], Fault]:
    """Return a decorator that makes a case of a script."""
    return lambda script: Fault(script, step, op, value, cause, also)


def clean(looks_like: str) -> Callable[[Script], CleanScript]:
    """Return a decorator that makes a clean case of a script."""
    return lambda script: CleanScript(script, looks_like)
