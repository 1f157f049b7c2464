"""Answers about arrays: computed once for each, as long as it stands."""

from __future__ import annotations

import numpy as np

from nncdbg.dap_server.variables import answers
from nncdbg.dap_server.variables.answers import Answers


def test_an_array_is_asked_about_once() -> None:
    told = Answers(lambda: True)
    array, other = np.zeros(2), np.zeros(2)
    assert [told.once(each, "sum", object) for each in (array, array)] == [
        told.once(array, "sum", object)
    ] * 2
    assert told.once(array, "mean", object) is not told.once(array, "sum", object)
    assert told.once(other, "sum", object) is not told.once(array, "sum", object)


def test_where_memory_is_used_again_nothing_is_kept() -> None:
    told = Answers(lambda: False)
    array = np.zeros(2)
    assert told.once(array, "sum", object) is not told.once(array, "sum", object)


def test_only_the_latest_are_kept() -> None:
    told = Answers(lambda: True)
    arrays = [np.zeros(1) for _ in range(answers.MOST + 1)]
    first = [told.once(each, "sum", object) for each in arrays]
    assert told.once(arrays[-1], "sum", object) is first[-1]
    assert told.once(arrays[0], "sum", object) is not first[0]


def test_a_version_is_of_one_array_only() -> None:
    told, changing = Answers(lambda: True), Answers(lambda: False)
    array = np.zeros(2)
    first = told.version(array)
    assert first is not None
    assert told.version(array) == first
    seen = {first}
    for _ in range(50):
        # The next one may stand where the last one was.
        version = told.version(np.zeros(2))
        assert version is not None
        assert version not in seen
        seen.add(version)
    assert told.version("text") is None
    assert changing.version(array) is None
