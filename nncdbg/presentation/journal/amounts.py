"""Durations, sizes and times in the listings of a journal."""

from __future__ import annotations

from datetime import datetime

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def duration(seconds: float) -> str:
    """Return `0.42 s`, `12.3 s`, `4 min 05 s`, `2 h 13 min` or `3 d 4 h`."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = whole // 60
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes // (24 * 60)} d {minutes // 60 % 24} h"


def file_size(count: int) -> str:
    """Return a number of bytes with three digits, as `980 bytes`, `1.21 KiB` or `100 MiB`."""
    if count < 1024:
        return f"{count} byte{'' if count == 1 else 's'}"
    size, unit = count / 1024, 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{size:.{digits}f} {_UNITS[unit]}"


def moment(time: datetime) -> str:
    """Return a time in the local time zone, as `2026-11-25 02:43`."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M")
