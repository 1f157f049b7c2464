"""NumPy files, never unpickled; a damaged file raises one clear error."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias
from zipfile import ZipFile

import numpy as np
from numpy.lib.npyio import NpzFile

from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.ir.records import Array
from nncdbg.process.threads import parsed

Check: TypeAlias = "Callable[[Array], object]"
"""Raises for an unusable array; its argument has the type and shape of the array, but no data."""

_PICKLES = "save a plain array: numpy.save(path, array); nncdbg never unpickles"

MAPPED = 1 << 26
"""Bytes from which a .npy file is mapped into memory, so that only the parts in use are read."""


def load_array(path: Path) -> Array:
    """Return the array of a .npy file, a large one read-only and mapped; LoadError if there is none."""
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size >= MAPPED and file.read(6) == b"\x93NUMPY":
            return parsed(lambda: np.load(path, mmap_mode="r", allow_pickle=False))
        loaded = parsed(lambda: _loaded(file))
        if isinstance(loaded, np.ndarray):
            return loaded
    raise LoadError(
        f"{path} is an archive of arrays, not one array",
        hint="rename the file to .npz, and add a key: FILE.npz:KEY",
    )


def _loaded(file: IO[bytes]) -> Any:
    file.seek(0)
    _header(file)  # Raises for a negative size, with which NumPy 2.0 reads an empty array.
    file.seek(0)
    return np.load(file, allow_pickle=False)


def accept(header: Array) -> None:
    """Accept an array of any type and shape."""


def load_from_archive(path: Path, key: str | None, check: Check = accept) -> Array:
    """Return an array of a .npz file; `key` None selects its only array.

    `check` raises for an unusable type or shape before any data is unpacked.  Raises LoadError,
    UsageError for the key, and the errors of `check`.
    """
    with _archive(path) as archive:
        names = list(archive.files)
        if key is None and len(names) == 1:
            key = names[0]
        if key not in names:
            what = "needs a key: FILE.npz:KEY" if key is None else f'has no array "{key}"'
            hint = choice(key or "", names) or "choose another file: it has no arrays"
            raise UsageError(f"{path} {what}", hint=hint)
        return _unpacked(path, archive, key, check)


def load_archive(path: Path, check: Check = accept) -> list[Array]:
    """Return every array of a .npz file in its order: a sequence.  Raises as `load_from_archive` does."""
    with _archive(path) as archive:
        return [_unpacked(path, archive, key, check) for key in archive.files]


def archive_names(path: Path) -> list[str]:
    """Return the names of the arrays in a .npz file, in its order; LoadError if there is none."""
    with _archive(path) as archive:
        return list(archive.files)


@contextmanager
def _archive(path: Path) -> Iterator[NpzFile]:
    with opened(path) as file:
        archive = parsed(lambda: _loaded(file))
        if isinstance(archive, np.ndarray):
            raise LoadError(
                f"{path} is one array, not an archive of named arrays",
                hint="save the array with numpy.savez(path, name=array)",
            )
        yield archive


def _unpacked(path: Path, archive: NpzFile, key: str, check: Check) -> Array:
    """Return an array of an archive after checking its header: a small file may unpack to any size."""
    zipped = archive.zip
    assert zipped is not None, "the archive is open"
    name = key if key in zipped.namelist() else f"{key}.npy"
    header, there = parsed(lambda: _promised(zipped, name))
    if header is None:
        hint = "save plain arrays: numpy.savez(path, x=x)"
        raise LoadError(f'"{key}" in {path} is not a plain array', hint=hint)
    if header.dtype.hasobject:
        raise LoadError(f'"{key}" in {path} contains Python objects', hint=_PICKLES)
    if header.nbytes > there:
        fact = f"its header requires {header.nbytes} bytes, but the archive has {there}"
        raise LoadError(f'"{key}" in {path} is truncated: {fact}')
    check(header)
    array: Array = parsed(lambda: archive[key])
    return array


def _promised(zipped: ZipFile, name: str) -> tuple[Array | None, int]:
    """Return the header of a member of an archive, and the bytes after it."""
    with zipped.open(name) as member:
        return _header(member), zipped.getinfo(name).file_size - member.tell()


_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""By version of the format.  Version 3 is for records, which a tensor cannot contain."""


def _header(file: IO[bytes]) -> Array | None:
    """Return an array with the type and shape of the one in a file, without data; None if there is none."""
    start = file.read(np.lib.format.MAGIC_LEN)
    reader = _READERS.get((start[-2], start[-1])) if start.startswith(np.lib.format.MAGIC_PREFIX) else None
    if reader is None:
        return None
    shape, _, dtype = reader(file)
    return np.broadcast_to(np.zeros((), dtype), shape)


@contextmanager
def opened(path: Path, kind: str = "a NumPy file", suffixes: str = ".npy or .npz") -> Iterator[IO[bytes]]:
    """Open a regular file; any failure while it is read becomes a LoadError that names the file."""
    try:
        # Opening a pipe or a device could block forever.
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise LoadError(f"{path} is not a regular file", hint=f"use a {suffixes} file")
        with path.open("rb") as file:
            yield file
    except NncdbgError:
        raise
    except FileNotFoundError:
        raise LoadError(f"{path} does not exist", hint=f"searched {path.parent.resolve()}") from None
    except IsADirectoryError:
        raise LoadError(f"{path} is a directory") from None
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise LoadError(f"{path} does not fit in memory") from error
    except Exception as error:
        # numpy.load and Pillow raise any of a dozen exceptions for a damaged file.
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            raise LoadError(
                f"{path} contains Python objects, or is not a NumPy file",
                hint=_PICKLES,
            ) from error
        raise LoadError(f"{path} is damaged or not {kind}", hint="write or download it again") from error


def choice(name: str, known: Iterable[str]) -> str | None:
    """Return a hint: the known name nearest to `name`, or all of them; None if there are none."""
    names = sorted(known)
    if not names:
        return None
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else "use one of: " + ", ".join(names)
