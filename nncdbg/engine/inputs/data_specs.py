"""Data given as text: a NumPy file, an image, data to generate, a number or a list.

x.npy    batch.npz:x    photo.png:/255    zeros    normal[1,512]    16000    [[0.5, nan], [-inf, 1e-3]]
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nncdbg.engine.inputs.generated import GENERATED
from nncdbg.engine.inputs.image_specs import ImageFile, image_file, is_image_text
from nncdbg.engine.inputs.npy import Check, accept, load_array, load_from_archive
from nncdbg.errors import UsageError
from nncdbg.expression import evaluate, parse
from nncdbg.ir.records import Array
from nncdbg.text.lexemes import integer_of, name_text

FORMS = (
    f"FILE.npy, FILE.npz:KEY, FILE.png:STEPS, a number or list, or {'|'.join(GENERATED)} "
    "with sizes if needed: normal[1,512]"
)

_GENERATED = re.compile(rf"({'|'.join(GENERATED)})\s*(?:\[([^\]]*)\])?")
_LITERAL = re.compile(r"""[-+.\d\["']|(?i:true|false|nan|inf)\b""")
_FILE = re.compile(r"(?i)\.np[yz]$|\.npz:")


@dataclass(frozen=True, slots=True)
class Generated:
    """Data to generate: one of `GENERATED`, with its sizes if given."""

    kind: str
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A .npy file, or the array `key` of an .npz file (its only one if None)."""

    path: Path
    key: str | None = None

    def read(self, check: Check = accept) -> Array:
        """Return the array.  Raises LoadError for a file that cannot be read.

        `check` may refuse the array of an archive by its type and shape, before it is unpacked.
        """
        if self.path.suffix.lower() == ".npz":
            return load_from_archive(self.path, self.key, check)
        return load_array(self.path)


@dataclass(frozen=True, slots=True)
class Plain:
    """A number, a text or nested lists of these."""

    data: Any


def generated(text: str) -> Generated | None:
    """Parse ``zeros`` or ``normal[1,512]``; None for any other text.  Raises UsageError for wrong sizes."""
    found = _GENERATED.fullmatch(text.strip())
    if found is None:
        return None
    kind, sizes = found.groups()
    if sizes is None:
        return Generated(kind)
    listed = [size.strip() for size in sizes.split(",")] if sizes.strip() else []
    numbers = tuple(number for size in listed if (number := integer_of(size)) is not None and number >= 0)
    if len(numbers) != len(listed):
        raise UsageError(f'"{text}" has wrong sizes', hint=f"write sizes of at most 18 digits: {kind}[1,512]")
    return Generated(kind, numbers)


def data_file(text: str, folder: Path | None = None) -> DataFile | ImageFile | None:
    """Return a NumPy or image file by its suffix, relative to `folder`; None for any other text.

    Raises UsageError for an unknown image step.
    """
    if _FILE.search(text) is None:
        return image_file(text, folder)
    lower, path, key = text.lower(), text, None
    if ".npz:" in lower:
        cut = lower.rindex(".npz:") + len(".npz")
        path, key = text[:cut], text[cut + 1 :]
    return DataFile(folder / path if folder else Path(path), key)


def names_data(text: str) -> bool:
    """Return whether a text names generated data, or a file of data, such as ``zeros[2,3]`` or ``x.npy``."""
    return bool(_GENERATED.fullmatch(text) or _FILE.search(text) or is_image_text(text))


def read_spec(text: str, folder: Path | None = None) -> Generated | DataFile | ImageFile | Plain:
    """Parse any data text.  Raises UsageError for a text in none of the forms."""
    found = generated(text) or data_file(text, folder)
    if found is not None:
        return found
    if _LITERAL.match(text.strip()) is None:
        near = difflib.get_close_matches(text, GENERATED, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of: {FORMS}"
        raise UsageError(f'"{text}" is not valid data', hint=hint)
    value = evaluate(parse(text, lambda name: False), _NoValues())
    return Plain(value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value)


class _NoValues:
    """A scope without values, for numbers and lists."""

    def has(self, name: str) -> bool:
        return False

    def names(self) -> tuple[str, ...]:
        return ()

    def value(self, name: str) -> Array:
        raise UsageError(f"an input cannot refer to %{name_text(name)}")

    previous = value

    def variable(self, name: str) -> object:
        raise UsageError(f"an input cannot refer to ${name}")

    def variables(self) -> tuple[str, ...]:
        return ()

    def summary(self, array: Array) -> Any:
        raise UsageError("an input cannot use stats()")

    def derivative(self, wanted: object, vectors: object) -> Array:
        raise UsageError("an input cannot use a derivative")
