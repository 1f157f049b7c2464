"""Image files as tensors: the input's type and explicit steps define the conversion of the pixels.

Everything in the header (pixel count, layout, size) is checked before the pixels are decoded.
Color conversions and scaling filters are Pillow's.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nncdbg import dtypes
from nncdbg.engine.inputs.image_plan import CHANNELS, MOST_PIXELS, ImageHeader, Plan, by
from nncdbg.engine.inputs.image_specs import Fitting, ImageFile, Linear
from nncdbg.engine.inputs.npy import opened
from nncdbg.errors import LoadError, UsageError
from nncdbg.ir.records import Array, TensorType

if TYPE_CHECKING:
    from PIL.Image import Image

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
