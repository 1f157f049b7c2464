"""Kills, full disks, read-only files, several processes: a clear error, or the last good state."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from nncdbg import journal
from nncdbg.errors import NncdbgError, RunError, UsageError
from nncdbg.journal import NewRun, connection, writing

pytestmark = pytest.mark.usefixtures("forked_processes")

GRAPH = NewRun(kind="graph", name="train.nnc")


def _kills(moments: int, seed: int) -> None:
    longest = "0.3" if os.environ["NNCDBG_QUARTER"] == "all" else "0.15"
    words = ["--moments", str(moments), "--seed", str(seed), "--longest", longest]
    command = [sys.executable, "-m", "tests.journal.store.kills", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all committed steps are exact" in done.stdout


def test_a_killed_training_keeps_all_committed_steps_and_restarts() -> None:
    """N12: kill -9 at some random moments; `kills.py` has the checks."""
    _kills(24, seed=0)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 26))
def test_500_kills(seed: int) -> None:
    _kills(20, seed)


@contextmanager
def _unprivileged() -> Iterator[Path]:
    """A folder of a user without rights, whose rights this process has in the block."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o777)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        folder = Path(name) / "folder"
        try:
            folder.mkdir()
            yield folder
        finally:
            folder.chmod(0o777)
            if root:
                os.seteuid(0)


def _write_one(path: Path, number: float = 1.5) -> None:
    with journal.open(path, write=True) as file, file.start(GRAPH) as run:
        run.value("loss", 0, number)


def test_a_read_only_file_and_folder_are_read_but_not_written() -> None:
    with _unprivileged() as folder:
        path = folder / "run.db"
        _write_one(path)
        path.chmod(0o444)
        folder.chmod(0o555)
        with journal.open(path) as file:
            assert file.values(1, "loss")[1].tolist() == [1.5]
            assert file.sql("SELECT count(*) FROM runs")[1] == [(1,)]
        with pytest.raises(UsageError, match="cannot write the journal .*cannot be written"):
            journal.open(path, write=True)
        with pytest.raises(UsageError, match="cannot write the journal"):
            journal.open(folder / "new.db", write=True)
        folder.chmod(0o777)
        path.chmod(0o000)
        with pytest.raises(UsageError, match="permission denied"):
            journal.open(path)


def test_a_log_in_a_folder_that_cannot_be_written_is_read_or_reported() -> None:
    """The committed steps are in the log; a reader that ignored the log would show an older state."""
    with _unprivileged() as folder:
        with journal.open(folder / "run.db", write=True) as file:
            run = file.start(GRAPH)
            run.value("loss", 0, 1.5)
            run.flush()
            (folder / "copy").mkdir()
            for name in ("run.db", "run.db-wal"):
                shutil.copy(folder / name, folder / "copy" / name)
        (folder / "copy").chmod(0o555)
        try:
            with pytest.raises(UsageError, match="was not closed") as caught:
                journal.open(folder / "copy" / "run.db")
            assert (
                caught.value.hint
                == "copy run.db and run.db-wal to a folder that can be written, and read them there"
            )
        finally:
            (folder / "copy").chmod(0o777)
        with journal.open(folder / "copy" / "run.db") as file:
            assert file.values(1, "loss")[1].tolist() == [1.5]


FULL = """
import resource, signal, sys
import numpy as np
from nncdbg import journal
from nncdbg.errors import NncdbgError
from nncdbg.journal import NewRun

limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
file = journal.open(sys.argv[1], write=True)
run = file.start(NewRun(kind="graph", name="full"))
committed = 0
try:
    for step in range(100):
        run.step(step)
        run.value("loss", step, 1.0 / (step + 1))
        run.checkpoint(step, position={}, tensors={"w": np.random.default_rng(step).random(50_000)})
        run.flush()
        committed = step + 1
except NncdbgError as error:
    print(type(error).__name__, error.exit_code, error.message, sep="|")
try:
    run.step(100)
except NncdbgError as error:
    print(type(error).__name__)
try:
    file.close()
except NncdbgError as error:
    print(type(error).__name__)
print(committed)
"""


