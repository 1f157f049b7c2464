"""Entries by identity: weak where possible, safe against reused ids."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.by_identity import ByIdentity

KINDS: dict[str, Callable[[], Any]] = {
    "array": lambda: np.zeros(2),
    "NumPy scalar": lambda: np.float32(1) * 1,
    "list": lambda: [1],
    "set": lambda: {1},
}
WEAK = ("array", "set")
ACTIONS = st.tuples(
    st.sampled_from(["make", "set", "pop", "drop", "clear"]), st.sampled_from([*KINDS]), st.integers(0, 7)
)


@given(st.lists(ACTIONS, max_size=40), st.booleans())
def test_finds_exactly_the_entries_of_live_values(actions: list[Any], weak_only: bool) -> None:
    found: ByIdentity[int] = ByIdentity(weak_only=weak_only)
    values: list[Any] = []
    kinds: list[str] = []
    expected: list[int | None] = []
    for number, (action, kind, place) in enumerate(actions):
        if action == "make":
            values.append(KINDS[kind]())
            kinds.append(kind)
            expected.append(None)
        elif action == "clear":
            found.clear()
            expected = [None] * len(values)
        elif values:
            place %= len(values)
            if action == "set":
                found.set(values[place], number)
                expected[place] = number if kinds[place] in WEAK or not weak_only else None
            elif action == "pop":
                assert found.pop(values[place]) == expected[place]
                expected[place] = None
            else:
                if kinds[place] not in WEAK:
                    found.pop(values[place])  # otherwise kept for ever
                del values[place], kinds[place], expected[place]
        assert [found.get(value) for value in values] == expected
        assert [value in found for value in values] == [entry is not None for entry in expected]
        assert len(found) == sum(entry is not None for entry in expected)


def test_equal_arrays_have_separate_entries() -> None:
    found: ByIdentity[str] = ByIdentity()
    one, other = np.ones(3), np.ones(3)
    found.set(one, "one")
    assert found.get(one) == "one"
    assert found.get(other) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_kept_only_without_weak_references(kind: str) -> None:
    found: ByIdentity[int] = ByIdentity()
    value = KINDS[kind]()
    found.set(value, 1)
    del value
    gc.collect()
    assert len(found) == (0 if kind in WEAK else 1)


def test_an_entry_set_again_is_removed_once_with_its_value() -> None:
    found: ByIdentity[int] = ByIdentity()
    value = np.zeros(1)
    found.set(value, 1)
    found.set(value, 2)
    gc.collect()
    assert found.get(value) == 2
    del value
    assert not found


def test_a_value_with_the_id_of_an_older_one_has_no_entry() -> None:
    found: ByIdentity[int] = ByIdentity()
    value = np.zeros(1)
    # The entry of another value under this id, as if its removal were still pending.
    found.by_id[id(value)] = (lambda: None), 1
    assert found.get(value) is None
