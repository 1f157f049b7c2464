"""The first step at which a rank differs, from digests."""

import pytest

from nncdbg.presentation.ranks import divergence_lines
from nncdbg.process.rank_notes import (
    DigestFile,
    StepDigests,
    find_divergences,
    is_digested,
    path_of_digests,
    read_digests,
)


def steps(*tensors):
    return [StepDigests(step=number, tensors=each) for number, each in enumerate(tensors, 1)]


GOOD = {"w.grad": (1, 2.0), "w": (2, 4.0)}
BAD = {"w.grad": (7, 20.0), "w": (8, 3.0)}
SHARDS = [{"b": (1, 1.0), "w[shard 0]": (2, 4.0)}, {"b": (1, 1.0), "w[shard 1]": (3, 5.0)}]
OTHER_SHARD = {"b": (1, 1.0), "w[shard 1]": (4, 6.0)}
LATE = {"w.grad": (1, 2.0), "w": (9, 4.5)}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((steps(GOOD, GOOD), steps(GOOD, GOOD)), []),
        ((steps(GOOD), steps(GOOD, BAD)), []),
        ((steps(), steps(BAD)), []),
        ((steps(GOOD, GOOD), steps(GOOD, GOOD), steps(GOOD, LATE)), [(2, "w", (2,))]),
        ((steps(BAD, GOOD), steps(GOOD, GOOD), steps(GOOD, LATE)), [(1, "w.grad", (0,)), (1, "w", (0,))]),
        ((steps(GOOD), steps({"w": (2, 4.0)}), steps(GOOD)), [(1, "w.grad", (1,))]),
        ((steps(SHARDS[0]), steps(SHARDS[1])), []),
        ((steps(SHARDS[0]), steps(SHARDS[1]), steps(SHARDS[0]), steps(SHARDS[1])), []),
        (
            (steps(SHARDS[0]), steps(SHARDS[1]), steps(SHARDS[0]), steps(OTHER_SHARD), steps(SHARDS[1])),
            [(1, "w[shard 1]", (3,))],
        ),
    ],
)
def test_first_step_that_differs_gradients_first(ranks, expected):
    found = find_divergences(dict(enumerate(ranks)))
    assert [(each.step, each.name, each.different) for each in found] == expected


def test_a15_the_rank_with_a_gradient_ten_times_larger_is_named():
    """A15: one of four replicas has a gradient that is 10 x larger after five steps."""
    good = [GOOD] * 5
    found = dict(enumerate([steps(*good), steps(*good), steps(*good), steps(*good[:4], BAD)]))
    assert [*divergence_lines(found)] == [
        "step 5 is the first at which rank 3 differs from others:",
        "  %w.grad on rank 3: norm 20, 10 x that of ranks 0, 1 and 2",
        "  %w on rank 3: norm 3, 0.75 x that of ranks 0, 1 and 2",
    ]


def test_text_without_a_divergence():
    assert [*divergence_lines({0: steps(GOOD), 1: steps(GOOD)})] == [
        "gradients and parameters are equal on all ranks; the latest one compared is step 1"
    ]
    assert [*divergence_lines({0: steps(GOOD), 1: []})] == ["no divergence; no step was compared"]


def test_norm_of_nan_is_shown():
    bad = {"w.grad": (5, None)}
    [_, line] = divergence_lines(
        {0: steps({"w.grad": (1, 1.0)}), 1: steps({"w.grad": (1, 1.0)}), 2: steps(bad)}
    )
    assert line == "  %w.grad on rank 2: norm NaN or Inf"


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    file = DigestFile(tmp_path, 0)
    [found] = steps(GOOD)
    file.append(found)
    file.close()
    with path_of_digests(tmp_path, 0).open("ab") as opened:
        opened.write(b'{"step":2,"tens')
    assert read_digests(tmp_path, [0, 1]) == {0: [found], 1: []}


def test_first_steps_and_each_tenth_one_are_digested():
    assert [step for step in range(1, 41) if is_digested(step)] == [*range(1, 11), 20, 30, 40]
