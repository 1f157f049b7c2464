"""The notes of a rank, read while it writes them."""

import os
import threading
import time

import pytest

from nncdbg.errors import UsageError
from nncdbg.process.rank_notes import (
    Collective,
    RankActivity,
    RankNotes,
    RankProcess,
    find_job,
    folder_of_job,
    jobs_folder,
    read_notes,
    remove_ended_jobs,
    reports_of_job,
)


def process(rank=0, *, pid=None, agent=1, ranks=2):
    return RankProcess(rank=rank, ranks=ranks, pid=pid or os.getpid(), agent=agent, script="train.py")


def call(number):
    op = "all_reduce" if number % 2 else "broadcast_with_a_longer_name"
    return Collective(
        group="", ranks=[0, 1], number=number, op=op, types=[f"f32[{number}]"], place="", at=number
    )


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_notes_are_read_back(tmp_path):
    notes = RankNotes(tmp_path, process())
    notes.note_collective(call(1))
    notes.note_status(RankActivity(seen=5.0, state="stopped", place="train.py:7", step=4))
    found = read_notes(notes.path)
    assert found is not None
    assert (found.process, found.collectives, found.exists) == (process(), [call(1)], True)
    assert (found.status.state, found.status.place, found.status.step) == ("stopped", "train.py:7", 4)


def test_latest_256_collectives_are_kept(tmp_path):
    notes = RankNotes(tmp_path, process())
    for number in range(1, 601):
        notes.note_collective(call(number))
    found = read_notes(notes.path)
    assert found is not None
    assert [each.number for each in found.collectives] == [*range(345, 601)]


def test_reader_sees_no_half_written_note(tmp_path):
    notes = RankNotes(tmp_path, process())
    ending = threading.Event()

    def write():
        number = 0
        while not ending.is_set():
            number += 1
            notes.note_collective(call(number))
            notes.note_status(RankActivity(seen=time.time(), place="x" * (number % 300), step=number % 300))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            found = read_notes(notes.path)
            assert found is not None
            assert len(found.status.place) == found.status.step
            assert found.collectives == [call(each.number) for each in found.collectives]
    finally:
        ending.set()
        writer.join()


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 4096, b"nonsense" * 400, b"\1\0\0\0\2\0\0\0{}" + b" " * 4000]
)
def test_other_files_are_no_notes(tmp_path, content):
    path = tmp_path / "rank0.notes"
    path.write_bytes(content)
    assert read_notes(path) is None


def test_only_the_last_job_of_a_port_counts(tmp_path):
    for rank in range(3):
        RankNotes(tmp_path, process(rank, agent=1, ranks=3))
    time.sleep(0.01)
    RankNotes(tmp_path, process(0, agent=2))
    assert [each.process.agent for each in reports_of_job(tmp_path)] == [2]


@pytest.mark.usefixtures("state")
def test_jobs_are_found_by_name():
    with pytest.raises(UsageError, match="there is no job with ranks"):
        find_job(None)
    RankNotes(jobs_folder() / "29500", process())
    assert find_job(None).name == find_job("29500").name == "29500"
    with pytest.raises(UsageError, match="there is no job 7 "):
        find_job("7")
    RankNotes(jobs_folder() / "29501", process())
    with pytest.raises(UsageError, match="there are several jobs: 29500, 29501"):
        find_job(None)


@pytest.mark.usefixtures("state")
def test_folders_of_ended_jobs_are_removed_but_the_own_one():
    gone = 2**22 + 1  # above the largest process id of Linux
    for name, pid in [("1", gone), ("2", gone), ("3", os.getpid())]:
        RankNotes(jobs_folder() / name, process(pid=pid))
    remove_ended_jobs(jobs_folder() / "2")
    assert sorted(each.name for each in jobs_folder().iterdir()) == ["2", "3"]


@pytest.mark.usefixtures("state")
def test_a_process_outside_of_torchrun_has_no_job():
    assert folder_of_job({"RANK": "1", "MASTER_PORT": "29500"}).name == "29500"
    for environment in (
        {},
        {"RANK": "1"},
        {"RANK": "x", "MASTER_PORT": "1"},
        {"RANK": "0", "MASTER_PORT": "../x"},
    ):
        with pytest.raises(UsageError, match="not a rank of a job"):
            folder_of_job(environment)
