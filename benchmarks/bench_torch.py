"""Recording of whole training steps, and the engine on torch kernels, against the same steps run eagerly.

One thread; runs of both sides in turn, medians of processor time.  `ours` and `peer` are seconds; for the
figure per operator, `ours` is in microseconds over eager and `ratio` is its share of 60.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from time import process_time
from typing import Any

from bare_guard import bare_guard
from bare_kernels import bare_loop

import nncdbg
from nncdbg import stats

RUNS = 15

SETTLING = 0.5
"""About the time of the steps in a block before those that are measured.

A block allocates memory, learns the modules of the training and replaces functions, to which Python adapts
its code in the first steps."""

SECONDS = 0.1
"""About the time of the steps of one side of a round, where a block contains several."""

WAYS: tuple[tuple[str, dict[str, Any], tuple[str, ...], float | None], ...] = (
    ("plain", {"statistics": False, "history": 0}, (), 1.15),
    ("NaN and Inf check", {"statistics": False, "history": 0}, ("nan", "inf"), 1.30),
    ("statistics", {"history": 0}, (), 1.45),
    ("plain, with history", {"statistics": False}, (), None),
    ("NaN and Inf check, with history", {"statistics": False}, ("nan", "inf"), None),
    ("statistics, with history", {}, (), None),
)
"""Ways to run the engine, as `nncdbg run` does without history, and as a session that can step back does."""


WATCHES: tuple[tuple[str, dict[str, Any], float | None], ...] = (
    ("guard", {}, 1.03),
    ("hooks", {"tier": "hooks"}, 1.10),
    ("native", {"tier": "native"}, 1.15),
    ("guard, keep_update", {"keep_update": True}, None),
)
"""Ways to call `nncdbg.torch.watch`, with the bar of each."""

LIVE = (("live", ()), ("live, catch nan and inf", ("nan", "inf")))
"""Names and caught kinds of the live debugger, without other breakpoints."""


def seconds(function: Callable[[], Any]) -> float:
    """Return the processor time of one call."""
    before = process_time()
    function()
    return process_time() - before


def in_turn(functions: list[Callable[[], Any]], runs: int) -> list[list[float]]:
    """Return for each round the time of each function; the first two rounds are not counted."""
    rounds = []
    gc.collect()
    for number in range(runs + 2):
        times = [seconds(function) for function in functions]
        if number > 1:
            rounds.append(times)
    return rounds


def in_blocks(functions: list[Callable[[], Any]], runs: int) -> list[list[float]]:
    """Return for each round the median time of some calls of each function in a row; one is not counted."""
    count = max(3, int(SECONDS / statistics.median(seconds(functions[0]) for _ in range(3))))
    rounds = []
    gc.collect()
    for number in range(runs + 1):
        times = []
        for function in functions:
            function()
            times.append(statistics.median(seconds(function) for _ in range(count)))
        if number > 0:
            rounds.append(times)
    return rounds


def figure(name: str, rounds: list[list[float]], index: int, bar: float | None) -> dict[str, Any]:
    """Return the figure of function `index` over the eager step, which is the first one."""
    return {
        "figure": name,
        "ours": statistics.median(each[index] for each in rounds),
        "peer": statistics.median(each[0] for each in rounds),
        "ratio": round(statistics.median(each[index] / each[0] for each in rounds), 3),
        "bar": bar,
    }


def recording(step: Any, runs: int) -> list[dict[str, Any]]:
    """Return the time of the block of `record` over the step, and the time per operator over eager."""
    from nncdbg.torch import record

    training = step.build()

    def recorded() -> Any:
        with record(training.models, training.optimizers) as done:
            training.run()
        return done

    rounds = in_turn([training.run, recorded], runs)
    whole = figure(f"record {step.name} / eager", rounds, 1, 3.0)
    return [whole, per_operator(f"record {step.name}", rounds, operators(recorded()), 60)]


def operators(recorded: Any) -> int:
    """Return the number of operators of a recorded step."""
    graphs = recorded.program.graphs.values()
    return sum(not node.op.startswith("@") for graph in graphs for node in graph.nodes)


def per_operator(name: str, rounds: list[list[float]], count: int, bar: int) -> dict[str, Any]:
    """Return the time per operator of the second function of each round over the first one."""
    over = statistics.median(each[1] - each[0] for each in rounds) / count * 1e6
    return {
        "figure": f"{name}, microseconds per operator over eager ({count} operators) / {bar}",
        "ours": round(over, 1),
        "peer": float(bar),
        "ratio": round(over / bar, 3),
        "bar": 1.0,
    }


def engine(step: Any, runs: int) -> list[dict[str, Any]]:
    """Return the time of a recorded step in the engine over the step, for each way to observe it."""
    from nncdbg.torch import record

    training = step.build()
    with record(training.models, training.optimizers) as recorded:
        training.run()
    eager = step.build().run
    functions = [eager]
    for _, options, kinds, _ in WAYS:
        debugger = nncdbg.Debugger(recorded.program, recorded.inputs, backend="torch", **options)
        if kinds:
            debugger.catch(*kinds)
        functions.append(_whole_run(debugger))
    debugger = nncdbg.Debugger(recorded.program, recorded.inputs, backend="torch", statistics=False)
    functions += [bare_loop(debugger, frees=False), bare_loop(debugger, frees=True)]
    rounds = in_blocks(functions, max(1, runs // 2))
    names: list[tuple[str, float | None]] = [
        (f"engine on torch, {step.name}, {name}", bar) for name, _, _, bar in WAYS
    ]
    names += [(f"kernels in a bare loop, {step.name}, {what}", None) for what in ("results kept", "freed")]
    return [figure(f"{name} / eager", rounds, index, bar) for index, (name, bar) in enumerate(names, 1)]


def _whole_run(debugger: Any) -> Callable[[], Any]:
    def run() -> Any:
        debugger.restart()
        stop = debugger.run(heed=False)
        assert stop.reason == "end", stop

    return run


def within(step: Any, block: Callable[[Any], AbstractContextManager[Any]], runs: int) -> list[list[float]]:
    """Return for each round the median time of some steps, and of as many within `block` of the training."""
    training = step.build()
    once = statistics.median(seconds(training.run) for _ in range(3))
    count, settling = (max(3, int(time / once)) for time in (SECONDS, SETTLING))
    rounds = []
    gc.collect()
    for number in range(runs + 1):
        eager = statistics.median(seconds(training.run) for _ in range(count))
        with block(training):
            for _ in range(settling):
                training.run()
            times = [eager, statistics.median(seconds(training.run) for _ in range(count))]
        if number > 0:
            rounds.append(times)
    return rounds


def watched(step: Any, name: str, options: dict[str, Any], bar: float | None, runs: int) -> dict[str, Any]:
    """Return the time of a step under a watch over the step."""
    from nncdbg.torch import watch

    rounds = within(step, lambda training: watch(training.models, training.optimizers, **options), runs)
    return figure(f"watch, {name}, {step.name} / eager", rounds, 1, bar)


def guarded_barely(step: Any, runs: int) -> dict[str, Any]:
    """Return the time of a step with an empty mode and the check of gradients and parameters over it."""
    return figure(f"empty mode and check, {step.name} / eager", within(step, bare_guard, runs), 1, None)


def watched_live(step: Any, runs: int) -> dict[str, Any]:
    """Return the time per operator of a step under a watch that records it, over the step."""
    from nncdbg.torch import watch

    rounds = within(step, lambda training: watch(training.models, training.optimizers, tier="live"), runs)
    return per_operator(f"watch, live, {step.name}", rounds, operators_of(step), 60)


def live(step: Any, name: str, kinds: tuple[str, ...], runs: int) -> dict[str, Any]:
    """Return the time per operator of a step under the live debugger, which never stops, over the step."""
    from nncdbg.torch.live.training import LiveTraining

    def stopped(debugger: Any) -> None:
        raise AssertionError(debugger)

    def block(_: Any) -> LiveTraining:
        training = LiveTraining(stopped, print)
        training.catch(dict.fromkeys(kinds))
        return training

    return per_operator(f"{name}, {step.name}", within(step, block, runs), operators_of(step), 25)


def operators_of(step: Any) -> int:
    """Return the number of operators of the second run of a step."""
    from nncdbg.torch import record

    training = step.build()
    training.run()
    with record(training.models, training.optimizers) as recorded:
        training.run()
    return operators(recorded)


def measure(runs: int = RUNS, names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the figures of the steps of the corpus that take 5 ms or more; without torch a skipped row."""
    return [*figures(runs, names)]


def figures(runs: int = RUNS, names: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield each figure when it is measured."""
    if importlib.util.find_spec("torch") is None:
        yield {
            "figure": "PyTorch",
            "ours": None,
            "peer": None,
            "ratio": 0.0,
            "bar": None,
            "skipped": "torch is not installed",
        }
        return
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import torch

    from tests.torch.steps import STEPS

    torch.set_num_threads(1)
    stats.prepare(wait=True)
    for step in STEPS:
        if step.heavy and not step.skip_reason and (not names or step.name in names):
            yield from recording(step, runs)
            yield from engine(step, runs)
            yield guarded_barely(step, runs)
            for way in WATCHES:
                yield watched(step, *way, runs)
            yield watched_live(step, runs)
            for name, kinds in LIVE:
                yield live(step, name, kinds, runs)


if __name__ == "__main__":
    for row in figures(names=tuple(sys.argv[1:])):
        print(json.dumps(row), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
