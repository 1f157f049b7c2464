"""Planted bugs of memory plans: the share reported with the right victim and the right culprit.

Bugs are planted in correct plans of random nets, of the examples and of a light model of the onnx wheel;
only bugs that change a result count.  The truth is computed from the program and the offsets alone (see
`tests/bugs/plan_truth.py`).  Bars: at most 1 % missed of at least 500 bugs; no finding with a correct
plan.  Peer: the number of bugs tried, because no other tool detects them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import nncdbg  # noqa: E402
from tests.bugs.nets import random_net  # noqa: E402
from tests.bugs.plan_judging import Subject  # noqa: E402

NETS = 60
EXAMPLES = ("attention.nnc", "first_steps.nnc", "refine_loop.nnc")
MODELS = ("light_squeezenet.onnx",)
LEAST, MISSED = 500, 0.01
"""The minimum number of bugs, and the accepted share of missed bugs."""


def subjects() -> Iterator[tuple[str, Subject, Random, int, int]]:
    """Yield the source of a program, the program, random numbers, bugs per pattern, and tries."""
    shapes = {"x": (4, 6), "y": (4, 6), "m": (6, 6)}
    for seed in range(NETS):
        random, numbers = Random(seed), np.random.default_rng(seed)
        inputs = {name: numbers.standard_normal(shape).astype("f") for name, shape in shapes.items()}
        program = nncdbg.parse(random_net(random, random.randrange(3, 9)))
        yield "random nets", Subject(program, inputs), random, 1, 1000
    for name in EXAMPLES:
        yield "examples", _drawn(ROOT / "examples" / name), Random(0), 3, 1000
    import onnx.backend.test

    folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
    for name in MODELS:
        yield name, _drawn(folder / name), Random(0), 1, 12


def _drawn(path: Path) -> Subject:
    """Return a model with random inputs of a fixed seed."""
    program = nncdbg.load(path)
    return Subject(program, dict(nncdbg.Debugger(program, seed=1).inputs))


def measure() -> list[dict[str, Any]]:
    """Return two figures with bars: missed planted bugs, and findings with correct plans."""
    planted: Counter[str] = Counter()
    patterns: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    alarms = plans = 0
    for origin, subject, random, each, tries in subjects():
        alarms += subject.false_alarms()
        plans += 3
        for mutant in subject.harmful(random, each, tries):
            planted[origin] += 1
            patterns[mutant.pattern] += 1
            missed[mutant.pattern] += not subject.judge(mutant).right
    total, wrong = planted.total(), missed.total()
    return [
        {
            "figure": "planted plan bugs missed / all",
            "ours": wrong,
            "peer": total,
            "ratio": wrong / total if total >= LEAST else 1.0,
            "bar": MISSED,
            "planted": dict(planted),
            "patterns": {
                pattern: [count - missed[pattern], count] for pattern, count in patterns.most_common()
            },
        },
        {
            "figure": "findings under right memory plans / all",
            "ours": alarms,
            "peer": plans,
            "ratio": alarms / plans,
            "bar": 0.0,
        },
    ]


if __name__ == "__main__":
    for measured in measure():
        print(json.dumps(measured))
