"""Image files as tensors: the input's type and explicit steps define the conversion of the pixels.

Everything in the header (pixel count, layout, size) is checked before the pixels are decoded.
Color conversions and scaling filters are Pillow's.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nncdbg import dtypes
from nncdbg.engine.inputs.data_specs import LAYOUTS, Fitting, ImageFile, Linear
from nncdbg.engine.inputs.npy import opened
from nncdbg.errors import InputError, LoadError, UsageError
from nncdbg.ir.records import Array, Dim, TensorType
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 1 << 26
"""The most pixels of an image, both in the file and after resizing."""

CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's modes by number of channels."""

_KINDS = {"1": "black and white", "L": "gray", "LA": "gray with alpha", "P": "palette", "I;16": "16-bit gray"}
_SIXTEEN_BITS = re.compile(r";16[BLN]")
"""In Pillow's name of the stored layout; BGR;16 has 16 bits for all three channels."""
_ORIENTATION = 0x0112
"""The EXIF tag; values from 5 on swap width and height."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of a conversion: layout, number of channels and (width, height) of the tensor.

    `kind` names its pixels, `scale` the conversion of their values; `upright` is the (width, height) of
    the image as displayed.
    """

    header: ImageHeader
    dtype: str
    layout: str
    channels: int
    kind: str
    upright: tuple[int, int]
    size: tuple[int, int]
    scale: str


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """An opened image that is not decoded, and the value that it is for."""

    name: str
    type_: TensorType | None
    file: ImageFile
    image: Image

    def plan(self) -> Plan:
        """Return the plan.  Raises InputError for an image or steps that do not fit the type."""
        dtype, layout = self._dtype(), self._layout()
        axes = dict(zip(layout, self._shape() or [None] * len(layout), strict=True))
        channels, kind = self._channels(axes), self._kind()
        upright, fixed = self._upright(), (axes.get("w"), axes.get("h"))
        resized = "" if self.file.fitting or _fits(upright, fixed) else _step("resize", upright, fixed)
        scale = self._scale(dtype, channels, resized)
        size = self._size(upright, fixed)
        return Plan(self, dtype, layout, channels, kind, upright, size, scale)

    def refused(self, fact: str, hint: str) -> InputError:
        title = f"%{name_text(self.name)}: {self.type_}" if self.type_ else f"%{name_text(self.name)}"
        return InputError(f"cannot convert {self.file.path.name} to {title}: {fact}", hint=hint)

    def _with(self, *steps: str) -> str:
        """Return the user's text with more steps."""
        return f"{self.file.path.name}:{','.join((*self.file.steps, *steps))}"

    def _dtype(self) -> str:
        if self.type_ is None:
            raise self.refused("its type is not known", "use a .npy file")
        dtype = self.type_.dtype
        if dtype not in dtypes.FLOATS | dtypes.INTEGERS:
            raise self.refused(f"pixels cannot be {dtype}", "use a .npy file")
        return dtype

    def _shape(self) -> tuple[Dim, ...] | None:
        return self.type_.shape if self.type_ is not None else None

    def _layout(self) -> str:
        """Return the given layout, else the only one with 1, 3 or 4 channels on its channel axis."""
        shape, wanted = self._shape(), self.file.layout
        ranked = [layout for layout in LAYOUTS if shape is None or len(layout) == len(shape)]
        if not ranked:
            raise self.refused(
                f"an image has 2 to 4 axes, not {len(shape or ())}", "use a .npy file of that shape"
            )
        if wanted is not None:
            if wanted not in ranked:
                raise self.refused(f"{wanted} has {len(wanted)} axes", f"choose {' or '.join(ranked)}")
            return wanted
        fitting = [
            layout
            for layout in ranked
            if shape is not None and ("c" not in layout or shape[layout.index("c")] in CHANNELS)
        ]
        if len(fitting) != 1:
            fact = "its shape does not determine the axis of the channels"
            raise self.refused(fact, f"add the layout: {' or '.join(map(self._with, fitting or ranked))}")
        return fitting[0]

    def _channels(self, axes: dict[str, Dim]) -> int:
        batch, channels = axes.get("n"), axes.get("c", 1)
        if isinstance(batch, int) and batch != 1:
            raise self.refused(
                f"one image is a batch of 1, not {batch}", f"use a .npy file with {batch} images"
            )
        if not isinstance(channels, int):
            return 1 if self.image.mode in ("1", "L", "I;16") else 3
        if channels not in CHANNELS:
            raise self.refused(f"an image has 1, 3 or 4 channels, not {channels}", "check the layout")
        return channels

    def _kind(self) -> str:
        """Return the kind of pixels.  Refuses kinds that Pillow would reduce, and multi-image files."""
        mode, frames = self.image.mode, getattr(self.image, "n_frames", 1)
        if frames > 1 and self.image.format != "MPO":
            # MPO: a phone's photo, followed by smaller or other views.
            raise self.refused(f"it has {frames} images", "save one of them as .png")
        if mode in ("I", "F"):
            raise self.refused("it has 32-bit pixels", "convert it to .npy with numpy.save")
        tiles = getattr(self.image, "tile", None)
        raw = str(tiles[0].args) if tiles else ""
        if _SIXTEEN_BITS.search(raw) and not self.deep:
            raise self.refused("it has 16-bit colors", "convert it to 8 bits, or to .npy with numpy.save")
        return _KINDS.get("I;16" if self.deep else mode, mode)

    @property
    def deep(self) -> bool:
        return self.image.mode.startswith("I;16")

    @property
    def greatest(self) -> int:
        """The value of white."""
        return 65535 if self.deep else 255

    def _upright(self) -> tuple[int, int]:
        width, height = self.image.size
        return (height, width) if self.orientation() >= 5 and not self.turns_itself else (width, height)

    def orientation(self) -> int:
        from PIL import Image

        # The method of PNG files decodes the image first.
        return int(Image.Image.getexif(self.image).get(_ORIENTATION, 1))

    @property
    def turns_itself(self) -> bool:
        """Return whether Pillow turns the image upright by itself."""
        return self.image.format == "TIFF"

    def _size(self, now: tuple[int, int], fixed: tuple[Dim, Dim]) -> tuple[int, int]:
        """Return the (width, height) of the tensor: the image's, or that of `resize` or `crop`."""
        fitting = self.file.fitting
        width, height = fixed
        if fitting is None:
            size = now
        elif fitting.size is not None:
            size = fitting.size
        elif isinstance(width, int) and isinstance(height, int):
            size = (width, height)
        else:
            hint = f"add it, for example {fitting.kind}=224x224"
            raise self.refused(f"{fitting.kind} needs a width and a height", hint)
        if not _fits(size, fixed):
            sides = "x".join(str(each) if isinstance(each, int) else "any" for each in fixed)
            fact = f"the image is {by(size)}, but the input needs {sides} (width x height)"
            if fitting is not None:
                raise self.refused(fact.replace("the image", fitting.kind), f"write {fitting.kind} alone")
            stretched, cut = (self._with(_step(kind, now, fixed)) for kind in ("resize", "crop"))
            raise self.refused(
                fact, f"use {stretched} to stretch it, or {cut} to keep the ratio and cut the edges"
            )
        if not 0 < size[0] * size[1] <= MOST_PIXELS:
            raise self.refused(f"{by(size)} is not 1 to {MOST_PIXELS:,} pixels", "choose another size")
        return size

    def _scale(self, dtype: str, channels: int, resized: str) -> str:
        """Describe the scale.  Refuses values that the dtype cannot hold, and `bgr` without 3 channels.

        `resized` is another step that the image needs, empty if its size fits.
        """
        if self.file.bgr and channels != 3:
            raise self.refused(f"bgr needs 3 channels, not {channels}", "remove it")
        scale, white = self.file.scale, self.greatest
        if dtype in dtypes.INTEGERS:
            low, high = dtypes.integer_range(dtype)
            if scale not in (None, "raw"):
                raise self.refused(f"{dtype} pixels cannot be scaled with {scale}", "use raw")
            if high < white:
                raise self.refused(
                    f"pixels are 0..{white}, but {dtype} represents {low}..{high}", "use a .npy file"
                )
        elif scale is None:
            choices = [(f"/{white}", "0..1"), (f"/{white / 2:g}-1", "-1..1"), ("raw", f"0..{white}")]
            if channels == 3:
                choices.insert(1, ("imagenet", "mean and std"))
            more = [resized] if resized else []
            listed = ", ".join(f"{self._with(step, *more)} ({what})" for step, what in choices)
            raise self.refused(f"the scale from 0..{white} to {dtype} is missing", f"use one of: {listed}")
        elif scale == "imagenet" and channels != 3:
            raise self.refused(f"imagenet needs 3 channels, not {channels}", f"use /{white} or raw")
        elif scale == Linear(255) and self.deep:
            raise self.refused("its values are 0..65535", "use /65535")
        return f"raw 0..{white}" if scale in (None, "raw") else str(scale)


