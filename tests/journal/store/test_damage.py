"""Damaged files: each call returns what was written, or raises an error; a number is never wrong."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg import journal, summarize
from nncdbg.errors import LoadError, NncdbgError
from nncdbg.journal import Journal, NewRun

FLIPS = 600


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed journal with rows of all kinds, and `open.db` with the same content, half in its log."""
    folder = tmp_path_factory.mktemp("damage")
    with journal.open(folder / "run.db", write=True) as file:
        new = NewRun(kind="graph", name="train", program="graph @main() {}\n" * 40, configuration={"lr": 0.1})
        with file.start(new) as run:
            for step in range(60):
                run.step(step, epoch=step // 10, seconds=step / 8)
                run.value("loss", step, math.inf if step == 3 else 1 / (step + 1))
                run.value("acc", step, step / 60, "test")
                run.statistics(step, "%h", summarize(np.arange(step + 1.0)))
                if step % 20 == 0:
                    tensors = {"state/w": np.full((50, 50), step, np.float32), "state/b": np.arange(3)}
                    run.checkpoint(step, epoch=step // 10, position={"step": step}, tensors=tensors)
                    run.keep_values(
                        step, {"%h": np.full((9, 9), step / 7), "%w": tensors["state/w"]}, codec="f16"
                    )
                    run.flush()
            run.note("high", 3)
        fork = file.fork(1, 30, NewRun(kind="graph", name="fork"))
        fork.value("loss", 30, 7.0)
        fork.statistics(30, "%h", summarize(np.ones(3)))
        fork.event("nan", 31, "%loss")
        fork.flush()
        for suffix in ("", "-wal"):
            shutil.copy(folder / f"run.db{suffix}", folder / f"open.db{suffix}")
        fork.end()
    return folder / "run.db"


def _tensors(file: Journal, run: int) -> list[Any]:
    found = [file.read(record) for record in file.checkpoints(run)]
    return [
        (point.position, [(name, tensor.tolist()) for name, tensor in sorted(point.tensors.items())])
        for point in found
    ]


def _list(arrays: Any) -> Any:
    return [array.tolist() for array in arrays] if isinstance(arrays, tuple) else arrays.tolist()


CALLS: dict[str, Callable[[Journal], Any]] = {
    "runs": lambda file: file.runs(),
    "program": lambda file: file.program(1),
    "steps": lambda file: repr(_list(file.steps(2))),
    "tracks": lambda file: file.tracks(2),
    "loss": lambda file: _list(file.values(2, "loss")),
    "acc": lambda file: _list(file.values(1, "acc", "test")),
    "statistics": lambda file: repr(_list(file.statistics(2, "%h"))),
    "checkpoints": lambda file: file.checkpoints(2),
    "tensors": lambda file: _tensors(file, 1),
    "kept values": lambda file: file.kept_values(1),
    "value": lambda file: [file.value_of(1, name, 20)[0].tolist() for name in ("%h", "%w")],
    "notes": lambda file: file.notes(1),
    "events": lambda file: file.events(2),
    "sql values": lambda file: file.sql("SELECT * FROM track_values ORDER BY run, name, step"),
    "sql statistics": lambda file: file.sql("SELECT sum(count), count(*) FROM statistics"),
    "sql sums": lambda file: file.sql("SELECT run, sum(seconds), count(*) FROM steps GROUP BY run"),
    "sql bytes": lambda file: file.sql("SELECT sum(bytes), sum(length(head)) FROM blobs"),
    "sql chunks": lambda file: file.sql("SELECT sum(length(data)), count(*) FROM chunks"),
    "sql runs": lambda file: file.sql("SELECT run, name, steps, configuration FROM runs"),
}


def _content(path: Path) -> dict[str, Any]:
    """Return what each call returns, or the text of its error."""
    try:
        with journal.open(path) as file:
            results = {}
            for name, call in CALLS.items():
                try:
                    results[name] = call(file)
                except NncdbgError as error:
                    results[name] = error
            return results
    except NncdbgError as error:
        return dict.fromkeys(CALLS, error)


def _wrong(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    return {
        name: result
        for name, result in found.items()
        if not isinstance(result, NncdbgError) and result != expected[name]
    }


def _copy(intact: Path, name: str, folder: Path) -> Path:
    for suffix in ("", "-wal"):
        source = intact.with_name(f"{name}{suffix}")
        if source.exists():
            shutil.copy(source, folder / f"copy.db{suffix}")
        else:
            (folder / f"copy.db{suffix}").unlink(missing_ok=True)
        (folder / "copy.db-shm").unlink(missing_ok=True)
    return folder / "copy.db"


def _places(content: bytes, page: int, chooser: random.Random) -> list[int]:
    """Return bytes to damage: half in headers of pages, half anywhere in bytes that are not zero."""
    used = [place for place in range(len(content)) if content[place]]
    heads = [start + offset for start in range(0, len(content), page) for offset in range(100)]
    return [chooser.choice(heads if n % 2 else used) for n in range(FLIPS)]


def test_each_flipped_bit_is_an_error_or_harmless(intact: Path, tmp_path: Path) -> None:
    expected = _content(intact)
    assert not any(isinstance(result, NncdbgError) for result in expected.values())
    content = intact.read_bytes()
    chooser = random.Random(0)
    detected = dict.fromkeys(CALLS, 0)
    for place in _places(content, 16384, chooser):
        bit = 1 << chooser.randrange(8)
        path = _copy(intact, "run.db", tmp_path)
        path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        found = _content(path)
        assert not _wrong(found, expected), (place, bit)
        for name, result in found.items():
            detected[name] += isinstance(result, LoadError)
    # The damage reaches each kind of rows.
    assert min(detected.values()) > 5, detected


def test_overwritten_ranges_are_errors_or_harmless(intact: Path, tmp_path: Path) -> None:
    expected = _content(intact)
    content = intact.read_bytes()
    chooser = random.Random(1)
    for _ in range(60):
        start, size = chooser.randrange(len(content)), chooser.choice([8, 512, 16384])
        path = _copy(intact, "run.db", tmp_path)
        path.write_bytes(content[:start] + chooser.randbytes(size) + content[start + size :])
        assert not _wrong(_content(path), expected), (start, size)


def test_a_truncated_file_is_an_error_or_complete(intact: Path, tmp_path: Path) -> None:
    expected = _content(intact)
    content = intact.read_bytes()
    chooser = random.Random(2)
    for length in [
        0,
        1,
        50,
        99,
        100,
        512,
        16384,
        len(content) - 1,
        *chooser.choices(range(len(content)), k=60),
    ]:
        path = _copy(intact, "run.db", tmp_path)
        path.write_bytes(content[:length])
        found = _content(path)
        assert not _wrong(found, expected), length
        assert any(isinstance(result, NncdbgError) for result in found.values()), length


@pytest.mark.parametrize("kind", ["flip", "truncate"])
def test_a_damaged_log_gives_an_earlier_state_or_an_error(intact: Path, tmp_path: Path, kind: str) -> None:
    """SQLite reads the log up to the last intact commit: each list is a beginning of the written one."""
    path = _copy(intact, "open.db", tmp_path)
    expected = _content(path)
    assert not any(isinstance(result, NncdbgError) for result in expected.values())
    log = intact.with_name("open.db-wal").read_bytes()
    chooser = random.Random(3)
    for _ in range(100):
        path = _copy(intact, "open.db", tmp_path)
        place = chooser.randrange(len(log))
        damaged = (
            bytes([log[place] ^ (1 << chooser.randrange(8))]) + log[place + 1 :] if kind == "flip" else b""
        )
        path.with_name("copy.db-wal").write_bytes(log[:place] + damaged)
        found = _content(path)
        for name in ("loss", "acc"):
            if not isinstance(found[name], NncdbgError):
                for part, whole in zip(found[name], expected[name], strict=True):
                    beginning = whole[: len(part) - 1]
                    assert part[: len(beginning)] == beginning
        for name in ("notes", "tracks"):
            if not isinstance(found[name], NncdbgError):
                assert found[name] == expected[name][: len(found[name])]
        if not isinstance(found["tensors"], NncdbgError):
            assert found["tensors"] == expected["tensors"][: len(found["tensors"])]


def test_a_changed_row_is_reported_with_its_table(intact: Path, tmp_path: Path) -> None:
    import sqlite3

    changes = {
        "UPDATE points SET value = value + 1 WHERE step = 9": ("loss", "points"),
        "DELETE FROM points WHERE step = 9": ("loss", "points"),
        "UPDATE steps SET epoch = 0": ("steps", "steps"),
        "UPDATE runs SET name = 'other'": ("runs", "runs"),
        "UPDATE entries SET text = 'low'": ("notes", "entries"),
        "UPDATE checkpoints SET step = 1 WHERE step = 20": ("checkpoints", "checkpoints"),
        "DELETE FROM checkpoint_tensors WHERE name = 'state/b'": ("tensors", "checkpoint_tensors"),
        "UPDATE programs SET text = 'graph'": ("program", "programs"),
        "INSERT INTO tracks (run, name, part) VALUES (1, 'more', 'train')": ("tracks", "tracks"),
    }
    for change, (call, table) in changes.items():
        path = _copy(intact, "run.db", tmp_path)
        connection = sqlite3.connect(path)
        connection.execute(change)
        connection.commit()
        connection.close()
        with journal.open(path) as file, pytest.raises(LoadError) as caught:
            CALLS[call](file)
        assert f"rows of the table {table} do not match" in caught.value.message


def test_a_changed_tensor_is_reported_by_name(intact: Path, tmp_path: Path) -> None:
    import sqlite3

    path = _copy(intact, "run.db", tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE chunks SET data = zeroblob(length(data)) WHERE length(data) > 1000")
    connection.commit()
    connection.close()
    with journal.open(path) as file:
        tensors = file.read(file.checkpoints(1)[1]).tensors
        assert tensors["state/b"].tolist() == [0, 1, 2]
        with pytest.raises(LoadError, match='"state/w" does not match its content hash'):
            tensors["state/w"]
