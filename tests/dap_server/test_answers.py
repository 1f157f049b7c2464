"""Cached answers about arrays: computed once per array."""

from __future__ import annotations

import numpy as np

from nncdbg.dap_server.variables import value_text
from nncdbg.dap_server.variables.value_text import Answers


def test_an_answer_is_computed_once_per_array() -> None:
    cache = Answers(lambda: True)
    array, other = np.zeros(2), np.zeros(2)
    assert [cache.once(each, "sum", object) for each in (array, array)] == [
        cache.once(array, "sum", object)
    ] * 2
    assert cache.once(array, "mean", object) is not cache.once(array, "sum", object)
    assert cache.once(other, "sum", object) is not cache.once(array, "sum", object)


def test_nothing_is_cached_for_reused_memory() -> None:
    cache = Answers(lambda: False)
    array = np.zeros(2)
    assert cache.once(array, "sum", object) is not cache.once(array, "sum", object)


def test_only_the_latest_answers_are_kept() -> None:
    cache = Answers(lambda: True)
    arrays = [np.zeros(1) for _ in range(value_text.MOST_ANSWERS + 1)]
    first = [cache.once(each, "sum", object) for each in arrays]
    assert cache.once(arrays[-1], "sum", object) is first[-1]
    assert cache.once(arrays[0], "sum", object) is not first[0]


def test_a_version_belongs_to_one_array() -> None:
    cache, changing = Answers(lambda: True), Answers(lambda: False)
    array = np.zeros(2)
    first = cache.version(array)
    assert first is not None
    assert cache.version(array) == first
    seen = {first}
    for _ in range(50):
        # The next array may have the address of the last one.
        version = cache.version(np.zeros(2))
        assert version is not None
        assert version not in seen
        seen.add(version)
    assert cache.version("text") is None
    assert changing.version(array) is None
