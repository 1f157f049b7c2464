"""Tensors compressed with zstd."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from nncdbg import journal
from nncdbg.errors import LoadError, UsageError
from nncdbg.journal import NewRun

pytest.importorskip("zstandard")

GRAPH = NewRun(kind="graph", name="train.nnc")
TENSORS = {
    "zeros": np.zeros(700_000, np.float32),
    "random": np.random.default_rng(0).random(300_000),
    "scalar": np.float64(3),
    "empty": np.empty((0, 4), np.int32),
}


def _write(path: Path, compression: str) -> int:
    with journal.open(path, write=True, compression=compression) as file, file.start(GRAPH) as run:
        run.checkpoint(0, position={}, tensors=TENSORS)
    return path.stat().st_size


def test_tensors_are_smaller_and_the_same(tmp_path: Path) -> None:
    plain, compressed = _write(tmp_path / "plain.db", "none"), _write(tmp_path / "run.db", "zstd")
    assert compressed < plain - 2_000_000
    with journal.open(tmp_path / "run.db") as file:
        found = file.read(file.checkpoints(1)[0]).tensors
        assert sorted(found) == sorted(TENSORS)
        for name, tensor in TENSORS.items():
            np.testing.assert_array_equal(found[name], tensor)


def test_equal_tensors_are_stored_once_across_compressions(tmp_path: Path) -> None:
    _write(tmp_path / "run.db", "zstd")
    _write(tmp_path / "run.db", "none")
    with journal.open(tmp_path / "run.db") as file:
        assert file.sql("SELECT codec, count(*) FROM blobs GROUP BY codec")[1] == [("zstd", 4)]
        np.testing.assert_array_equal(file.read(file.checkpoints(2)[0]).tensors["random"], TENSORS["random"])


def test_without_the_library_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "run.db", "zstd")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with journal.open(tmp_path / "run.db") as file:
        record = file.checkpoints(1)[0]
        with pytest.raises(LoadError, match="compressed with zstd") as caught:
            file.read(record).tensors["random"]
        assert caught.value.hint == 'install it: pip install "nncdbg[journal]"'
    with pytest.raises(UsageError, match="needs the library zstandard"):
        journal.open(tmp_path / "new.db", write=True, compression="zstd")
    assert not (tmp_path / "new.db").exists()
    with pytest.raises(UsageError, match='unknown compression "gzip"'):
        journal.open(tmp_path / "new.db", write=True, compression="gzip")


def test_a_damaged_compressed_chunk_is_an_error(tmp_path: Path) -> None:
    import sqlite3

    _write(tmp_path / "run.db", "zstd")
    connection = sqlite3.connect(tmp_path / "run.db")
    connection.execute("UPDATE chunks SET data = zeroblob(length(data))")
    connection.commit()
    connection.close()
    with journal.open(tmp_path / "run.db") as file:
        tensors = file.read(file.checkpoints(1)[0]).tensors
        with pytest.raises(LoadError, match='"zeros" does not match its content hash'):
            tensors["zeros"]
