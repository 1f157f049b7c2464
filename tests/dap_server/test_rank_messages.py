"""The numbers of several adapters in one session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.dap_server.attach.rank_messages import RankNumbers, breakpoints_of_rank

NUMBERS = st.integers(1, 2**40)


@st.composite
def bodies(draw: Callable[..., Any]) -> dict[str, Any]:
    """Return a body with numbers, an address and a thread of a rank."""
    frame = {"id": draw(NUMBERS), "name": "@main", "source": {"sourceReference": draw(NUMBERS)}}
    return {
        "threadId": draw(NUMBERS),
        "frameId": draw(NUMBERS),
        "variables": [
            {"name": "%h", "variablesReference": draw(NUMBERS), "memoryReference": draw(st.text())}
        ],
        "stackFrames": [frame],
        "line": draw(NUMBERS),
    }


@given(
    st.integers(1, 64).flatmap(lambda ranks: st.tuples(st.just(ranks), st.integers(0, ranks - 1))), bodies()
)
def test_numbers_return_to_their_rank(job: tuple[int, int], body: dict[str, Any]) -> None:
    ranks, rank = job
    numbers = RankNumbers(ranks)
    sent = numbers.outgoing(rank, body)
    assert numbers.incoming(sent) == body
    assert sent["line"] == body["line"]
    for name in ("threadId", "frameId", "variables"):
        assert numbers.rank_of({name: sent[name]}) == rank


@given(NUMBERS, NUMBERS, st.integers(2, 64))
def test_numbers_of_two_ranks_differ(first: int, second: int, ranks: int) -> None:
    numbers = RankNumbers(ranks)
    assert numbers.outgoing(0, {"frameId": first}) != numbers.outgoing(1, {"frameId": second})


def test_zero_is_no_reference() -> None:
    numbers = RankNumbers(4)
    assert numbers.outgoing(3, {"variablesReference": 0}) == {"variablesReference": 0}
    assert numbers.rank_of({"variablesReference": 0, "expression": "%h@2"}) is None


@pytest.mark.parametrize(
    ("condition", "rank_0", "rank_1"),
    [
        (None, {}, {}),
        ("$step > 3", {"condition": "$step > 3"}, {"condition": "$step > 3"}),
        ("$rank == 1", None, {}),
        (" $rank==0 and $step > 3", {"condition": "$step > 3"}, None),
        ("$rank == 2", None, None),
        ("$ranks == 1", {"condition": "$ranks == 1"}, {"condition": "$ranks == 1"}),
    ],
)
def test_condition_on_the_rank_selects_ranks(
    condition: str | None, rank_0: dict[str, Any] | None, rank_1: dict[str, Any] | None
) -> None:
    found = {"name": "aten.tanh", **({"condition": condition} if condition else {})}
    arguments = {"breakpoints": [{"name": "aten.mm"}, found]}
    for rank, expected in enumerate((rank_0, rank_1)):
        own, positions = breakpoints_of_rank(arguments, rank)
        if expected is None:
            assert (own["breakpoints"], positions) == ([{"name": "aten.mm"}], [0])
        else:
            assert own["breakpoints"][1] == {"name": "aten.tanh", **expected}
            assert positions == [0, 1]


def test_a_function_breakpoint_has_its_rank_in_a_condition_within_its_name() -> None:
    arguments = {
        "breakpoints": [{"name": "aten.tanh if $rank == 1 and $step > 3"}, {"name": "aten.mm if $step > 3"}]
    }
    assert breakpoints_of_rank(arguments, 0) == ({"breakpoints": arguments["breakpoints"][1:]}, [1])
    own, positions = breakpoints_of_rank(arguments, 1)
    assert own["breakpoints"][0] == {"name": "aten.tanh", "condition": "$step > 3"}
    assert positions == [0, 1]
