"""Check the limit on the address space of the process (`ulimit -v`, a container of a batch system)."""

from __future__ import annotations

from nncdbg.errors import RunError

LEAST = 512 << 20
"""Bytes of address space needed by NumPy, onnx and a server's threads; with less, native code aborts."""


def address_space_limit() -> int | None:
    """Return the most bytes that this process may map, None if there is no limit."""
    try:
        import resource
    except ImportError:
        return None  # Windows has no such limit.
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space() -> None:
    """Raise RunError if this process may map less than `LEAST` bytes.

    Native libraries abort the process if an allocation fails, before any error can be reported.
    """
    limit = address_space_limit()
    if limit is not None and limit < LEAST:
        raise RunError(
            f"the address space is limited to {limit >> 20} MB, and nncdbg needs {LEAST >> 20} MB",
            hint="raise the limit: ulimit -v unlimited",
        )
