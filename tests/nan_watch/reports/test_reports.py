"""Every report format is limited in size, escaped and deterministic; and the exact text format."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops.causes import NAMES
from nncdbg.nan_watch.measuring.gates import ReportContext, gate_names
from nncdbg.nan_watch.memory import comparison as memory_words
from nncdbg.nan_watch.records import FindingSite, WatchFinding
from nncdbg.nan_watch.reports import FORMS
from nncdbg.nan_watch.reports.rules import CAUSES, rule_of
from nncdbg.nan_watch.reports.text import lines
from nncdbg.nan_watch.reports.wording import headline, sentence, visible
from nncdbg.presentation.schedules import CAUSES as SCHEDULE_CAUSES
from nncdbg.presentation.screen import Screen
from nncdbg.presentation.short_statements import FittedText
from tests.nan_watch.reports.made_reports import HOSTILE_NAMES, REPORTS, WATCHED, failed, of_text, plain

MEGABYTE = 1 << 20
LARGEST = {"text": MEGABYTE, "github": 60_000, "markdown": MEGABYTE}
"""Maximum bytes of a format for any report; GitHub accepts a megabyte of Markdown."""


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("form", FORMS)
def test_every_format_is_limited_escaped_and_deterministic(form: str, report: str) -> None:
    made = REPORTS[report]()
    written = FORMS[form](made, WATCHED)
    assert FORMS[form](made, WATCHED) == written
    assert len(written.encode()) < LARGEST.get(form, 100 * MEGABYTE)
    special = {char for char in set(written) if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert special <= {"\n"}


@pytest.mark.parametrize("form", FORMS)
def test_no_format_contains_a_name_of_a_megabyte(form: str) -> None:
    assert "x" * 2_100 not in FORMS[form](REPORTS["hostile"](), WATCHED)


def test_an_operand_given_twice_is_listed_once() -> None:
    text = "graph @main(%x: f32[2]) -> (%y) {\n  %z = Sub(%x, %x)\n  %y = Div(%z, %z)\n  return %y\n}\n"
    report = nncdbg.watch(nncdbg.parse(text), {"x": [1, 2]})
    assert [each.name for each in report.findings[0].inputs] == ["z", "z"]
    assert str(report).count("  with %z ") == 1


def test_the_text_of_a_report() -> None:
    assert FORMS["text"](plain(), WATCHED) == (
        "net.onnx: tripped: 2 findings in 12 statements (0.01 s)\n"
        "\n"
        "1. the first Inf is in %logq: Log produced it from operands without Inf\n"
        "  at nets/net.onnx:3:3\n"
        '    3 |   %logq: f32[3,4] = Log(%q)   loc("net.py":7)\n'
        "      |   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  in @main\n"
        '  from net.py:7, node "/probs/Log"\n'
        "  with %q f32[3,4] min 0 mean 0.25 max 1 std 0.4\n"
        "  gives %logq -inf 5 min -91.6 mean -33.8 max 0 std 37.3\n"
        "  cause: log of zero: 5 of 12 elements of %q are 0, the first at [0, 1]\n"
        "  hint: keep it away from zero: Log(Max(%q, 1e-7))\n"
        "\n"
        "2. NaN is in %e: Mul produced it from operands without NaN\n"
        "  at nets/net.onnx:4:3\n"
        "    4 |   %e: f32[3,4] = Mul(%q, %logq)\n"
        "      |   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  in @main\n"
        "  with %q f32[3,4] min 0 mean 0.25 max 1 std 0.4\n"
        "  with %logq f32[3,4] -inf 5 min -91.6 mean -33.8 max 0 std 37.3\n"
        "  gives %e nan 12 of 12\n"
        "  cause: zero times infinity: %q is 0 where %logq is -inf\n"
        "  inside Mul: Mul makes %z\n"
        "\n"
        "3. NaN in %f: Neg propagates it (line 5 of @main)\n"
        "note: %q drawn at random\n"
    )


def test_the_text_without_the_program_shows_statements_from_the_findings() -> None:
    written = FORMS["text"](of_text(), type(WATCHED)())
    assert "    4 | %e = Mul(%q, %logq)\n" in written
    assert "%q has NaN before the program runs\n" in written
    assert "without NaN, without effect on an output\n" in written
    assert "NaN is lost in %r: the result of Max is finite\n" in written
    assert "wrong reuse of memory: %logq at Log\n" in written
    assert "  in @main, iteration 2, 5\n" in written
    assert "  because of Mul, line 4 of @main\n" in written
    assert "  7 times\n" in written
    assert "3 more statements that propagate NaN or Inf are not listed\n" in written


def test_findings_with_effect_come_before_those_without() -> None:
    program = nncdbg.parse(
        "graph @main(%x: f32[2]) -> (%y, %w) {\n"
        "  %l = Log(0.0)\n"
        "  %m = Max(%l, -100.0)\n"
        "  %n = Log(%x)\n"
        "  %w = Greater(%n, 0.0)\n"
        "  %y = Add(%m, 1.0)\n"
        "  return %y, %w\n"
        "}\n"
    )
    report = nncdbg.watch(program, {"x": [-1.0, 2.0]})
    assert FORMS["text"](report, ReportContext()).startswith(
        "the program: tripped: 1 finding in 6 statements ("
    )
    assert [headline(finding) for finding in report.findings] == [
        "the first NaN is in %n: Log produced it from operands without NaN",
        "NaN decides %w: the result of Greater is finite, but depends on it",
        "Inf is in %l: Log produced it from operands without Inf, without effect on an output",
        "Inf is lost in %m: the result of Max is finite",
    ]


def test_a_lost_infinity_decides_nothing_in_a_failed_run() -> None:
    program = nncdbg.parse(
        "graph @main(%x: f32[2]) -> (%y) {\n"
        "  %l = Log(%x)\n"
        "  %m = Max(%l, -100.0)\n"
        "  %y = Reshape(%m, [3])\n"
        "  return %y\n"
        "}\n"
    )
    report = nncdbg.watch(program, {"x": [0.0, 2.0]})
    assert report.error is not None
    assert headline(report.findings[-1]) == "Inf is lost in %m: the result of Max is finite"


def test_the_text_of_a_failed_run() -> None:
    assert FORMS["text"](failed(), ReportContext()) == (
        "net.onnx: failed after 3 statements (0.01 s)\n"
        "error: MatMul failed: sizes\n"
        "  differ\n"
        "  with %x: f32[1,3]\n"
        "  hint: look at %x\n"
        "not checked: statements after line 4\n"
    )


def test_every_cause_and_every_gate_has_a_help_text() -> None:
    assert set(CAUSES) == {*NAMES, *contracts.CAUSES, *memory_words.CAUSES, *SCHEDULE_CAUSES}
    for kind in (*gate_names(), "reuse", "state", "plan"):
        assert rule_of(kind, "").help != f"The gate {kind} tripped."
    assert rule_of("dead", "").id == "dead"
    assert rule_of("nan", "log of zero").id == "nan/log-of-zero"
    assert rule_of("nan", "log of zero").title == "NaN: log of zero"
    assert rule_of("nan", "log of zero").help.endswith("or LogSoftmax for Log(Softmax).")


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: ascii(name)[:20])
def test_shown_names_are_short_and_printable(name: str) -> None:
    assert len(visible(name)) <= 200 * 6
    assert visible(name).replace("…", "").isprintable()
    assert sentence(name).isprintable()
    assert visible(visible(name)) == visible(name) or len(name) > 200


def test_no_format_reads_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report may be rendered on a machine without the model."""
    monkeypatch.chdir(tmp_path)
    for render in FORMS.values():
        assert render(plain(), WATCHED)


