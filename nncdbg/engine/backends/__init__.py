"""The array libraries whose kernels can be stepped.  Each is imported only when asked for."""

from __future__ import annotations

from types import ModuleType

from nncdbg.engine.errors import UsageError

BACKENDS = ("numpy",)


def namespace(name: str) -> ModuleType:
    """The array namespace (`xp`) of a backend; raises UsageError for one that is not here."""
    if name == "numpy":
        import numpy

        return numpy
    raise UsageError(f"there is no backend {name!r}", hint=f"one of: {', '.join(BACKENDS)}")
