"""Which rank is missing at which collective, from the calls of each rank."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.presentation.ranks import ranks_lines, wait_lines
from nncdbg.process.rank_notes import (
    Collective,
    RankActivity,
    RankProcess,
    RankReport,
    find_mismatches,
    find_waits,
)

NOW = 1000.0


def reports(*calls, state="running", exists=True):
    """Return reports of ranks; the calls of a rank are words such as `all_reduce:f32[4]` or `barrier@pair`.

    A group after `@` has the ranks that are its digits.
    """
    made = []
    for rank, words in enumerate(calls):
        numbers: dict[str, int] = {}
        collectives = []
        for index, word in enumerate(words.split()):
            op, _, group = word.partition("@")
            op, _, type_ = op.partition(":")
            numbers[group] = numbers.get(group, 0) + 1
            collectives.append(
                Collective(
                    group=group,
                    ranks=[int(each) for each in group if each.isdigit()] or [*range(len(calls))],
                    number=numbers[group],
                    op=op,
                    types=[type_] if type_ else [],
                    place="train.py:42",
                    at=NOW - 10 + index + rank / 10,
                )
            )
        process = RankProcess(rank=rank, ranks=len(calls), pid=os.getpid(), agent=1, script="train.py")
        status = RankActivity(seen=NOW, state=state, place="train.py:55", step=3)
        made.append(RankReport(process=process, status=status, collectives=collectives, exists=exists))
    return made


WAITS = [
    ("equal", ("barrier", "barrier"), []),
    ("nothing yet", ("", ""), []),
    ("one missing", ("barrier all_reduce:f32[4]", "barrier"), [("all_reduce", 2, (0,), (1,))]),
    (
        "two of four",
        ("barrier barrier", "barrier", "barrier barrier", "barrier"),
        [("barrier", 2, (0, 2), (1, 3))],
    ),
    ("far ahead", ("broadcast broadcast broadcast", ""), [("broadcast", 1, (0,), (1,))]),
    ("other ranks are in no group", ("barrier@01", "barrier@01", "", ""), []),
    (
        "in a group",
        ("barrier@01", "", "barrier", "barrier"),
        [("barrier", 1, (2, 3), (0, 1)), ("barrier", 1, (0,), (1,))],
    ),
    ("message", ("send/recv@01", ""), [("send/recv", 1, (0,), (1,))]),
]


@pytest.mark.parametrize(("calls", "expected"), [each[1:] for each in WAITS], ids=[each[0] for each in WAITS])
def test_missing_ranks_of_calls(calls, expected):
    found = [
        (each.collective.op, each.collective.number, each.waiting, each.missing)
        for each in find_waits(reports(*calls))
    ]
    assert sorted(found) == sorted(expected)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_missing_ranks_are_those_that_started_fewest(counts):
    found = find_waits(reports(*(" ".join(["barrier"] * count) for count in counts)))
    least = min(counts)
    if max(counts) == least:
        assert found == []
        return
    [wait] = found
    assert wait.collective.number == least + 1
    assert wait.missing == tuple(rank for rank, count in enumerate(counts) if count == least)
    assert sorted((*wait.missing, *wait.waiting)) == [*range(len(counts))]


def test_different_calls_of_one_number_are_named():
    found = reports("barrier all_reduce:f32[4]", "barrier all_reduce:f32[8]", "barrier all_reduce:f32[4]")
    [mismatch] = find_mismatches(found)
    assert (mismatch.number, [ranks for ranks, _ in mismatch.calls]) == (2, [(0, 2), (1,)])
    assert [*wait_lines(found, NOW)] == [
        "the ranks differ at collective #2",
        "  ranks 0 and 2 call all_reduce (f32[4]) at train.py:42",
        "  rank 1 calls all_reduce (f32[8]) at train.py:42",
    ]


def test_text_of_a_hang():
    found = reports("barrier all_reduce:f32[4]", "barrier all_reduce:f32[4]", "barrier")
    assert [*wait_lines(found, NOW)] == [
        "rank 2 has not reached all_reduce #2 (f32[4]), train.py:42",
        "  ranks 0 and 1 have started it, 8.9 s ago",
        "  rank 2 is at train.py:55",
    ]
    rows = [*ranks_lines(found, NOW)]
    assert rows[0].split() == ["rank", "process", "state", "step", "at"]
    assert rows[1].split()[2:] == ["running", "3", "train.py:55,", "after", "all_reduce", "#2"]


@pytest.mark.parametrize(
    ("state", "exists", "words"),
    [
        ("stopped", True, "is stopped in the debugger at train.py:55"),
        ("running", False, "was killed at train.py:55"),
        ("ended", False, "has ended at train.py:55"),
    ],
)
def test_text_of_the_missing_rank(state, exists, words):
    found = reports("barrier", "", state=state, exists=exists)
    assert [*wait_lines(found, NOW)][-1] == f"  rank 1 {words}"


def test_ranks_without_notes_are_named():
    found = [each for each in reports("barrier", "barrier", "barrier") if each.process.rank != 1]
    assert [*ranks_lines(found, NOW)][-1] == "rank 1 of 3 did not start under `nncdbg debug --ranks`"
