"""A watch and a recording change nothing that a program can see."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.torch.transparency.harness import WAYS, seen  # noqa: E402
from tests.torch.transparency.programs import PROGRAMS  # noqa: E402

KNOWN = {
    ("profiler", "live", "said"): "operators are counted twice: before the mode that records them, and after",
    ("profiler", "record", "said"): "as with `live`",
}
"""What differs, and why."""


@cache
def alone(name):
    return seen(PROGRAMS[name], None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_changes(name):
    for way in WAYS:
        found, expected = seen(PROGRAMS[name], way), alone(name)
        refused = found.pop("refused")
        assert refused is None, f"{way}: {refused}"
        for key, value in found.items():
            same = value == expected[key]
            assert same is ((name, way, key) not in KNOWN), f"{way}: {key}"
