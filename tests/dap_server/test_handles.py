"""Reference numbers of places: stable, and dropped in the order of use."""

from __future__ import annotations

import pytest

from nncdbg.dap_server import handles
from nncdbg.dap_server.handles import Handles


def test_the_same_place_has_the_same_number() -> None:
    numbers = Handles()
    first = numbers.number(("a", 1))
    assert first >= 1000
    assert numbers.number(("b", 1)) != first
    assert numbers.number(("a", 1)) == first
    assert numbers.place(first) == ("a", 1)
    assert numbers.place(7) is None


def test_the_least_recently_used_place_is_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "KEPT", 3)
    numbers = Handles()
    a, b, c = map(numbers.number, "abc")
    assert numbers.place(a) == "a"
    d = numbers.number("d")
    assert [numbers.place(each) for each in (a, b, c, d)] == ["a", None, "c", "d"]
    assert numbers.number("b") not in (a, b, c, d), "a number is never reused"
    assert len(numbers) == 3
