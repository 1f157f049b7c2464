"""Journals of older schema versions are read as they are, and get the newer tables when they are written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg import journal
from nncdbg.errors import LoadError
from nncdbg.journal import Journal, NewRun
from nncdbg.journal.connection import VERSION

VERSION_1 = Path(__file__).with_name("version_1.sql")
"""A file that was written with version 1: a run of 6 steps with two checkpoints, and a fork."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "run.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1.read_text())
    return path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def content(file: Journal) -> list[Any]:
    """Return all that the runs of the old file have."""
    return [
        [file.values(run, "loss")[1].tolist() for run in (1, 2)],
        [
            {name: tensor.tolist() for name, tensor in file.read(record).tensors.items()}
            for record in file.checkpoints(1)
        ],
        file.statistics(1, "%h")["max"].tolist(),
        [note.text for note in file.notes(1)],
        [event.step for event in file.events(1)],
        file.program(1),
        [record.step for record in file.checkpoints(2)],
        file.kept_values(1),
    ]


EXPECTED: list[Any] = [
    [[1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6], [1, 1 / 2, 1 / 3, 1 / 4, 7]],
    [{"state/n": [0, 1, 2], "state/w": [0.0] * 4}, {"state/n": [0, 1, 2], "state/w": [4.0] * 4}],
    [0, 1, 2, 3, 4, 5],
    ["high"],
    [5],
    "graph @main() {}\n",
    [0, 4],
    [],
]


def test_a_file_of_version_1_is_read_without_a_change(old: Path) -> None:
    before = old.read_bytes()
    with journal.open(old) as file:
        assert content(file) == EXPECTED
        assert file.sql("SELECT max(step) FROM steps")[1] == [(5,)]
    assert (old.read_bytes(), version(old)) == (before, 1)


def test_a_file_of_version_1_is_migrated_when_it_is_written(old: Path) -> None:
    reader = journal.open(old)
    assert content(reader) == EXPECTED
    with journal.open(old, write=True) as file:
        assert version(old) == VERSION == 2
        assert content(file) == EXPECTED
        with file.fork(1, 2, NewRun(kind="graph", name="new")) as run:
            run.step(2, values=[("loss", 3.0, "train")])
            run.keep_values(2, {"%h": np.arange(4.0)})
        assert file.value_of(3, "%h", 2)[0].tolist() == [0, 1, 2, 3]
    assert content(reader) == EXPECTED
    assert reader.value_of(3, "%h", 2)[0].tolist() == [0, 1, 2, 3]
    reader.close()


def test_a_newer_version_is_refused(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("PRAGMA user_version = 99")
    for write in (False, True):
        with pytest.raises(LoadError, match="schema version 99, and this nncdbg reads versions up to 2"):
            journal.open(old, write=write)


def test_a_file_of_version_2_without_its_tables_is_damaged(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(LoadError, match="the table kept_values is not as in schema version 2"):
        journal.open(old)
