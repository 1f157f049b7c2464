"""The reason why a nested list is not an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.engine.inputs.input_arrays import ragged

CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([[1, 2], [3]], "a ragged list: [0] has 2 items, [1] has 1 item"),
        ([1, [2]], "a ragged list: [0] is a single item, [1] has 1 item"),
        ([[[1], [2]], [[3], [4, 5]]], "a ragged list: [0, 0] has 1 item, [1, 1] has 2 items"),
        ([np.zeros(2), np.zeros(3)], "a ragged list: [0] has 2 items, [1] has 3 items"),
        ([[], [1]], "a ragged list: [0] has 0 items, [1] has 1 item"),
        ([CYCLE, CYCLE], "a list nested more than 64 levels deep"),
    ],
)
def test_the_first_list_of_different_length_is_named(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match="."):
        np.asarray(data)
    assert ragged(data) == message