def _fits(size: tuple[int, int], fixed: tuple[Dim, Dim]) -> bool:
    """Return whether a (width, height) matches the fixed sizes of the input."""
    return all(
        not isinstance(needed, int) or needed == given for needed, given in zip(fixed, size, strict=True)
    )


def _step(kind: str, now: tuple[int, int], fixed: tuple[Dim, Dim]) -> str:
    """Return `resize` or `crop` to the fixed sizes; a size that is not fixed keeps the image's ratio."""
    width, height = fixed
    if isinstance(width, int) and isinstance(height, int):
        return kind
    if isinstance(width, int):
        return f"{kind}={by((width, max(1, round(now[1] * width / now[0]))))}"
    assert isinstance(height, int)
    return f"{kind}={by((max(1, round(now[0] * height / now[1])), height))}"


def by(size: tuple[int, int]) -> str:
    """Format a size as ``640x480``."""
    return f"{size[0]}x{size[1]}"


# Some Pillow readers start other programs (EPS); none of these do.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
_CHANNEL_NAMES = {"L": "gray", "RGB": "RGB", "RGBA": "RGBA"}
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the channels R, G and B in 0..1, as in torchvision's pretrained models."""


class ReadImage(NamedTuple):
    """A tensor made from an image, and the steps that were applied, for the user."""

    array: Array
    words: str


