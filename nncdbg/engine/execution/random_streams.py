"""Streams of random numbers: one per statement and iteration, so that replays draw the same numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.compilation.partial import Places
from nncdbg.engine.execution.machine import Running
from nncdbg.ir.records import Path

RandomStreams: TypeAlias = "Callable[[Path, int, float | None], np.random.Generator]"
"""Returns the stream of a statement at a place, with its attribute `seed` (None: no attribute)."""


def generator_of(running: Running, seed: int, places: Places | None = None) -> RandomStreams:
    """Return the random streams of a run with this seed: equal at every replay.

    A stream is keyed by `seed`, the attribute `seed` of the statement, and the iterations of the loops around
    it.  Without the attribute, the place of the statement in each frame takes its place.  `places` are those
    of a part of a program: its statements draw the same numbers as in the whole program.
    """

    def placed(path: Path, pc: int) -> tuple[Path, int]:
        whole, numbers = (places or {}).get(path, (path, ()))
        return whole, numbers[pc] if numbers else pc

    def generator(path: Path, pc: int, attribute: float | None) -> np.random.Generator:
        if attribute is not None:
            return seeded_stream(seed, attribute, [each.iteration for each in running.frames if each.is_loop])
        *outer, inner = running.frames
        path, pc = placed(path, pc)
        calls = [(placed(frame.code.path, frame.pc)[1], frame.iteration) for frame in outer]
        return _stream((seed, path, pc, inner.iteration, calls))

    return generator


def seeded_stream(seed: int, attribute: float, iterations: Sequence[int]) -> np.random.Generator:
    """Return the stream of a statement with an attribute `seed`, in a run with the seed `seed`.

    It is that of `numpy.random.RandomState(attribute)` in a run with the seed 0 outside loops and in their
    first iterations, as ONNX's cases of Dropout expect.
    """
    own = int(attribute) if float(attribute).is_integer() else attribute
    if seed or any(iterations) or isinstance(own, float) or not 0 <= own < 1 << 32:
        return _stream((seed, own, *iterations))
    state: Any = np.random.RandomState(own).get_state(legacy=False)
    bits = np.random.MT19937()
    bits.state = state
    return np.random.Generator(bits)


def _stream(key: tuple[Any, ...]) -> np.random.Generator:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