def _check_full(path: Path, limit: int) -> None:
    command = [sys.executable, "-c", FULL, str(path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    first, second, third, committed = done.stdout.splitlines()
    kind, code, message = first.split("|")
    assert (kind, code, second, third) == ("RunError", "4", "RunError", "RunError")
    assert message.startswith(f"cannot write the journal {path}: ")
    assert int(committed) > 1


def _check_prefix(path: Path) -> None:
    """What was committed before the disk was full is exact."""
    with journal.open(path) as file:
        steps, losses = file.values(1, "loss")
        assert len(steps) > 1
        assert losses.tolist() == [1 / (step + 1) for step in steps.tolist()]
        for record in file.checkpoints(1):
            expected = np.random.default_rng(record.step).random(50_000)
            np.testing.assert_array_equal(file.read(record).tensors["w"], expected)
        assert file.run(1).status == "lost"


def test_a_limit_on_the_size_of_files_is_reported_and_the_file_stays_good(tmp_path: Path) -> None:
    _check_full(tmp_path / "run.db", 8 << 20)
    _check_prefix(tmp_path / "run.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_full_disk_is_reported_and_the_file_stays_good(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("this system does not let tests mount a disk")
    try:
        _check_full(disk / "run.db", 0)
        for name in ("run.db", "run.db-wal"):
            shutil.copy(disk / name, tmp_path / name)
    finally:
        subprocess.run(["umount", disk], check=True)
    _check_prefix(tmp_path / "run.db")


def _write_run(path: Path, name: str, steps: int) -> None:
    with journal.open(path, write=True) as file, file.start(NewRun(kind="graph", name=name)) as run:
        for step in range(steps):
            run.step(step)
            run.value("loss", step, float(step))
            if step % 10 == 0:
                run.checkpoint(
                    step, position={}, tensors={"w": np.full(10_000, step), "same": np.ones(10_000)}
                )
                run.flush()


def test_several_processes_write_one_file_at_once(tmp_path: Path) -> None:
    """Their transactions are short and follow each other, also when all create the file."""
    path = tmp_path / "run.db"
    context = get_context("spawn")
    processes = [context.Process(target=_write_run, args=(path, f"r{n}", 100)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    with journal.open(path) as file:
        assert sorted(run.name for run in file.runs()) == ["r0", "r1", "r2", "r3"]
        for run in file.runs():
            assert run.status == "ended"
            assert file.values(run, "loss")[1].tolist() == list(range(100))
            for record in file.checkpoints(run):
                assert np.all(file.read(record).tensors["w"] == record.step)
        assert file.sql("SELECT count(*) FROM blobs")[1] == [(11,)]


def test_two_runs_of_one_process_share_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    threads = [threading.Thread(target=_write_run, args=(path, f"r{n}", 50)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with journal.open(path) as file:
        assert [len(file.values(run, "loss")[0]) for run in file.runs()] == [50] * 3


def test_a_writer_waits_for_another_and_reports_a_lock_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WAIT", 0.2)
    path = tmp_path / "run.db"
    file = journal.open(path, write=True)
    run = file.start(GRAPH)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    run.step(0)
    with pytest.raises(RunError, match="another process has locked it"):
        run.flush()
    with pytest.raises(RunError, match="another process has locked it"):
        file.close()
    other.close()


def test_readers_see_only_complete_commits_while_a_run_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    process = get_context("spawn").Process(target=_write_run, args=(path, "live", 400))
    process.start()
    seen = [0]
    deadline = time.monotonic() + 60
    while process.is_alive() and time.monotonic() < deadline:
        try:
            with journal.open(path) as file:
                while process.is_alive() and time.monotonic() < deadline:
                    if file.runs() and file.tracks(1):
                        losses = file.values(1, "loss")[1]
                        assert losses.tolist() == list(range(len(losses)))
                        assert len(losses) >= seen[-1]
                        seen.append(len(losses))
                    for record in file.checkpoints(1)[-1:] if file.runs() else ():
                        assert np.all(file.read(record).tensors["w"] == record.step)
        except NncdbgError as error:
            # Only before the file has tables.
            assert seen == [0], error  # noqa: PT017
    process.join()
    assert process.exitcode == 0
    with journal.open(path) as file:
        assert len(file.values(1, "loss")[0]) == 400


def test_a_child_process_neither_writes_nor_harms_the_file(tmp_path: Path) -> None:
    """As a worker of a data loader: the connection of the parent stays good, the child is refused."""
    path = tmp_path / "run.db"
    with journal.open(path, write=True) as file:
        run = file.start(GRAPH)
        for step in range(20):
            run.step(step)
            run.value("loss", step, float(step))
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    for call in (lambda: run.value("loss", 99, 0.0), file.runs, run.flush, lambda: run.end()):
                        try:
                            call()
                        except UsageError as error:
                            assert "before the process forked" in error.message  # noqa: PT017
                        else:
                            os._exit(2)
                    file.close()
                    del run, file
                    with journal.open(path) as again:
                        assert len(again.runs()) == 1
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
        run.end()
        assert file.values(1, "loss")[1].tolist() == list(range(20))
        assert file.sql("PRAGMA table_list")[1]


def test_an_open_file_is_recognized_without_opening_it(tmp_path: Path) -> None:
    _write_one(tmp_path / "run.db")
    _write_one(tmp_path / "other.db")
    assert not connection.is_open(tmp_path / "run.db")
    with journal.open(tmp_path / "run.db"):
        assert connection.is_open(tmp_path / "run.db")
        assert not connection.is_open(tmp_path / "other.db")
        assert not connection.is_open(tmp_path / "missing.db")
    assert not connection.is_open(tmp_path / "run.db")


@pytest.mark.usefixtures("started_processes")
def test_a_program_that_ends_without_closing_commits_everything(tmp_path: Path) -> None:
    program = (
        "import sys; from nncdbg import journal; from nncdbg.journal import NewRun\n"
        "file = journal.open(sys.argv[1], write=True); run = file.start(NewRun(kind='graph', name='x'))\n"
        "[run.value('loss', n, n) for n in range(1000)]"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "run.db")], check=True)
    with journal.open(tmp_path / "run.db") as file:
        assert len(file.values(1, "loss")[0]) == 1000
        assert file.run(1).status == "lost"


def test_calls_wait_when_too_many_records_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_WAITING", 50)
    monkeypatch.setattr(writing, "MOST_BYTES", 1 << 20)
    with journal.open(tmp_path / "run.db", write=True) as file, file.start(GRAPH) as run:
        for step in range(500):
            run.value("loss", step, float(step))
            if step % 20 == 0:
                run.checkpoint(step, position={}, tensors={"w": np.full(100_000, step)})
            assert len(file._thread._waiting) <= 51  # type: ignore[union-attr]
        run.flush()
        assert len(file.values(1, "loss")[0]) == 500
        assert len(file.checkpoints(1)) == 25


@pytest.mark.usefixtures("started_processes")
def test_importing_nncdbg_does_not_import_sqlite() -> None:
    program = "import sys, nncdbg; sys.exit('sqlite3' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