def read_image(name: str, type_: TensorType | None, file: ImageFile) -> ReadImage:
    """Return an image as a tensor of the dtype and shape of `type_`, for the input or value %`name`.

    Raises InputError for an image or steps that do not fit the type, LoadError for a file that is not an
    image, is damaged or has more than `MOST_PIXELS` pixels, UsageError without Pillow.
    """
    with _opened_image(file) as image:
        plan = ImageHeader(name, type_, file, image).plan()
        words = [file.path.name, f"{image.width}x{image.height} {plan.kind}"]
        array = _arranged(_scaled(_pixels(plan, words), plan), plan.layout)
    words += [plan.scale, *(["BGR"] if file.bgr else []), plan.layout.upper()]
    return ReadImage(array, ", ".join(words))


@contextmanager
def _opened_image(file: ImageFile) -> Iterator[Image]:
    """Open an image without decoding it."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UsageError(
            f"{file.path.name} needs Pillow, which is not installed",
            hint=f"run {sys.executable} -m pip install pillow",
        ) from None
    with opened(file.path, "an image", ".png or .jpg") as stream, warnings.catch_warnings():
        # Pillow only warns about large and damaged files, which are errors here.
        warnings.simplefilter("ignore")
        try:
            image = Image.open(stream, formats=_FORMATS)
        except Image.DecompressionBombError:
            raise _too_large(file, "its header has") from None
        except UnidentifiedImageError:
            raise LoadError(
                f"{file.path} is not an image", hint=f"use one of these formats: {', '.join(_FORMATS)}"
            ) from None
        with image:
            if image.width * image.height > MOST_PIXELS:
                raise _too_large(file, f"{image.width}x{image.height} is")
            yield image


def _too_large(file: ImageFile, fact: str) -> LoadError:
    return LoadError(f"{file.path}: {fact} more than {MOST_PIXELS:,} pixels", hint="resize the image first")


def _pixels(plan: Plan, words: list[str]) -> Array:
    """Return the pixels, u8 or u16 of [height, width, channels]; append each conversion to `words`."""
    from PIL import ImageOps

    header, image = plan.header, plan.header.image
    if header.orientation() != 1:
        image = image if header.turns_itself else ImageOps.exif_transpose(image)
        words.append("turned upright (EXIF)")
    if not header.deep:
        image = _converted(image, plan, words)
    if plan.size != plan.upright:
        image = _resized(image, header.file.fitting, plan.size, words)
    pixels: Array = np.asarray(image)
    if pixels.ndim == 3:
        return pixels
    if plan.channels == 4:
        raise header.refused("it has no alpha channel", "use a .npy file")
    if plan.channels == 3:
        words.append("repeated in 3 channels")
    return np.repeat(pixels[..., None], plan.channels, axis=-1)


def _converted(image: Image, plan: Plan, words: list[str]) -> Image:
    """Return the image in the mode of the plan's channels.  Refuses transparent pixels."""
    mode = CHANNELS[plan.channels]
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        if plan.channels != 4:
            if image.getchannel("A").getextrema() != (255, 255):
                raise plan.header.refused("it has transparent pixels", "put it on a background first")
            words.append("opaque alpha removed")
            image = image.convert("RGB")
    elif plan.channels == 4:
        raise plan.header.refused("it has no alpha channel", "use a .npy file")
    if image.mode != mode:
        words.append(f"converted to {_CHANNEL_NAMES[mode]}")
        image = image.convert(mode)
    return image


