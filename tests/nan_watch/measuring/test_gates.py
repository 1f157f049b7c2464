"""The syntax of gates, the conditions that a watch fails on."""

from __future__ import annotations

from pathlib import Path

import pytest

import nncdbg
from nncdbg.nan_watch.measuring.gates import KINDS, MEASURES, Gates, Threshold, gate_names, split, table

WRITTEN = [
    ("nan", {"nan"}, [], []),
    ("nan, inf ,guard", {"nan", "inf", "guard"}, [], []),
    ("dead", set(), ["dead:0.9"], []),
    ("dead:0.5", set(), ["dead:0.5"], []),
    ("zeros:75%", set(), ["zeros:0.75"], []),
    ("headroom:8", set(), ["headroom:8"], []),
    ("headroom<8", set(), ["headroom:8"], []),
    ("update<1e-6", set(), ["update<1e-06"], []),
    ("max>1e4 in layer*", set(), ["max>10000 in layer*"], []),
    ("dead in encoder/*,nan", {"nan"}, ["dead:0.9 in encoder/*"], []),
    ("std < 1e-3", set(), ["std<0.001"], []),
    ("range:max(%h, axis=0)[1] > 3,nan", {"nan"}, [], ["max(%h, axis=0)[1] > 3"]),
    ('range:max(%"a,b") > 1,inf', {"inf"}, [], ['max(%"a,b") > 1']),
    ("range:%h[0, 1] > 1,range:%g[2] < 0", set(), [], ["%h[0, 1] > 1", "%g[2] < 0"]),
]


@pytest.mark.parametrize(("text", "kinds", "thresholds", "ranges"), WRITTEN)
def test_gates_are_parsed_and_printed(
    text: str, kinds: set[str], thresholds: list[str], ranges: list[str]
) -> None:
    gates = Gates.of(text)
    assert gates.kinds == kinds
    assert [str(each) for each in gates.thresholds] == thresholds
    assert list(gates.ranges) == ranges
    assert Gates.of([str(each) for each in gates.thresholds]).thresholds == gates.thresholds


WRONG = [
    ("nann", "did you mean nan?"),
    ("dedd:0.9", "did you mean dead?"),
    ("", "the gates are nan"),
    ("nan,,inf", "the gates are nan"),
    ("nan:2", "write nan"),
    ("range", "range:max"),
    ("range:", "range:max"),
    ("max", "max>1e4"),
    ("max:3", "max>1e4"),
    ("zeros:lots", "dead:0.9"),
    ("zeros:nan", "dead:0.9"),
    ("dead:", "did you mean dead?"),
]


@pytest.mark.parametrize(("text", "hint"), WRONG)
def test_an_unknown_gate_is_an_error_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(nncdbg.UsageError) as caught:
        Gates.of(text)
    assert hint in (caught.value.hint or "")


def test_commas_inside_brackets_and_quotes_do_not_separate_gates() -> None:
    text = 'range:max(%h, axis=(0, 1)) > 1, nan,range:%"x,)"[0, 1] > 0,dead'
    assert list(split(text)) == [
        "range:max(%h, axis=(0, 1)) > 1", "nan", 'range:%"x,)"[0, 1] > 0', "dead",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gate", "actual", "trips"),
    [
        ("dead:0.5", 0.5, True),
        ("dead:0.5", 0.49, False),
        ("headroom:4", 3.9, True),
        ("headroom:4", 4.1, False),
        ("max>10", float("inf"), True),
        ("min<-1", -2.0, True),
        ("min<-1", 0.0, False),
    ],
)
def test_a_limit_is_an_upper_or_lower_bound(gate: str, actual: float, trips: bool) -> None:
    (threshold,) = Gates.of(gate).thresholds
    assert threshold.exceeded(actual) is trips


def test_a_pattern_matches_any_name_of_a_statement() -> None:
    gate = Threshold("dead", 0.9, True, "layer*")
    assert gate.concerns("h", "layer1", "")
    assert not gate.concerns("h", "main", "")
    assert Threshold("dead", 0.9, True).concerns("h")


def test_the_table_lists_every_gate_with_its_default_limit() -> None:
    written = dict(table())
    assert set(KINDS) <= set(written)
    assert written["dead:0.9"].startswith(MEASURES["dead"].meaning)
    assert "max>X, max<X" in written
    assert [name.partition(":")[0].partition(">")[0] for name in written] == gate_names()


def test_the_page_on_gates_has_the_table_of_the_help(repository: Path) -> None:
    page = (repository / "docs" / "GATES.md").read_text(encoding="utf-8")
    rows = [f"| `{gate}` | {meaning.replace('|', chr(92) + '|')} |" for gate, meaning in table()]
    assert "\n".join(["| gate | trips on |", "|---|---|", *rows]) in page
