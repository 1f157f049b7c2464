"""`dump`: the library for each format reads the written file back."""

from __future__ import annotations

import io
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from nncdbg.errors import UsageError
from nncdbg.presentation.character_images import MARK_COLORS, VIRIDIS
from nncdbg.presentation.png_images import png
from nncdbg.presentation.tensor_files import write_tensors

X = np.array([[1.5, -0.1, np.nan], [np.inf, 3e-7, -np.inf]], np.float32)


def test_npy_and_npz_store_the_same_arrays(tmp_path: Path) -> None:
    assert write_tensors(tmp_path / "x", {"x": X}) == tmp_path / "x.npy"
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X)
    write_tensors(tmp_path / "both.npz", {"file": X, "a/b": X[0]})
    with np.load(tmp_path / "both.npz") as archive:
        np.testing.assert_array_equal(archive["file"], X)
        np.testing.assert_array_equal(archive["a/b"], X[0])


@pytest.mark.parametrize("suffix", [".csv", ".txt"])
@pytest.mark.parametrize("array", [X, X[0], X[0, 0], np.arange(3), X.astype(np.float16)])
def test_text_reads_back_exactly(tmp_path: Path, suffix: str, array: np.ndarray) -> None:
    path = write_tensors(tmp_path / f"x{suffix}", {"x": array})
    read = np.loadtxt(path, dtype=array.dtype, delimiter="," if suffix == ".csv" else None)
    np.testing.assert_array_equal(read.reshape(np.shape(array)), array)


def test_txt_contains_every_matrix_of_a_tensor(tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    path = write_tensors(tmp_path / "x.txt", {"x": array})
    lines = path.read_text().splitlines()
    assert (lines[0], lines[1], lines[5]) == ("# x i64[2,3,4]", "# [0]", "# [1]")
    np.testing.assert_array_equal(np.loadtxt(path), array.reshape(6, 4))


def test_csv_quotes_strings(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "s.csv", {"s": np.array([["a,b", 'c"d']], object)})
    assert path.read_text() == '"a,b","c""d"\n'


@pytest.mark.parametrize(
    ("name", "tensors", "message"),
    [
        ("x.csv", {"x": np.zeros((2, 2, 2))}, "1 or 2 axes"),
        ("x.csv", {"x": X, "y": X}, "stores one tensor, not 2"),
        ("x.npy", {"s": np.array(["a"], object)}, "only tensors of numbers"),
        ("x.npz", {"s": [X, X]}, "only tensors of numbers"),
        ("x.png", {"s": np.array(["a"], object)}, "a picture needs numbers"),
        ("x.png", {"x": np.zeros((0, 3))}, "a picture needs numbers"),
        ("x.png", {"x": np.broadcast_to(np.int8(0), (1 << 27,))}, "too many for a picture"),
        ("x.txt", {"x": np.broadcast_to(np.int8(0), (1 << 27,))}, "too many for text"),
        ("none/x.png", {"x": X}, "cannot write"),
        (".", {"x": X}, "it is a folder"),
    ],
)
def test_tensors_that_a_format_cannot_store_are_errors_and_leave_no_file(
    tmp_path: Path, name: str, tensors: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        write_tensors(tmp_path / name, tensors)
    assert not list(tmp_path.iterdir())


def _pixels(array: np.ndarray) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png(array))))


def test_a_picture_marks_nan_and_infinities() -> None:
    pixels = _pixels(X)
    assert pixels.shape == (170, 255, 3)
    cell = pixels[40::85, 40::85]
    assert tuple(cell[0, 2]) == MARK_COLORS[0]
    assert tuple(cell[1, 0]) == MARK_COLORS[1]
    assert tuple(cell[1, 2]) == MARK_COLORS[2]
    assert tuple(cell[0, 1]) == VIRIDIS[0]
    assert tuple(cell[0, 0]) == VIRIDIS[-1]


def test_matrices_of_a_tensor_are_side_by_side_on_one_scale() -> None:
    array = np.zeros((4, 100, 100), ml_dtypes.bfloat16)
    array[3] = 1
    pixels = _pixels(array)
    assert pixels.shape == (201, 201, 3)
    assert tuple(pixels[0, 0]) == tuple(pixels[0, 150]) == VIRIDIS[0]
    assert tuple(pixels[150, 150]) == VIRIDIS[-1]
    assert tuple(pixels[100, 50]) == (255, 255, 255)


@pytest.mark.parametrize(
    "array", [np.float64(3), np.full(5, np.nan), np.array([1e308, -1e308]), np.arange(7) > 3]
)
def test_any_numeric_array_can_be_drawn(array: np.ndarray) -> None:
    assert _pixels(np.asarray(array)).ndim == 3


def test_files_that_cannot_be_written_are_errors_and_leave_no_draft(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "x.npy", tmp_path / "none" / "x.npy", tmp_path / f"{'n' * 300}.npy"):
        with pytest.raises(UsageError, match="cannot write"):
            write_tensors(path, {"x": X})
    with pytest.raises(UsageError, match="it is a folder"):
        write_tensors(tmp_path, {"x": X})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
