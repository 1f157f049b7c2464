"""Image files as tensors: what the pixels become is given by the input's type and by explicit steps.

Everything that the header decides (pixel count, layout, size) is checked before the pixels are decoded.
Colour conversions and scaling filters are Pillow's.
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

from nncdbg.engine import dtypes
from nncdbg.engine.errors import InputError, LoadError, UsageError
from nncdbg.engine.graph import Array, Dim, TensorType
from nncdbg.engine.image_specs import LAYOUTS, Fitting, ImageFile, Linear
from nncdbg.engine.npy import opened

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 1 << 26
"""Pixels of an image at most, as it is in the file and as it is resized to."""

# Pillow has readers that start other programs (EPS); none of these do.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
_KINDS = {"1": "black and white", "L": "grey", "LA": "grey with alpha", "P": "palette", "I;16": "16-bit grey"}
_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
_CHANNEL_NAMES = {"L": "grey", "RGB": "RGB", "RGBA": "RGBA"}
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the channels R, G and B in 0..1: those of torchvision's pretrained models."""
_SIXTEEN_BITS = re.compile(r";16[BLN]")
"""In Pillow's name of the stored layout; BGR;16 has 16 bits for all three channels."""
_ORIENTATION = 0x0112
"""The EXIF tag; values from 5 on swap width and height."""


class ReadImage(NamedTuple):
    """A tensor made from an image, and the steps that were applied, for the user."""

    array: Array
    words: str


def read_image(name: str, type_: TensorType | None, file: ImageFile) -> ReadImage:
    """Return an image as a tensor of the dtype and shape of `type_`, for the input or value %`name`.

    Raises InputError for an image or steps that do not fit the type, LoadError for a file that is not an
    image, is damaged or has more than `MOST_PIXELS` pixels, UsageError without Pillow.
    """
    with _header(file) as image:
        return _Conversion(name, type_, file, image).run()


