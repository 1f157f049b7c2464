"""Sizes in bytes in human notation, and the default budget for old values."""

from __future__ import annotations

import os
import re

from nncdbg.engine.errors import UsageError

_UNITS = {"": 1, "B": 1, "K": 10**3, "KB": 10**3, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "T": 10**12, "TB": 10**12}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


def parse_bytes(size: int | str | None, device: int | None = None) -> int:
    """Parse a number of bytes, or text such as ``4GiB`` or ``500MB``.

    None is a quarter of the machine's memory, or of the bytes `device` of a device with less memory.
    Raises UsageError for anything else.
    """
    if size is None:
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return (host if device is None else min(host, device)) // 4
    match = _SIZE.match(str(size))
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise UsageError(
            f"{size!r} is not a size in bytes",
            hint="write a number of bytes, or a size such as 500MB or 4GiB",
        )
    return int(min(float(match[1]) * unit, 2.0**62))
