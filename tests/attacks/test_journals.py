"""Journals made to attack their reader: each command names the damage, ends, and leaves the file as it is."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg import journal
from nncdbg.stats import summarize
from nncdbg.terminal.main import main
from tests.attacks.journal_changes import by_sql, in_positions

PROGRAM = """#nncdbg 1
opset 18
state %w: f32[2] = [1.0, 2.0]
graph @train() -> (%l: f32[]) {
  %p: f32[2] = Mul(%w, %w)
  %l: f32[] = ReduceMean(%p, keepdims=0)
  %w.1: f32[2] = Mul(%w, 0.5)
  update %w = %w.1
  return %l
}
run @train steps 4
"""

SECONDS = 20
"""A reader takes a fraction of a second; one that does not end is stopped after these."""

READERS: dict[str, list[str]] = {
    "runs": ["runs", "FILE"],
    "list": ["FILE"],
    "runs --json": ["runs", "FILE", "--json", "--details"],
    "log": ["log", "FILE#2"],
    "log --json": ["log", "FILE", "--json"],
    "log --statistics": ["log", "FILE#1", "--statistics", "@train.%p"],
    "log --values": ["log", "FILE#1", "--values"],
    "sql": ["sql", "FILE"],
    "sql runs": ["sql", "FILE", "SELECT * FROM runs"],
    "sql values": ["sql", "FILE", "SELECT count(*) FROM track_values"],
    "sql chunks": ["sql", "FILE", "SELECT sum(length(data)) FROM chunks"],
    "diff": ["diff", "FILE#1", "FILE#2"],
    "diff parent": ["diff", "FILE#2"],
    "export": ["export", "FILE", "--tensorboard", "OUT"],
    "run": ["run", "FILE#1@2"],
    "run fork": ["run", "FILE@3", "--fork"],
    "print": ["print", "FILE#2@1"],
    "watch": ["watch", "FILE@nan"],
    "continue": ["run", "FILE#2", "--continue"],
}

CODES = {0, 1, 3}
"""A reader that does not read the damage may succeed, or find that the runs differ."""


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with a run, a fork of it that was interrupted, and rows in all tables."""
    folder = tmp_path_factory.mktemp("intact")
    model, path = folder / "train.nnc", folder / "run.db"
    model.write_text(PROGRAM)
    arguments = [
        "--journal",
        str(path),
        "--journal-values",
        "*",
        "--journal-statistics",
        "--checkpoint-every",
        "1",
    ]
    assert main(["run", str(model), *arguments]) == 0
    with journal.open(path, write=True) as file:
        first = file.run(1)
        new = journal.NewRun(
            kind="graph",
            name="fork",
            program=file.program(1),
            configuration=first.configuration,
            versions=first.versions,
            command=["nncdbg"],
        )
        checkpoint = file.read(file.checkpoints(1)[2])
        writer = file.fork(1, 2, new)
        writer.checkpoint(2, epoch=0, position=checkpoint.position, tensors=dict(checkpoint.tensors))
        writer.step(2, epoch=0, seconds=0.5, values=[("l", float("nan"), "train")])
        writer.statistics(2, "@train.%p", summarize(np.arange(3.0)))
        writer.event("nan", 2, "%l is nan")
        writer.note("a note", 2)
        writer.end("interrupted")
    return path


def _position(**changes: Any) -> Callable[[Path], None]:
    return in_positions(lambda position: position.update(changes))