@contextmanager
def _header(file: ImageFile) -> Iterator[Image]:
    """Open an image without decoding it."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UsageError(
            f"{file.path.name} needs Pillow, which is not installed",
            hint=f"{sys.executable} -m pip install pillow",
        ) from None
    with opened(file.path, "an image", ".png or .jpg") as stream, warnings.catch_warnings():
        # Pillow warns of what is an error here: large and damaged files.
        warnings.simplefilter("ignore")
        try:
            image = Image.open(stream, formats=_FORMATS)
        except Image.DecompressionBombError:
            raise _too_large(file, "its header has") from None
        except UnidentifiedImageError:
            raise LoadError(
                f"{file.path} is not an image", hint=f"known formats: {', '.join(_FORMATS)}"
            ) from None
        with image:
            if image.width * image.height > MOST_PIXELS:
                raise _too_large(file, f"{image.width}x{image.height} is")
            yield image


def _too_large(file: ImageFile, fact: str) -> LoadError:
    return LoadError(f"{file.path}: {fact} more than {MOST_PIXELS:,} pixels", hint="resize the image first")


@dataclass(frozen=True, slots=True)
class _Conversion:
    name: str
    type_: TensorType | None
    file: ImageFile
    image: Image

    def run(self) -> ReadImage:
        dtype, layout = self._dtype(), self._layout()
        axes = dict(zip(layout, self._shape() or [None] * len(layout), strict=True))
        channels = self._channels(axes)
        words = [self.file.path.name, f"{self.image.width}x{self.image.height} {self._kind()}"]
        upright = self._turned_size()
        scale = self._scale(dtype, channels)
        size = self._size(upright, axes.get("h"), axes.get("w"))
        pixels = self._pixels(channels, upright, size, words)
        words += [scale, *(["BGR"] if self.file.bgr and channels > 1 else []), layout.upper()]
        return ReadImage(_arranged(self._scaled(pixels, dtype), layout), ", ".join(words))

    def _refused(self, fact: str, hint: str) -> InputError:
        title = f"%{self.name}: {self.type_}" if self.type_ else f"%{self.name}"
        return InputError(f"{self.file.path.name} does not fit {title}: {fact}", hint=hint)

    def _with(self, *steps: str) -> str:
        """The user's text with more steps."""
        return f"{self.file.path.name}:{','.join((*self.file.steps, *steps))}"

    # From the header

    def _dtype(self) -> str:
        if self.type_ is None:
            raise self._refused("its type is not known", "give a .npy file")
        dtype = self.type_.dtype
        if dtype not in dtypes.FLOATS | dtypes.INTEGERS:
            raise self._refused(f"pixels cannot be {dtype}", "give a .npy file")
        return dtype

    def _shape(self) -> tuple[Dim, ...] | None:
        return self.type_.shape if self.type_ is not None else None

    def _layout(self) -> str:
        """The layout given, else the only one with 1, 3 or 4 channels on its channel axis."""
        shape, wanted = self._shape(), self.file.layout
        ranked = [layout for layout in LAYOUTS if shape is None or len(layout) == len(shape)]
        if not ranked:
            raise self._refused(
                f"an image has 2 to 4 axes, not {len(shape or ())}", "give a .npy file of that shape"
            )
        if wanted is not None:
            if wanted not in ranked:
                raise self._refused(f"{wanted} has {len(wanted)} axes", f"choose {' or '.join(ranked)}")
            return wanted
        fitting = [
            layout
            for layout in ranked
            if shape is not None and ("c" not in layout or shape[layout.index("c")] in _CHANNELS)
        ]
        if len(fitting) != 1:
            fact = "its shape does not determine the axis of the channels"
            raise self._refused(fact, f"add the layout: {' or '.join(map(self._with, fitting or ranked))}")
        return fitting[0]

    def _channels(self, axes: dict[str, Dim]) -> int:
        batch, channels = axes.get("n"), axes.get("c", 1)
        if isinstance(batch, int) and batch != 1:
            raise self._refused(
                f"one image is a batch of 1, not {batch}", f"give a .npy file with {batch} images"
            )
        if not isinstance(channels, int):
            return 1 if self.image.mode in ("1", "L", "I;16") else 3
        if channels not in _CHANNELS:
            raise self._refused(f"an image has 1, 3 or 4 channels, not {channels}", "check the layout")
        return channels

    def _kind(self) -> str:
        """The kind of pixels.  Refuses those that Pillow would reduce, and files with several images."""
        mode, frames = self.image.mode, getattr(self.image, "n_frames", 1)
        if frames > 1 and self.image.format != "MPO":
            # MPO: the photo of a phone, with smaller or other views behind it.
            raise self._refused(f"it has {frames} images", "save the one that you want as .png")
        if mode in ("I", "F"):
            raise self._refused("it has 32-bit pixels", "convert it to .npy with numpy.save")
        tiles = getattr(self.image, "tile", None)
        raw = str(tiles[0].args) if tiles else ""
        if _SIXTEEN_BITS.search(raw) and not self._deep:
            raise self._refused("it has 16-bit colours", "convert it to 8 bits, or to .npy with numpy.save")
        return _KINDS.get("I;16" if self._deep else mode, mode)

    @property
    def _deep(self) -> bool:
        return self.image.mode.startswith("I;16")

    @property
    def _greatest(self) -> int:
        """The value of white."""
        return 65535 if self._deep else 255

    def _turned_size(self) -> tuple[int, int]:
        width, height = self.image.size
        return (height, width) if self._orientation() >= 5 and not self._turned else (width, height)

    def _orientation(self) -> int:
        from PIL import Image

        # The method of PNG files decodes the image first.
        return int(Image.Image.getexif(self.image).get(_ORIENTATION, 1))

    @property
    def _turned(self) -> bool:
        """Whether Pillow turns the image upright by itself."""
        return self.image.format == "TIFF"

    def _size(self, now: tuple[int, int], height: Dim, width: Dim) -> tuple[int, int]:
        """The (width, height) of the tensor: the image's, or that of `resize` or `crop`."""
        fitting = self.file.fitting
        fixed = (width, height)
        if fitting is None:
            size = now
        elif fitting.size is not None:
            size = fitting.size
        elif isinstance(width, int) and isinstance(height, int):
            size = (width, height)
        else:
            hint = f"add it, for example {fitting.kind}=224x224"
            raise self._refused(f"{fitting.kind} needs a width and a height", hint)
        if any(
            isinstance(needed, int) and needed != given for needed, given in zip(fixed, size, strict=True)
        ):
            sides = "x".join(str(each) if isinstance(each, int) else "any" for each in fixed)
            fact = f"the image is {_by(size)}, the input needs {sides} (width x height)"
            if fitting is not None:
                raise self._refused(fact.replace("the image", fitting.kind), f"write {fitting.kind} alone")
            stretched, cut = self._with("resize"), self._with("crop")
            raise self._refused(fact, f"{stretched} stretches it, {cut} keeps the ratio and cuts the edges")
        if not 0 < size[0] * size[1] <= MOST_PIXELS:
            raise self._refused(f"{_by(size)} is not 1 to {MOST_PIXELS:,} pixels", "choose another size")
        return size

    def _scale(self, dtype: str, channels: int) -> str:
        """The scale in words.  Refuses pixel values that the dtype cannot hold."""
        scale, white = self.file.scale, self._greatest
        if dtype in dtypes.INTEGERS:
            low, high = dtypes.integer_range(dtype)
            if scale not in (None, "raw"):
                raise self._refused(f"{dtype} takes pixel values as they are, without {scale}", "use raw")
            if high < white:
                raise self._refused(f"pixels are 0..{white}, {dtype} holds {low}..{high}", "give a .npy file")
        elif scale is None:
            choices = [(f"/{white}", "0..1"), (f"/{white / 2:g}-1", "-1..1"), ("raw", f"0..{white}")]
            if channels == 3:
                choices.insert(1, ("imagenet", "mean and std"))
            listed = ", ".join(f"{self._with(step)} ({what})" for step, what in choices)
            raise self._refused(f"the scale from 0..{white} to {dtype} is missing", f"give one of: {listed}")
        elif scale == "imagenet" and channels != 3:
            raise self._refused(f"imagenet is for 3 channels, not {channels}", f"use /{white} or raw")
        elif scale == Linear(255) and self._deep:
            raise self._refused("its values are 0..65535", "use /65535")
        return f"raw 0..{white}" if scale in (None, "raw") else str(scale)

    # From the pixels

    def _pixels(
        self, channels: int, upright: tuple[int, int], size: tuple[int, int], words: list[str]
    ) -> Array:
        """The pixels, u8 or u16 of [height, width, channels]; `words` gets what was done to them."""
        from PIL import ImageOps

        turned = self.image
        if self._orientation() != 1:
            turned = turned if self._turned else ImageOps.exif_transpose(turned)
            words.append("turned upright (EXIF)")
        converted = turned if self._deep else self._converted(turned, channels, words)
        if size != upright:
            converted = _resized(converted, self.file.fitting, size, words)
        pixels: Array = np.asarray(converted)
        if pixels.ndim == 3:
            return pixels
        if channels == 4:
            raise self._refused("it has no alpha channel", "give a .npy file")
        if channels == 3:
            words.append("repeated in 3 channels")
        return np.repeat(pixels[..., None], channels, axis=-1)

    def _converted(self, image: Image, channels: int, words: list[str]) -> Image:
        mode = _CHANNELS[channels]
        if image.has_transparency_data:
            image = image if image.mode == "RGBA" else image.convert("RGBA")
            if channels != 4:
                if image.getchannel("A").getextrema() != (255, 255):
                    raise self._refused("it has transparent pixels", "put it on a background first")
                words.append("opaque alpha removed")
                image = image.convert("RGB")
        elif channels == 4:
            raise self._refused("it has no alpha channel", "give a .npy file")
        if image.mode != mode:
            words.append(f"converted to {_CHANNEL_NAMES[mode]}")
            image = image.convert(mode)
        return image

    def _scaled(self, pixels: Array, dtype: str) -> Array:
        scale, wanted = self.file.scale, dtypes.NUMPY[dtype]
        values: Any = pixels
        if scale not in (None, "raw"):
            # Smaller floats are rounded once, at the end.
            real = np.float64 if dtype == "f64" else np.float32
            values = pixels.astype(real)
            if isinstance(scale, Linear):
                values = values / real(scale.divisor) - real(scale.offset)
            else:
                values = values / real(self._greatest)
                values = (values - np.array(_MEAN, real)) / np.array(_DEVIATION, real)
        if self.file.bgr:
            values = values[..., ::-1]
        with np.errstate(over="ignore"):
            scaled: Array = values.astype(wanted)
        if dtype in dtypes.FLOATS and not np.isfinite(scaled).all():
            raise self._refused(f"{dtype} cannot hold all its values", f"use /{self._greatest}")
        return scaled


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _resized(image: Image, fitting: Fitting | None, size: tuple[int, int], words: list[str]) -> Image:
    """The image in another size, by a bilinear filter that averages when it shrinks."""
    from PIL import ImageOps
    from PIL.Image import Resampling

    assert fitting is not None, "only `resize` and `crop` change the size"
    if fitting.kind == "crop":
        words.append(f"scaled and cropped to {_by(size)}")
        return ImageOps.fit(image, size, Resampling.BILINEAR)
    words.append(f"resized to {_by(size)}")
    return image.resize(size, Resampling.BILINEAR)


def _arranged(pixels: Array, layout: str) -> Array:
    """[height, width, channels] in another order of axes."""
    axes = {"h": 0, "w": 1, "c": 2}
    order = [axes[letter] for letter in layout if letter != "n"]
    arranged = pixels[..., 0] if layout == "hw" else pixels.transpose(order)
    return np.ascontiguousarray(arranged[None] if layout[0] == "n" else arranged)
