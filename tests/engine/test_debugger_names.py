"""The public names of a debugger: what tab completion shows.  A new name is a decision."""

from __future__ import annotations

import nncdbg

NAMES = """
    break_at watch_value catch uncatch delete
    run run_to step_over step_into step_out step_stream pause move
    step_back step_back_into reverse_step_out reverse_continue restart mark go_to go_to_line
    value values_at stats evaluate set_value awaited outputs states
    stop ended frames selected notes micro program inputs backend
    breakpoints timeline control observers loaded values diagnosis retracing
    run_to_lines traced_finding traced_value
    times tracks tracking finding_listeners
"""


def test_public_names_of_a_debugger() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse("graph @main() -> () {\n  return\n}\n"))
    assert sorted(name for name in dir(debugger) if not name.startswith("_")) == sorted(NAMES.split())


def test_parts_of_a_debugger_print_one_line() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse("graph @main() -> () {\n  return\n}\n"))
    for name in (
        "breakpoints",
        "timeline",
        "control",
        "observers",
        "loaded",
        "values",
        "diagnosis",
        "tracking",
        "times",
    ):
        text = repr(getattr(debugger, name))
        assert text.startswith("<"), name
        assert " object at 0x" not in text, text
        assert len(text) < 200, text
