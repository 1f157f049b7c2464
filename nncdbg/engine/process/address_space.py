"""The memory that a process may map, where a limit is set (`ulimit -v`, a container of a batch system)."""

from __future__ import annotations

from nncdbg.engine.errors import RunError

LEAST = 512 << 20
"""Bytes of address space that NumPy, onnx and a server's threads take; below that native code aborts."""


def check_address_space() -> None:
    """Raise RunError if this process may map less than `LEAST`.

    Libraries in native code abort where an allocation fails, and then nothing can be reported any more.
    """
    try:
        import resource
    except ImportError:
        return  # Windows has no such limit
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST:
        raise RunError(
            f"the address space is limited to {limit >> 20} MB, and nncdbg needs {LEAST >> 20} MB",
            hint="raise the limit: ulimit -v unlimited",
        )
