"""The text of recorded steps: short lines, values passed by name, states behind the graphs, exact."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.textual_repr.test_layout import check_layout, check_round_trip  # noqa: E402
from tests.torch.test_source_trace import SCRIPTS, Script  # noqa: E402


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_recorded_step_fits_and_reads_back(name: str) -> None:
    program = Script(name).record().program
    check_layout(program)
    check_round_trip(program)
    if {"forward", "backward"} <= program.graphs.keys() and len(program.graphs["backward"].inputs) > 8:
        assert re.search(r"^graph @backward\(.*\.\.\.\) -> ", program.text(), re.MULTILINE)
