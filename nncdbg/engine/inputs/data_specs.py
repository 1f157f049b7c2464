"""Data given as text: a NumPy file, an image, data to generate, a number or a list.

x.npy    batch.npz:x    photo.png:/255    zeros    normal[1,512]    16000    [[0.5, nan], [-inf, 1e-3]]

The text of an image has the steps from its pixels to a tensor: photo.png:/127.5-1,resize=640x480,nhwc,bgr
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from nncdbg import dtypes
from nncdbg.engine.inputs.npy import Check, accept, load_array, load_from_archive
from nncdbg.engine.ops.valid_integers import Integers
from nncdbg.errors import UsageError
from nncdbg.expression import evaluate, parse
from nncdbg.ir.records import Array, TensorType
from nncdbg.text.lexemes import integer_of, name_text

LAYOUTS = ("nchw", "nhwc", "chw", "hwc", "hw")
IMAGE_SUFFIXES = ("png", "jpg", "jpeg", "bmp", "gif", "tif", "tiff", "webp")
STEPS = (
    "raw, /255, /127.5-1 or imagenet; resize, crop, resize=WxH or crop=WxH; nchw, nhwc, chw, hwc or hw; bgr"
)

_IMAGE = re.compile(rf"(?is)(.*\.(?:{'|'.join(IMAGE_SUFFIXES)}))(?::(.*))?")
_NUMBER = r"\d+(?:\.\d+)?"
_SCALE = re.compile(rf"/({_NUMBER})(?:-({_NUMBER}))?")
_FITTING = re.compile(r"(resize|crop)(?:=(\d{1,6})x(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class Linear:
    """Pixel values divided by `divisor`, then reduced by `offset`: ``/127.5-1``."""

    divisor: float
    offset: float = 0.0

    def __str__(self) -> str:
        return f"/{self.divisor:g}" + (f"-{self.offset:g}" if self.offset else "")


class Fitting(NamedTuple):
    """How an image is fitted to a size: stretched, or cropped after scaling; `size` None: the input's."""

    kind: Literal["resize", "crop"]
    size: tuple[int, int] | None
    """(width, height)"""


Scale = Linear | Literal["raw", "imagenet"]


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file, its steps as typed, and their settings; None follows from the input's type."""

    path: Path
    steps: tuple[str, ...] = ()
    scale: Scale | None = None
    fitting: Fitting | None = None
    layout: str | None = None
    bgr: bool = False


def image_file(text: str, folder: Path | None = None) -> ImageFile | None:
    """Return an image file by its suffix, relative to `folder`; None for any other text.

    Raises UsageError for an unknown or repeated step.
    """
    found = _IMAGE.fullmatch(text)
    if found is None:
        return None
    path = folder / found[1] if folder else Path(found[1])
    steps = tuple(step.strip() for step in found[2].split(",")) if found[2] is not None else ()
    fields: dict[str, Any] = {}
    for step in steps:
        parsed = _parsed(step.lower())
        if parsed is None:
            raise UsageError(f'"{text}": "{step}" is not a valid step', hint=_suggestion(step))
        for name in parsed:
            if name in fields:
                raise UsageError(
                    f'"{text}" has two steps of the same kind',
                    hint=f"use at most one step of each kind: {STEPS}",
                )
        fields.update(parsed)
    return ImageFile(path, steps, **fields)


def is_image_text(text: str) -> bool:
    """Return whether a text names an image file, with valid or invalid steps."""
    return _IMAGE.fullmatch(text) is not None


def _parsed(step: str) -> Mapping[str, Any] | None:
    """Return the fields of ImageFile that a step sets; None for an unknown step."""
    if linear := _SCALE.fullmatch(step):
        divisor = float(linear[1])
        return {"scale": Linear(divisor, float(linear[2] or 0))} if divisor else None
    if fitting := _FITTING.fullmatch(step):
        size = (int(fitting[2]), int(fitting[3])) if fitting[2] else None
        return {"fitting": Fitting(fitting[1], size)} if size is None or min(size) else None  # type: ignore[arg-type]
    return _WORDS.get(step)


_WORDS: Mapping[str, Mapping[str, Any]] = {
    **{word: {"scale": word} for word in ("raw", "imagenet")},
    **{layout: {"layout": layout} for layout in LAYOUTS},
    "bgr": {"bgr": True},
}


def _suggestion(step: str) -> str:
    near = difflib.get_close_matches(step.lower(), [*_WORDS, "resize", "crop", "/255", "/127.5-1"], n=1)
    return f"did you mean {near[0]}?" if near else f"the steps are {STEPS}"


_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

GENERATED = ("zeros", "ones", "normal", "uniform", "arange")
"""The kinds of data that a user can name."""


def generate(
    name: str, type_: TensorType, kind: str | None, seed: int, integers: Integers | None = None
) -> Array:
    """Return an array of the concrete type for the input `name`.

    `kind` is one of `GENERATED`; None draws by dtype: standard normal floats, `integers` (if None,
    0 to 9 as far as the dtype allows), fair bools, empty text.  The draw depends on the seed and the
    name only.  Raises UsageError for a kind that the dtype does not support.
    """
    assert type_.shape is not None
    shape = tuple(int(size) for size in type_.shape if size is not None)
    if math.prod(shape) > _MEMORY:
        raise UsageError(
            f"input %{name_text(name)} {type_} has {math.prod(shape)} elements, more than the "
            f"memory of this machine",
            hint="give it a smaller size",
        )
    if type_.dtype == "str":
        if kind not in (None, "zeros"):
            raise UsageError(
                f"input %{name_text(name)} has type str and cannot be filled with `{kind}`",
                hint="use an array of strings",
            )
        return np.full(shape, "", object)
    dtype = dtypes.NUMPY[type_.dtype]
    if kind == "arange":
        return np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    if kind in ("zeros", "ones"):
        return np.full(shape, kind == "ones").astype(dtype)
    if kind is None and integers is not None:
        if integers.exact is not None:
            return np.array(integers.exact).reshape(shape).astype(dtype)
        return _generator(seed, name).integers(integers.low, integers.high, shape).astype(dtype)
    whole = type_.dtype in dtypes.INTEGERS or type_.dtype == "bool"
    if kind == "normal" and whole:
        raise UsageError(
            f"input %{name_text(name)} {type_} cannot be filled with `normal`",
            hint="use `uniform` or `arange`",
        )
    return _drawn(type_.dtype, kind or ("uniform" if whole else "normal"), shape, _generator(seed, name))


def _generator(seed: int, name: str) -> np.random.Generator:
    """Return a generator that depends on the seed and the input's name only, not on other inputs."""
    key = hashlib.blake2b(f"{seed}:{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def _drawn(name: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draw standard normal or uniform [0, 1) floats; integers from 0 to at most 9; fair bools."""
    dtype = dtypes.NUMPY[name]
    if name in dtypes.INTEGERS or name == "bool":
        return np.asarray(rng.integers(0, _largest(name) + 1, shape)).astype(dtype)
    draw = rng.standard_normal if kind == "normal" else rng.random
    if name in dtypes.COMPLEX:
        return np.asarray(draw(shape) + 1j * draw(shape)).astype(dtype)
    precision = np.float64 if name == "f64" else np.float32
    return np.asarray(draw(shape, dtype=precision)).astype(dtype, copy=False)


def _largest(name: str) -> int:
    """Return the largest integer to draw for a dtype."""
    if name == "bool":
        return 1
    bits = int(name[1:])
    return min(9, 1 << (bits - (name[0] == "i")) - 1)


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
