"""Image files as input data: a text with the file's name and the steps from its pixels to a tensor.

photo.png    photo.png:/255    photo.jpg:imagenet,crop    photo.png:/127.5-1,resize=640x480,nhwc,bgr
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nncdbg.errors import UsageError

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
