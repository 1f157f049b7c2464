"""The Markdown summary, parsed like on GitHub."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from nncdbg.nan_watch.reports.markdown import render
from tests.nan_watch.reports.made_reports import REPORTS, WATCHED, corpus, hostile, plain

MARKDOWN = MarkdownIt("commonmark").enable("table")


@pytest.mark.parametrize("report", REPORTS)
def test_every_row_has_the_columns_of_its_table(report: str) -> None:
    tokens = MARKDOWN.parse(render(REPORTS[report](), WATCHED))
    columns, rows = 0, 0
    for token in tokens:
        if token.type == "tr_open":
            rows, columns = rows + 1, 0
        columns += token.type in ("th_open", "td_open")
        if token.type == "tr_close":
            assert columns in (3, 6)
    assert rows > 0 or not REPORTS[report]().findings


@pytest.mark.parametrize("report", REPORTS)
def test_names_are_not_markup(report: str) -> None:
    tokens = MARKDOWN.parse(render(REPORTS[report](), WATCHED))
    tags = [token.content for token in tokens if token.type == "html_block"]
    assert all(re.fullmatch(r"<details><summary>[^<>]*</summary>|</details>", tag.strip()) for tag in tags)
    inline = [child for token in tokens for child in token.children or []]
    assert {child.type for child in inline} <= {
        "text", "text_special", "code_inline", "strong_open", "strong_close", "softbreak",
    }  # fmt: skip
    assert sum(tag.startswith("<details>") for tag in tags) == sum(
        tag.startswith("</details>") for tag in tags
    )


def test_findings_are_a_table_with_folded_details() -> None:
    text = render(plain(), WATCHED)
    assert text.startswith(
        "### ❌ nncdbg watch: `net.onnx`\n\ntripped: 2 findings in 12 statements (0.01 s)\n"
    )
    assert "| **1** | inf (birth) | `net.py:7` | `Log` | `%logq` | log of zero |\n" in text
    assert "| 3 | nan (propagated) | `line 5` | `Neg` | `%f` |  |\n" in text
    assert text.count("<details>") == 2
    assert "  hint: keep it away from zero: Log(Max(%q, 1e-7))\n```\n" in text


def test_cases_that_are_not_ok_are_listed() -> None:
    text = render(corpus(), WATCHED)
    assert "| `c.npz` | crashed | the worker was killed by signal 11 |" in text
    assert "b.npz" not in text


def test_names_are_not_mentions() -> None:
    prose = re.sub(r"```.*?```|`+[^`]*`+", "", render(hostile(), WATCHED), flags=re.DOTALL)
    assert not re.search(r"@\w", re.sub(r"<summary>.*?</summary>", "", prose))