@pytest.mark.parametrize(("limit", "unlisted"), [(10, 0), (2, 25)])
def test_findings_of_a_chain_are_counted_once(limit: int, unlisted: int) -> None:
    steps = "".join(f"  %v{i + 1} = Neg(%v{i})\n" for i in range(25))
    program = nncdbg.parse(
        f"#nncdbg 1\ngraph @main(%x: f32[2]) -> (%v25) {{\n  %v0 = Log(%x)\n{steps}  return %v25\n}}\n"
    )
    report = nncdbg.watch(program, {"x": [-1.0, 1.0]}, max_findings=limit)
    text = FORMS["text"](report, WATCHED)
    assert ("NaN reaches %v25 through 25 ops" in text) is (unlisted == 0)
    assert ("are not listed" in text) is (unlisted > 0)


def test_a_report_fits_a_terminal_with_short_names() -> None:
    add, log = (f"/model/decoder/layers.0/self_attn/{op}_output_0" for op in ("Add", "Log"))
    program = nncdbg.parse(
        f"#nncdbg 1\nopset 18\n\ngraph @main(%x: f32[64]) -> (%{log}: f32[64]) {{\n"
        f"  %{add}: f32[64] = Sub(%x, %x)\n  %{log}: f32[64] = Log(%{add})\n  return %{log}\n}}\n"
    )
    report = nncdbg.watch(program, inputs={"x": np.ones(64, np.float32)})
    fitted = replace(ReportContext.of(program), screen=FittedText(program, 80))
    out = StringIO()
    screen = Screen(out, out, width=80, color=False)
    screen.name_values(program)
    for line in lines(report, fitted):
        screen.put_wrapped(line)
    shown = out.getvalue().splitlines()
    assert all(len(line) <= 80 for line in shown if " | " in line or line.startswith(("  with", "  gives")))
    text = "\n".join(shown)
    assert "the first Inf is in %Log_output_0: Log produced it" in text
    assert " -inf 64 of 64" in text
    assert add not in text
    assert add in FORMS["text"](report, ReportContext.of(program)), "a pipe has the full names"


@pytest.mark.parametrize(
    ("op", "value", "words"),
    [
        ("graph", "", "a race: the beginning of @main"),
        ("graph", "h", "a race: %h at the beginning of @main"),
        ("return", "h", "a race: %h at the return of @main"),
        ("Relu", "h", "a race: %h at Relu"),
    ],
)
def test_the_ends_of_a_graph_are_places_and_no_ops(op: str, value: str, words: str) -> None:
    assert headline(WatchFinding("race", "birth", FindingSite(2, "main", "", op, value))) == words
