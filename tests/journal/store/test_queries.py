"""SQL and data frames."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from nncdbg import journal, summarize
from nncdbg.errors import LoadError, UsageError
from nncdbg.journal import NewRun

GRAPH = NewRun(kind="graph", name="train.nnc", program="graph @main() {}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run of 5 steps, and a fork at step 3."""
    path = tmp_path / "run.db"
    with journal.open(path, write=True) as file:
        with file.start(GRAPH) as run:
            for step in range(5):
                run.step(step, epoch=step // 2, seconds=0.5)
                run.value("loss", step, math.nan if step == 4 else 1 / (step + 1))
                run.statistics(step, "%h", summarize(np.array([step, 1.0])))
                run.statistics(step, "%g", summarize(np.array([math.nan])))
            run.value("loss", 4, 0.25, "test")
            run.note("slow", 2)
            run.event("nan", 4, "%loss")
            run.checkpoint(2, position={}, tensors={"state/w": np.ones(4)})
        with file.fork(1, 3, GRAPH) as fork:
            fork.value("loss", 3, 9.0)
    return path


QUERIES: list[tuple[str, list[str], list[tuple[object, ...]]]] = [
    (
        "SELECT run, parent, parent_step, status FROM runs",
        ["run", "parent", "parent_step", "status"],
        [(1, None, None, "ended"), (2, 1, 3, "ended")],
    ),
    ("SELECT max(value) FROM track_values WHERE name = 'loss'", ["max(value)"], [(9.0,)]),
    (
        "SELECT step, value FROM track_values WHERE run = 1 AND part = 'train' AND step > 2",
        ["step", "value"],
        [(3, 0.25), (4, None)],
    ),
    ("SELECT step, text FROM notes", ["step", "text"], [(2, "slow")]),
    ("SELECT kind, step, message FROM events", ["kind", "step", "message"], [("nan", 4, "%loss")]),
    ("SELECT sum(bytes) AS b FROM blobs", ["b"], [(32,)]),
    ("SELECT length(data) FROM chunks", ["length(data)"], [(32,)]),
    ("SELECT count(*) FROM programs", ["count(*)"], [(1,)]),
    ("SELECT epoch, count(*) FROM steps GROUP BY epoch", ["epoch", "count(*)"], [(0, 2), (1, 2), (2, 1)]),
]


@pytest.mark.parametrize(("query", "names", "rows"), QUERIES, ids=[query for query, *_ in QUERIES])
def test_queries(path: Path, query: str, names: list[str], rows: list[tuple[object, ...]]) -> None:
    with journal.open(path) as file:
        assert file.sql(query) == (names, rows)


def test_statistics_history_in_sql(path: Path) -> None:
    """P10: SQL over the history of statistics."""
    with journal.open(path) as file:
        names, rows = file.sql("SELECT * FROM statistics WHERE name = '%h' ORDER BY step")
        assert names[:5] == ["run", "name", "step", "min", "max"]
        assert [row[:5] for row in rows] == [(1, "%h", n, min(n, 1.0), max(n, 1.0)) for n in range(5)]
        assert file.sql("SELECT name, step, mean, nan FROM statistics WHERE nan > 0 LIMIT 1")[1] == [
            ("%g", 0, None, 1)
        ]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT nope FROM runs", "no such column: nope"),
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("", "cannot run the query: it is empty"),
        ("DELETE FROM runs", "not authorized"),
        ("DROP TABLE runs", "not authorized"),
        ("PRAGMA journal_mode = DELETE", "not authorized"),
        ("ATTACH 'other.db' AS other", "not authorized"),
        ("CREATE TEMP TABLE t (x)", "not authorized"),
    ],
)
def test_wrong_and_writing_queries(path: Path, query: str, message: str) -> None:
    content = path.read_bytes()
    with journal.open(path) as file:
        with pytest.raises(UsageError) as caught:
            file.sql(query)
        assert message in caught.value.message
        assert len(file.runs()) == 2
    assert path.read_bytes() == content
    assert not path.with_name("other.db").exists()


def test_a_query_reads_only_verified_rows(path: Path) -> None:
    changed = sqlite3.connect(path)
    changed.execute("UPDATE points SET value = 8.0 WHERE value = 9.0")
    changed.commit()
    changed.close()
    with journal.open(path) as file:
        with pytest.raises(LoadError, match="is damaged: rows of the table points"):
            file.sql("SELECT max(value) FROM track_values")
        assert file.sql("SELECT count(*) FROM runs")[1] == [(2,)]


def test_a_query_after_another_process_wrote_sees_and_verifies_the_new_rows(path: Path) -> None:
    with journal.open(path) as reader, journal.open(path, write=True) as writer:
        assert reader.sql("SELECT count(*) FROM runs")[1] == [(2,)]
        writer.start(GRAPH).end()
        assert reader.sql("SELECT count(*) FROM runs")[1] == [(3,)]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frame(path: Path, library: str) -> None:
    """P10: the tracked values as a data frame."""
    pytest.importorskip(library)
    with journal.open(path) as file:
        frame = file.frame(1, library)
        assert list(frame.columns) == ["step", "epoch", "seconds", "loss", "loss (test)"]
        columns = {name: np.asarray(frame[name]) for name in frame.columns}
        np.testing.assert_array_equal(columns["step"], range(5))
        np.testing.assert_array_equal(columns["epoch"], [0, 0, 1, 1, 2])
        np.testing.assert_array_equal(columns["loss"], [1, 1 / 2, 1 / 3, 1 / 4, math.nan])
        np.testing.assert_array_equal(columns["loss (test)"], [math.nan] * 4 + [0.25])
        assert len(file.frame(None, library)) == 4


def test_frame_of_a_missing_or_unknown_library(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with journal.open(path) as file:
        with pytest.raises(UsageError, match="polars is not installed"):
            file.frame(1, "polars")
        with pytest.raises(UsageError, match='no data frames of the library "excel"'):
            file.frame(1, "excel")
