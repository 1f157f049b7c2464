"""Durations, sizes and times as text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nncdbg.presentation.journal.amounts import duration, file_size, moment

DURATIONS = {
    0.0: "0.00 s",
    0.4249: "0.42 s",
    9.994: "9.99 s",
    9.996: "10.0 s",
    59.94: "59.9 s",
    59.96: "1 min 00 s",
    245: "4 min 05 s",
    3599.6: "1 h 00 min",
    8000: "2 h 13 min",
    86400 * 3 + 3600 * 4 + 59: "3 d 4 h",
}
SIZES = {
    0: "0 bytes",
    1: "1 byte",
    1023: "1023 bytes",
    1024: "1.00 KiB",
    1240: "1.21 KiB",
    100 << 20: "100 MiB",
    (1 << 20) - 1: "1.00 MiB",
    5 << 40: "5.00 TiB",
    5000 << 40: "5000 TiB",
}


@pytest.mark.parametrize("seconds", DURATIONS)
def test_duration(seconds: float) -> None:
    assert duration(seconds) == DURATIONS[seconds]


@pytest.mark.parametrize("count", SIZES)
def test_file_size(count: int) -> None:
    assert file_size(count) == SIZES[count]


def test_moment_is_in_the_local_time_zone() -> None:
    time = datetime(2026, 11, 25, 2, 43, 10, tzinfo=UTC)
    assert moment(time) == time.astimezone().strftime("%Y-%m-%d %H:%M")
