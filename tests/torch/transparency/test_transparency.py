"""A watch and a recording change nothing that a program can see."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.torch.transparency.harness import WAYS, seen  # noqa: E402
from tests.torch.transparency.programs import PROGRAMS  # noqa: E402

KNOWN = {
    ("profiler", "live", "said"): "operators are counted twice: before the mode that records them, and after",
    ("profiler", "record", "said"): "as with `live`",
    ("deleted_model", "live", "said"): "a recording keeps the models of its step until it ends",
}
"""What differs, and why."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_changes(name):
    # In one line: tracebacks in warnings have it.
    found = {way: seen(name, way) for way in (None, *WAYS)}
    for way in WAYS:
        for key, value in found[way].items():
            same = value == found[None][key]
            assert same is ((name, way, key) not in KNOWN), f"{way}: {key}"
