"""NumPy files, never unpickled; a damaged one gives one clear reason."""

from __future__ import annotations

import difflib
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from nncdbg.engine.errors import LoadError, NncdbgError, UsageError
from nncdbg.engine.graph import Array

MAPPED = 1 << 26
"""Bytes from which a .npy file is mapped into memory instead of read: only what is looked at is read then."""


def load_array(path: Path) -> Array:
    """The array of a .npy file, a large one read-only and as the file is; LoadError if there is none."""
    with _opened(path) as file:
        if os.fstat(file.fileno()).st_size >= MAPPED and file.read(6) == b"\x93NUMPY":
            return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        file.seek(0)
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
    raise LoadError(
        f"{path} is an archive of arrays", hint="give it the suffix .npz, and a key: FILE.npz:KEY"
    )


def read_part(part: Array) -> Array:
    """The elements of a small part of an array, copied if they are of a mapped file.

    Then only the pages that they stand in are read: by default the system reads on for megabytes, as
    suits a pass over all of it.
    """
    pages: Any = part
    of_file = False
    while isinstance(pages, np.ndarray):
        of_file |= isinstance(pages, np.memmap)
        pages = pages.base
    if not of_file or not isinstance(pages, mmap.mmap) or not part.size:
        return part
    low, high = np.lib.array_utils.byte_bounds(part)
    origin = np.frombuffer(pages, np.uint8).ctypes.data
    start = (low - origin) // mmap.PAGESIZE * mmap.PAGESIZE
    where = (start, high - origin - start)
    pages.madvise(mmap.MADV_RANDOM, *where)
    try:
        return np.array(part)
    finally:
        pages.madvise(mmap.MADV_NORMAL, *where)


def load_from_archive(path: Path, key: str | None) -> Array:
    """An array of a .npz file; `key` None takes the only one.  LoadError, or UsageError for the key."""
    with _opened(path) as file:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise LoadError(f"{path} is one array, not an archive", hint="give it the suffix .npy")
        names = list(archive.files)
        if key is None and len(names) == 1:
            key = names[0]
        if key not in names:
            what = "needs a key: FILE.npz:KEY" if key is None else f'has no array "{key}"'
            raise UsageError(f"{path} {what}", hint=choice(key or "", names))
        array: Array = archive[key]
        return array


def load_archive(path: Path) -> list[Array]:
    """Every array of a .npz file in its order: a sequence; LoadError if there is none."""
    with _opened(path) as file:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise LoadError(f"{path} is one array, not an archive", hint="give it the suffix .npy")
        return [archive[key] for key in archive.files]


def archive_names(path: Path) -> list[str]:
    """The names of the arrays in a .npz file, in its order; LoadError if there is none."""
    with _opened(path) as file:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise LoadError(f"{path} is one array, not an archive", hint="give it the suffix .npy")
        return list(archive.files)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The open file; what goes wrong while it is read is a LoadError in a user's words."""
    try:
        with path.open("rb") as file:
            yield file
    except NncdbgError:
        raise
    except FileNotFoundError:
        raise LoadError(f"{path} does not exist", hint=f"looked in {path.parent.resolve()}") from None
    except IsADirectoryError:
        raise LoadError(f"{path} is a directory") from None
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:
        # numpy.load has no exception of its own for a damaged file: it may be any of a dozen.
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            raise LoadError(
                f"{path} holds Python objects, or is no NumPy file",
                hint="nncdbg never unpickles; save a plain array: numpy.save(path, array)",
            ) from error
        raise LoadError(f"{path} is damaged or no NumPy file: {error}") from error


def choice(name: str, known: Iterable[str]) -> str:
    """A hint: the known name that is nearest to `name`, or all of them."""
    names = sorted(known)
    if not names:
        return "there is none"
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else "there is " + ", ".join(names)
