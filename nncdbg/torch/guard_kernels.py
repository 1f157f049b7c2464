"""The library guard_kernels.cpp: what a guard does in each step, without Python between its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nncdbg.engine.ops.aten.optional_libraries import OptionalLibrary

LIBRARY = OptionalLibrary(
    Path(__file__).with_name("guard_kernels.cpp"),
    "nncdbg.torch.guard_kernels",
    "nncdbg.torch.watch",
    "its kernels",
)

used: Any | None = None
"""The module of the library while a guard is entered that uses it."""


def use(library: Any | None) -> None:
    """Let all that a guard does use the library, or not any more."""
    global used
    used = library
