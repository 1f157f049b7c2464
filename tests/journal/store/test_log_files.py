"""The files of the write-ahead log beside a journal: which connection removes them, and which must not."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from nncdbg import journal
from nncdbg.errors import NncdbgError
from nncdbg.journal import NewRun
from nncdbg.journal.log_files import has_log

ALL = ["run.db", "run.db-shm", "run.db-wal"]


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.glob("run.db*"))


def write(path: Path, name: str = "r", values: int = 10) -> None:
    with journal.open(path, write=True) as file, file.start(NewRun(kind="graph", name=name)) as run:
        for step in range(values):
            run.value("loss", step, float(step))
            run.flush()


def read_often(path: Path, times: int) -> None:
    for _ in range(times):
        try:
            with journal.open(path) as file:
                for run in file.runs():
                    if file.tracks(run):
                        losses = file.values(run, "loss")[1].tolist()
                        assert losses == list(range(len(losses)))
        except NncdbgError as error:
            # Only before the file has tables.
            assert "no tables" in error.message or "empty" in error.message or "no such" in error.message  # noqa: PT017


def test_reading_leaves_no_files_and_does_not_change_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    write(path)
    before = path.read_bytes()
    with journal.open(path) as file:
        assert file.sql("SELECT count(*) FROM runs")[1] == [(1,)]
        assert files(tmp_path) == ALL
    assert files(tmp_path) == ["run.db"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "end", ["", "del file", "raise SystemExit(3)", "import os, signal; os.kill(os.getpid(), 9)"]
)
def test_a_program_that_reads_and_does_not_close_leaves_no_files_unless_killed(
    end: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.db"
    write(path)
    program = f"from nncdbg import journal\nfile = journal.open({str(path)!r}); file.runs()\n{end}"
    subprocess.run([sys.executable, "-c", program], check=False)
    assert files(tmp_path) == (ALL if "kill" in end else ["run.db"])
    with journal.open(path) as file:
        assert file.values(1, "loss")[1].tolist() == list(range(10))
    assert files(tmp_path) == ["run.db"], "the next reader removes them"


def test_a_reader_that_closes_first_leaves_the_log_of_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with journal.open(path, write=True) as file, file.start(NewRun(kind="graph", name="live")) as run:
        for step in range(20):
            run.value("loss", step, float(step))
            run.flush()
            program = f"from nncdbg import journal\nwith journal.open({str(path)!r}) as file: file.runs()"
            if step % 10 == 0:
                subprocess.run([sys.executable, "-c", program], check=True)
            with journal.open(path) as other:
                assert len(other.values(1, "loss")[1]) == step + 1
            assert files(tmp_path) == ALL
    assert files(tmp_path) == ["run.db"]


def test_a_reader_that_outlives_the_writer_removes_the_files(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    write(path)
    with journal.open(path) as file:
        file.runs()
        write(path, "second")
        assert files(tmp_path) == ALL
        assert not has_log(path), "the writer has copied its log"
        assert len(file.values(2, "loss")[1]) == 10
    assert files(tmp_path) == ["run.db"]


def test_a_log_of_a_killed_process_stays_as_it_is(tmp_path: Path) -> None:
    """It has the last commits; a command that reads does not write the journal."""
    path = tmp_path / "run.db"
    program = (
        "import os, sys; from nncdbg import journal; from nncdbg.journal import NewRun\n"
        "file = journal.open(sys.argv[1], write=True); run = file.start(NewRun(kind='graph', name='x'))\n"
        "run.value('loss', 0, 0.5); run.flush(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    before = [(tmp_path / name).read_bytes() for name in ("run.db", "run.db-wal")]
    for _ in range(2):
        with journal.open(path) as file:
            assert file.values(1, "loss")[1].tolist() == [0.5]
        assert [(tmp_path / name).read_bytes() for name in ("run.db", "run.db-wal")] == before
    write(path, "second")
    assert files(tmp_path) == ["run.db"]
    with journal.open(path) as file:
        assert file.values(1, "loss")[1].tolist() == [0.5]


def test_processes_that_open_and_close_at_once_lose_no_commit(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    context = get_context("spawn")
    readers = [context.Process(target=read_often, args=(path, 40)) for _ in range(2)]
    for process in readers:
        process.start()
    for number in range(12):
        write(path, f"r{number}", 3)
    for process in readers:
        process.join()
    assert [process.exitcode for process in readers] == [0, 0]
    with journal.open(path) as file:
        assert [file.values(run, "loss")[1].tolist() for run in file.runs()] == [[0, 1, 2]] * 12
    assert files(tmp_path) == ["run.db"]
