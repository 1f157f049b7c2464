"""The library guard_kernels.cpp: what a guard and a recording do in each step, without Python in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nncdbg.engine.ops.aten.cpp_libraries import OptionalLibrary

LIBRARY = OptionalLibrary(
    Path(__file__).with_name("guard_kernels.cpp"),
    "nncdbg.torch.guard_kernels",
    "nncdbg.torch.watch",
    "its kernels",
)

used: Any | None = None
"""The module of the library in a block of `using_library`, if it is compiled."""


@contextmanager
def using_library() -> Iterator[None]:
    """Let all that a guard or a recording does in the block use the library."""
    global used
    before, used = used, LIBRARY.module()
    try:
        yield
    finally:
        used = before
