"""Planted bugs of plans: a small seeded sample of `benchmarks/bench_mutants.py`."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import nncdbg
from tests.bugs.nets import random_net
from tests.bugs.plan_judging import Subject
from tests.bugs.plans import affects_planted_pair


@pytest.fixture(params=range(100, 106))
def subject(request: pytest.FixtureRequest) -> tuple[Subject, Random]:
    random, numbers = Random(request.param), np.random.default_rng(request.param)
    shapes = {"x": (4, 6), "y": (4, 6), "m": (6, 6)}
    inputs = {name: numbers.standard_normal(shape).astype("f") for name, shape in shapes.items()}
    return Subject(nncdbg.parse(random_net(random, 5)), inputs), random


def test_every_planted_bug_is_reported_with_its_victim_and_culprit(subject: tuple[Subject, Random]) -> None:
    tried, random = subject
    assert tried.false_alarms() == 0
    verdicts = [tried.judge(mutant) for mutant in tried.harmful(random, 1)]
    assert len(verdicts) >= 5
    assert [verdict for verdict in verdicts if not verdict.right] == []


def test_a_bug_affects_the_two_values_of_its_planted_pair(subject: tuple[Subject, Random]) -> None:
    tried, random = subject
    planted = [mutant for mutant in tried.harmful(random, 1) if mutant.pair is not None]
    truths = [(mutant, tried.history.truth(mutant.plan)) for mutant in planted]
    # A neighbour that overlaps the end of another value may extend into a third one.
    whole = [
        (mutant, truth)
        for mutant, truth in truths
        if "size" not in mutant.pattern and "row" not in mutant.pattern
    ]
    assert whole
    assert all(truth is not None and affects_planted_pair(mutant, truth) for mutant, truth in whole)