def _endless(table: str) -> Callable[[Path], None]:
    """Let all pages of the tree of a table be one page: an interior page refers to itself many times."""

    def change(path: Path) -> None:
        connection = sqlite3.connect(path)
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        connection.close()
        with path.open("r+b") as file:
            file.seek((root - 1) * 16384)
            leaf = file.read(16384)
            pages = path.stat().st_size // 16384
            # The leaf moves to the end; levels of interior pages with 500 references each lead to it.
            file.seek(0, os.SEEK_END)
            file.write(leaf)
            child = pages + 1
            for level in range(8):
                cells = 500
                start = 16384 - cells * 5
                page = bytearray(16384)
                page[0] = 5
                page[3:5] = cells.to_bytes(2, "big")
                page[5:7] = start.to_bytes(2, "big")
                page[8:12] = child.to_bytes(4, "big")
                for cell in range(cells):
                    at = start + cell * 5
                    page[12 + 2 * cell : 14 + 2 * cell] = at.to_bytes(2, "big")
                    page[at : at + 4] = child.to_bytes(4, "big")
                    page[at + 4] = 1
                if level == 7:
                    file.seek((root - 1) * 16384)
                else:
                    child = pages + 2 + level
                    file.seek(0, os.SEEK_END)
                file.write(page)
            total = max(file.seek(0, os.SEEK_END) // 16384, 1)
            file.seek(28)
            file.write(total.to_bytes(4, "big"))

    return change


def _fifo(suffix: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        target = path.with_name(path.name + suffix)
        target.unlink(missing_ok=True)
        os.mkfifo(target)

    return change


def _unfinished_transaction(path: Path) -> None:
    """Add the journal of a transaction that would write the first page again."""
    head = bytes.fromhex("d9d505f920a163d7")
    page = path.read_bytes()[:16384]
    fields = (1, 0, path.stat().st_size // 16384, 512, 16384)
    header = head + b"".join(each.to_bytes(4, "big") for each in fields)
    checksum = sum(page[at] for at in range(16384 - 200, 0, -200)) & 0xFFFFFFFF
    body = (1).to_bytes(4, "big") + page + checksum.to_bytes(4, "big")
    path.with_name("run.db-journal").write_bytes(header.ljust(512, b"\0") + body)
    with path.open("r+b") as file:
        file.seek(18)
        file.write(b"\x01\x01")
    path.with_name("run.db-wal").write_bytes(b"")


DEEP = "[" * 100_000 + "]" * 100_000
NESTED = '{"a":' * 200 + "1" + "}" * 200
FORK = "UPDATE runs SET parent = {}, parent_step = {} WHERE run = {}"
VIEW = "CREATE VIEW more AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
TRIGGER = "CREATE TRIGGER more AFTER INSERT ON runs BEGIN DELETE FROM points; END"

ATTACKS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    # Links.
    "a run is its own parent": (by_sql(FORK.format(2, 1, 2)), {"runs", "log", "diff parent", "run"}),
    "two runs are parents of each other": (
        by_sql(FORK.format(2, 1, 1), FORK.format(1, 1, 2)),
        {"runs", "list", "runs --json", "log", "diff", "export", "run", "run fork", "continue"},
    ),
    "the parent is missing": (by_sql(FORK.format(99, 1, 2)), {"runs", "log"}),
    "a parent without a step": (by_sql(FORK.format(1, "NULL", 2)), {"runs", "log"}),
    "a step without a parent": (by_sql(FORK.format("NULL", 5, 2)), {"runs", "log"}),
    "the step of a fork is negative": (by_sql(FORK.format(1, -5, 2)), {"runs", "log", "sql runs"}),
    # Types and bounds of rows.
    "the number of steps is text": (by_sql("UPDATE runs SET steps = 'many'"), {"runs", "log", "sql runs"}),
    "the number of steps is 2^62": (by_sql(f"UPDATE runs SET steps = {1 << 62}"), {"runs", "log"}),
    "a run starts in the year 10^9": (
        by_sql("UPDATE runs SET started = 1e300"),
        {"runs", "log", "runs --json"},
    ),
    "a run ends at infinity": (by_sql("UPDATE runs SET ended = 9e999"), {"runs", "log"}),
    "the name is bytes": (by_sql("UPDATE runs SET name = x'ff00'"), {"runs", "log"}),
    "the process is beyond 32 bits": (
        by_sql("UPDATE runs SET process = 99999999999, status = 'running'"),
        {"runs", "log"},
    ),
    "the process is a group": (by_sql("UPDATE runs SET process = -1, status = 'running'"), {"runs", "log"}),
    "a step is negative": (by_sql("UPDATE steps SET step = -step - 1"), {"export"}),
    "a step is beyond 2^53": (
        by_sql(f"UPDATE points SET step = step + {1 << 60}"),
        {"runs", "log", "export"},
    ),
    "a number of a track is text": (by_sql("UPDATE points SET value = 'nan'"), {"runs", "log", "sql values"}),
    "a number of a track is bytes": (by_sql("UPDATE points SET value = x'00'"), {"runs", "log"}),
    "the time of an entry is text": (by_sql("UPDATE entries SET time = 'now'"), {"log", "watch"}),
    "the time of an entry is infinite": (by_sql("UPDATE entries SET time = -9e999"), {"log", "watch"}),
    "the name of a track is a number": (by_sql("UPDATE tracks SET name = x'00'"), {"runs", "log"}),
    "the seconds of a checkpoint are infinite": (
        by_sql("UPDATE checkpoints SET seconds = 9e999"),
        {"log", "run"},
    ),
    # Documents.
    "a configuration of 100,000 levels": (
        by_sql(f"UPDATE runs SET configuration = '{DEEP}'"),
        {"runs", "log"},
    ),
    "a configuration of 200 levels": (by_sql(f"UPDATE runs SET configuration = '{NESTED}'"), {"runs", "log"}),
    "a configuration that is a list": (by_sql("UPDATE runs SET configuration = '[1]'"), {"runs", "log"}),
    "a configuration that is no JSON": (by_sql("UPDATE runs SET configuration = '{'"), {"runs", "log"}),
    "a command with numbers": (by_sql("UPDATE runs SET command = '[1, 2]'"), {"runs", "log"}),
    "a number of 5,000 digits": (
        by_sql(f"""UPDATE runs SET configuration = '{{"a": {"1" * 5000}}}'"""),
        {"runs", "log"},
    ),
    "the settings have other types": (
        by_sql("""UPDATE runs SET configuration = '{"dims": 3, "seed": "x", "outputs": 5}'"""),
        {"run", "run fork"},
    ),
    "the files of inputs are numbers": (
        by_sql("""UPDATE runs SET configuration = '{"files": {"x": 5}}'"""),
        {"run", "run fork"},
    ),
    "the program is no text of a program": (by_sql("UPDATE programs SET text = 'graph {'"), {"run"}),
    # Positions.
    "a position of 100,000 levels": (
        by_sql(f"UPDATE checkpoints SET position = '{DEEP}'"),
        {"run", "run fork"},
    ),
    "a position far beyond the program": (_position(pc=10**9), {"run", "run fork"}),
    "a position with a negative place": (_position(pc=-1), {"run", "run fork"}),
    "an iteration beyond the run": (_position(iteration=10**12), {"run", "run fork"}),
    "a moment that is text": (_position(tick="soon"), {"run", "run fork"}),
    "slots beyond the frame": (_position(outer={"state/w": 10**6}), {"run", "run fork"}),
    "slots of tensors that are missing": (_position(outer={"state/none": 0}), {"run", "run fork"}),
    "slots that are a list": (_position(outer=[1]), {"run", "run fork"}),
    # Tensors.
    "a state of another tensor": (
        by_sql(
            "UPDATE checkpoint_tensors SET hash = (SELECT hash FROM checkpoint_tensors JOIN checkpoints "
            "USING (checkpoint) WHERE name = 'collected/l' AND step = 3) WHERE name = 'state/w'"
        ),
        {"run", "run fork"},
    ),
    "the content hash is too short": (by_sql("UPDATE checkpoint_tensors SET hash = x'00'"), {"run"}),
    "a tensor of 2^50 bytes": (by_sql(f"UPDATE blobs SET bytes = {1 << 50}"), {"run", "sql chunks"}),
    "a tensor of negative size": (by_sql("UPDATE blobs SET bytes = -1"), {"run", "sql chunks"}),
    "the head of a tensor has 100,000 levels": (
        by_sql(f"UPDATE blobs SET head = CAST('00000000{DEEP}' AS BLOB)"),
        {"run", "sql chunks"},
    ),
    "the head of a tensor is a number": (by_sql("UPDATE blobs SET head = 5"), {"run", "sql chunks"}),
    "an unknown compression": (by_sql("UPDATE blobs SET codec = 'other'"), {"run", "sql chunks"}),
    "chunks that are numbers": (by_sql("UPDATE chunks SET data = 5"), {"run", "sql chunks"}),
    # Kept values and statistics.
    "a kept value of an unknown codec": (by_sql("UPDATE kept_values SET codec = 'x'"), {"log --values"}),
    "a kept value of an unknown type": (by_sql("UPDATE kept_values SET dtype = 'str'"), {"log --values"}),
    "a kept value with a negative size": (by_sql("UPDATE kept_values SET shape = '[-1]'"), {"log --values"}),
    "a kept value of 100,000 axes": (by_sql(f"UPDATE kept_values SET shape = '{DEEP}'"), {"log --values"}),
    "statistics with too many rows": (
        by_sql("UPDATE statistics_chunks SET rows = 100000000000"),
        {"log --statistics"},
    ),
    "statistics that do not decompress": (
        by_sql("UPDATE statistics_chunks SET data = x'00'"),
        {"log --statistics"},
    ),
    # Objects of the schema, and the file.
    "a trigger": (by_sql(TRIGGER), set(READERS)),
    "a view that does not end": (by_sql(VIEW), set(READERS)),
    "an index of a journal's table": (by_sql("CREATE INDEX more ON points (value)"), set(READERS)),
    "a table that has no end": (_endless("programs"), set()),
    "runs that have no end": (_endless("runs"), {"runs", "list", "log", "run", "sql runs"}),
    "chunks that have no end": (_endless("chunks"), set()),
    "a named pipe": (_fifo(""), set(READERS)),
    "a named pipe as the log": (_fifo("-wal"), set(READERS)),
    "a named pipe as the journal of a transaction": (_fifo("-journal"), set(READERS)),
    "an unfinished transaction": (_unfinished_transaction, set(READERS)),
}


@pytest.fixture
def limited() -> Iterator[None]:
    """Stop a reader that does not end."""

    def stop(*_: object) -> None:
        raise AssertionError(f"the reader has not ended within {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _attacked(intact: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    folder.mkdir()
    path = Path(shutil.copy(intact, folder / "run.db"))
    change(path)
    return path


def _names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.usefixtures("limited")
def test_a_hostile_journal_is_reported_and_not_changed(
    attack: str, intact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, told = ATTACKS[attack]
    path = _attacked(intact, tmp_path / "files", change)
    problems, names = [], _names(path.parent)
    for reader, words in READERS.items():
        writes = "--fork" in words or "--continue" in words
        file = _attacked(intact, tmp_path / reader, change) if writes else path
        before = file.is_file() and file.read_bytes()
        arguments = [word.replace("FILE", str(file)).replace("OUT", str(tmp_path / "out")) for word in words]
        signal.alarm(SECONDS)
        code = main(arguments)
        signal.alarm(0)
        errors = capsys.readouterr().err
        if code not in ({3} if reader in told else CODES) or "Traceback" in errors:
            problems.append((reader, code, errors))
        if (code == 3 or not writes) and file.is_file() and file.read_bytes() != before:
            problems.append((reader, code, "the file has changed"))
    gc.collect()
    assert not problems
    assert _names(path.parent) == names
