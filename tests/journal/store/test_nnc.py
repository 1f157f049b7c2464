"""P8: the table `tensors` of nnc is read and written byte for byte."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from nncdbg import journal
from nncdbg.errors import LoadError, UsageError
from nncdbg.journal import NewRun, nnc

# The statements of ccv_nnc_tensor_write, as nnc executes them.
CREATE = (
    "CREATE TABLE IF NOT EXISTS tensors (name TEXT, type INTEGER, format INTEGER, datatype INTEGER, "
    "dim BLOB, data BLOB, PRIMARY KEY (name))"
)
REPLACE = (
    "REPLACE INTO tensors (name, type, format, datatype, dim, data) "
    "VALUES ($name, $type, $format, $datatype, $dim, $data)"
)
CPU_MEMORY, NCHW = 1, 1

ROWS: dict[str, tuple[int, tuple[int, ...], bytes]] = {
    "__resnet__[t-conv-0-0]": (0x04000, (2, 3), struct.pack("=6f", 0, 1.5, -2, 3, 4, float("inf"))),
    "__resnet__[t-conv-0-1]": (0x20000, (4,), struct.pack("=4e", 0, 1, 2, 0.5)),
    "t-f64": (0x10000, (1,), struct.pack("=d", 0.1)),
    "t-i32": (0x02000, (1, 2, 1), struct.pack("=2i", -1, 7)),
    "t-i64": (0x08000, (2,), struct.pack("=2q", -1, 1 << 40)),
    "t-u8": (0x01000, (1,) * 12, b"\xff"),
    "t-bf16": (0x80000, (2,), b"\x80\x3f\x00\x40"),
}


def _dim(sizes: tuple[int, ...]) -> bytes:
    return struct.pack("=12i", *sizes, *[0] * (12 - len(sizes)))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file that was written with sqlite3 alone."""
    connection = sqlite3.connect(tmp_path / "nnc.db")
    connection.execute(CREATE)
    for name, (datatype, sizes, data) in ROWS.items():
        connection.execute(REPLACE, (name, CPU_MEMORY, NCHW, datatype, _dim(sizes), data))
    connection.commit()
    connection.close()
    return tmp_path / "nnc.db"


def test_a_file_of_nnc_is_read_byte_for_byte(written: Path) -> None:
    tensors = nnc.read_tensors(written)
    assert sorted(tensors) == sorted(ROWS)
    for name, (_, sizes, data) in ROWS.items():
        assert (tensors[name].shape, tensors[name].tobytes()) == (sizes, data)
    np.testing.assert_array_equal(tensors["__resnet__[t-conv-0-0]"], [[0, 1.5, -2], [3, 4, np.inf]])
    assert tensors["t-bf16"].dtype == ml_dtypes.bfloat16
    assert tensors["t-bf16"].tolist() == [1.0, 2.0]


def test_a_file_is_written_as_nnc_writes_it(written: Path, tmp_path: Path) -> None:
    nnc.write_tensors(tmp_path / "ours.db", nnc.read_tensors(written))
    query = "SELECT name, type, format, datatype, dim, data FROM tensors ORDER BY name"
    rows = []
    for name in ("nnc.db", "ours.db"):
        connection = sqlite3.connect(tmp_path / name)
        rows.append(connection.execute(query).fetchall())
        rows.append(connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'tensors'").fetchall())
        connection.close()
    assert rows[0] == rows[2]
    assert rows[1] == rows[3]


def test_names_are_replaced_and_scalars_have_one_element(tmp_path: Path) -> None:
    nnc.write_tensors(tmp_path / "t.db", {"w": np.zeros(3, np.float32), "s": np.float32(2)})
    nnc.write_tensors(tmp_path / "t.db", {"w": np.ones((2, 2), np.float32).T})
    tensors = nnc.read_tensors(tmp_path / "t.db")
    assert tensors["s"].tolist() == [2.0]
    assert tensors["w"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_the_table_may_be_in_a_journal(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file:
        file.start(NewRun(kind="graph", name="train")).end()
    nnc.write_tensors(tmp_path / "run.db", {"w": np.ones(2)})
    assert nnc.read_tensors(tmp_path / "run.db")["w"].tolist() == [1, 1]
    with journal.open(tmp_path / "run.db") as file:
        assert file.run().status == "ended"
        assert file.sql("SELECT name, length(data) FROM tensors")[1] == [("w", 16)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("type = (0xf7217 << 32) | 1", "encoded with the codec 0xf7217"),
        ("datatype = 0x40000", "element type 0x40000"),
        ("data = x'0000'", r"2 bytes do not fill u8\[1, 1"),
        ("dim = x'00'", "its sizes or its type cannot be read"),
        ("type = 'text'", "its sizes or its type cannot be read"),
    ],
)
def test_tensors_that_cannot_be_read_are_named(written: Path, change: str, message: str) -> None:
    connection = sqlite3.connect(written)
    connection.execute(f"UPDATE tensors SET {change} WHERE name = 't-u8'")
    connection.commit()
    connection.close()
    with pytest.raises(LoadError, match=message) as caught:
        nnc.read_tensors(written)
    assert 'the tensor "t-u8"' in caught.value.message


def test_wrong_tensors_and_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        nnc.read_tensors(tmp_path / "missing.db")
    (tmp_path / "text.db").write_text("no database" * 100)
    with pytest.raises(LoadError, match="it is not an SQLite database"):
        nnc.read_tensors(tmp_path / "text.db")
    for tensor, message in [
        (np.zeros(2, np.int8), 'no element type for "w", which is i8'),
        (np.zeros((0, 2), np.float32), r"the sizes \[0, 2\]"),
        (np.zeros((1,) * 13, np.float32), "nnc has no tensor like"),
    ]:
        with pytest.raises(UsageError, match=message):
            nnc.write_tensors(tmp_path / "new.db", {"w": tensor})
    assert not (tmp_path / "new.db").exists()
    with journal.open(tmp_path / "run.db", write=True) as file:
        file.start(NewRun(kind="graph", name="train")).end()
    with pytest.raises(LoadError, match="has no table `tensors`"):
        nnc.read_tensors(tmp_path / "run.db")