def _scaled(pixels: Array, plan: Plan) -> Array:
    """Return the pixels in the dtype and on the scale of the plan."""
    header, file = plan.header, plan.header.file
    values: Any = pixels
    if file.scale not in (None, "raw"):
        # Smaller floats are rounded once, at the end.
        real = np.float64 if plan.dtype == "f64" else np.float32
        values = pixels.astype(real)
        if isinstance(file.scale, Linear):
            values = values / real(file.scale.divisor) - real(file.scale.offset)
        else:
            values = values / real(header.greatest)
            values = (values - np.array(_MEAN, real)) / np.array(_DEVIATION, real)
    if file.bgr:
        values = values[..., ::-1]
    with np.errstate(over="ignore"):
        scaled: Array = values.astype(dtypes.NUMPY[plan.dtype])
    if plan.dtype in dtypes.FLOATS and not np.isfinite(scaled).all():
        raise header.refused(f"{plan.dtype} cannot represent all its values", f"use /{header.greatest}")
    return scaled


def _resized(image: Image, fitting: Fitting | None, size: tuple[int, int], words: list[str]) -> Image:
    """Return the image in another size, by a bilinear filter that averages when it shrinks."""
    from PIL import ImageOps
    from PIL.Image import Resampling

    assert fitting is not None, "only `resize` and `crop` change the size"
    if fitting.kind == "crop":
        words.append(f"scaled and cropped to {by(size)}")
        return ImageOps.fit(image, size, Resampling.BILINEAR)
    words.append(f"resized to {by(size)}")
    return image.resize(size, Resampling.BILINEAR)


def _arranged(pixels: Array, layout: str) -> Array:
    """Convert [height, width, channels] to another order of axes."""
    axes = {"h": 0, "w": 1, "c": 2}
    order = [axes[letter] for letter in layout if letter != "n"]
    arranged = pixels[..., 0] if layout == "hw" else pixels.transpose(order)
    return np.ascontiguousarray(arranged[None] if layout[0] == "n" else arranged)
