"""Images as inputs: exact pixels, layouts, sizes, colors, errors."""

from __future__ import annotations

import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import nncdbg
from nncdbg import dtypes
from nncdbg.engine.inputs.binding import bind
from nncdbg.engine.inputs.data_specs import Fitting, Linear, image_file
from nncdbg.engine.inputs.image_files import MOST_PIXELS
from nncdbg.errors import InputError, LoadError, UsageError
from nncdbg.ir.records import Graph, SequenceType, TensorType, Value

RNG = np.random.default_rng(0)
COLORS = RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8)
GRAY = RNG.integers(0, 256, (6, 8), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, (6, 8), dtype=np.uint16)
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


def read(path: Path, steps: str, dtype: str, *shape: int | str | None, folder: Path | None = None):
    """The array and the note for an input of this type; `steps` includes the colon."""
    graph = Graph("main", inputs=(Value("x", TensorType(dtype, shape)),))
    bound = bind(graph, {"x": f"{path}{steps}"}, folder=folder)
    (note,) = bound.notes
    return bound["x"], str(note)


def refusal(path: Path, steps: str, dtype: str, *shape: int | str | None) -> str:
    with pytest.raises(InputError) as caught:
        read(path, steps, dtype, *shape)
    return str(caught.value)


@pytest.fixture
def photo(tmp_path):
    return saved(tmp_path / "photo.png", COLORS)


def saved(path: Path, pixels: np.ndarray | Image.Image, **options: Any) -> Path:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)
    return path


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a.png", {}),
        ("A.JPG:raw", {"scale": "raw"}),
        ("a.tiff:/255", {"scale": Linear(255)}),
        ("a.webp:/127.5-1,crop", {"scale": Linear(127.5, 1), "fitting": Fitting("crop", None)}),
        (
            "a.b.bmp: imagenet , resize=640x480",
            {"scale": "imagenet", "fitting": Fitting("resize", (640, 480))},
        ),
        ("C:a.gif:NHWC,bgr", {"layout": "nhwc", "bgr": True}),
    ],
)
def test_steps_are_parsed(text, fields):
    file = image_file(text)
    assert {name: getattr(file, name) for name in fields} == fields
    for name in {"scale", "fitting", "layout"} - {*fields}:
        assert getattr(file, name) is None


@pytest.mark.parametrize(
    "text", ["x.npy", "zeros", "png", "a.png.npy", "a.svg", "[1, 2]", "a.png:/255 + 1]\n.x"]
)
def test_other_texts_are_not_images(text):
    if text.startswith("a.png:"):
        with pytest.raises(UsageError, match="is not a valid step"):
            image_file(text)
    else:
        assert image_file(text) is None


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("rezise", "did you mean resize?"),
        ("/0", '"/0" is not a valid step'),
        ("resize=0x4", "is not a valid step"),
        ("resize=4", "is not a valid step"),
        ("", "is not a valid step"),
        ("/255,", "is not a valid step"),
        ("raw,/255", "two steps of the same kind"),
        ("nchw,hw", "two steps of the same kind"),
    ],
)
def test_invalid_steps_are_usage_errors(steps, message):
    with pytest.raises(UsageError) as caught:
        image_file(f"a.png:{steps}")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "steps", "expected"),
    [
        ((1, 3, 6, 8), "", COLORS.transpose(2, 0, 1)[None]),
        (("N", 3, "H", "W"), "", COLORS.transpose(2, 0, 1)[None]),
        ((1, 6, 8, 3), "", COLORS[None]),
        ((3, 6, 8), "", COLORS.transpose(2, 0, 1)),
        ((6, 8, 3), "", COLORS),
        (("N", "C", "H", "W"), ":nchw", COLORS.transpose(2, 0, 1)[None]),
        (("N", "H", "W", "C"), ":nhwc", COLORS[None]),
        (None, ":hwc", COLORS),
        ((1, 3, 6, 8), ":bgr", COLORS[..., ::-1].transpose(2, 0, 1)[None]),
        ((1, 3, 6, 8), ":raw", COLORS.transpose(2, 0, 1)[None]),
    ],
)
@pytest.mark.parametrize("dtype", ["u8", "i16", "i64"])
def test_integer_inputs_take_pixels_exactly(photo, dtype, shape, steps, expected):
    graph = Graph("main", inputs=(Value("x", TensorType(dtype, shape)),))
    array = bind(graph, {"x": f"{photo}{steps}"})["x"]
    assert array.dtype == dtypes.NUMPY[dtype]
    np.testing.assert_array_equal(array, expected, strict=False)
    assert array.shape == expected.shape


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("steps", ["raw", "/255", "/127.5-1", "imagenet"])
def test_float_inputs_equal_numpy_bit_for_bit(photo, dtype, steps):
    array, note = read(photo, f":{steps}", dtype, 1, 3, 6, 8)
    real = np.float64 if dtype == "f64" else np.float32
    values: Any = COLORS.astype(real)
    expected = {
        "raw": values,
        "/255": values / real(255),
        "/127.5-1": values / real(127.5) - real(1),
        "imagenet": (values / real(255) - np.array([0.485, 0.456, 0.406], real))
        / np.array([0.229, 0.224, 0.225], real),
    }[steps].transpose(2, 0, 1)[None]
    assert array.tobytes() == expected.astype(dtypes.NUMPY[dtype]).tobytes()
    scale = "raw 0..255" if steps == "raw" else steps
    assert note == f"input %x: photo.png, 8x6 RGB, {scale}, NCHW"


def test_imagenet_scales_before_channels_are_swapped(photo):
    array, note = read(photo, ":imagenet,bgr", "f32", 6, 8, 3)
    expected = ((COLORS.astype(np.float32) / np.float32(255) - MEAN) / DEVIATION)[..., ::-1]
    assert array.tobytes() == expected.tobytes()
    assert note.endswith("imagenet, BGR, HWC")


@pytest.mark.parametrize(
    ("steps", "shape", "description"),
    [
        ("/255,resize", (1, 3, 4, 5), "resized to 5x4"),
        ("/255,resize=5x4", (1, 3, "H", "W"), "resized to 5x4"),
        ("/255,crop", (1, 3, 5, 5), "scaled and cropped to 5x5"),
        ("/255,resize", (1, 3, 6, 8), None),
    ],
)
def test_size_changes_only_by_an_explicit_step(photo, steps, shape, description):
    array, note = read(photo, f":{steps}", "f32", *shape)
    image = Image.open(photo)
    if description is None:
        expected = COLORS
        assert note == "input %x: photo.png, 8x6 RGB, /255, NCHW"
    elif "crop" in description:
        box = (1, 0, 7, 6)
        expected = np.asarray(image.resize((5, 5), Image.Resampling.BILINEAR, box))
    else:
        expected = np.asarray(image.resize((5, 4), Image.Resampling.BILINEAR))
    if description is not None:
        assert note == f"input %x: photo.png, 8x6 RGB, {description}, /255, NCHW"
    np.testing.assert_array_equal(array[0], expected.transpose(2, 0, 1).astype(np.float32) / np.float32(255))


@pytest.mark.parametrize(
    ("steps", "dtype", "shape", "message"),
    [
        (":/255", "f32", (1, 3, 4, 5), "the image is 8x6, but the input needs 5x4 (width x height)"),
        (":/255", "f32", (1, 3, "H", 5), "the image is 8x6, but the input needs 5xany (width x height)"),
        (
            ":/255",
            "f32",
            (1, 3, 4, 5),
            "use photo.png:/255,resize to stretch it, or photo.png:/255,crop to keep the ratio",
        ),
        (":/255,resize=9x9", "f32", (1, 3, 4, 5), "resize is 9x9, but the input needs 5x4"),
        (":/255,resize", "f32", (1, 3, "H", "W"), "resize needs a width and a height"),
        (":/255,resize=99999x99999", "f32", (1, 3, "H", "W"), "99999x99999 is not 1 to 67,108,864 pixels"),
        (":/255,resize", "f32", (1, 3, 0, 0), "0x0 is not 1 to"),
        ("", "f32", (1, 3, 6, 8), "the scale from 0..255 to f32 is missing"),
        ("", "f32", (1, 3, 6, 8), "photo.png:/255 (0..1), photo.png:imagenet (mean and std)"),
        (
            "",
            "f32",
            (1, 1, 6, 8),
            "photo.png:/255 (0..1), photo.png:/127.5-1 (-1..1), photo.png:raw (0..255)",
        ),
        ("", "f32", (1, 3, 4, 5), "photo.png:/255,resize (0..1), photo.png:imagenet,resize (mean and std)"),
        ("", "f32", (1, 3, "H", 16), "photo.png:/255,resize=16x12 (0..1)"),
        (
            ":raw",
            "f32",
            (1, 3, 12, "W"),
            "use photo.png:raw,resize=16x12 to stretch it, or photo.png:raw,crop=1",
        ),
        (":crop", "f32", (1, 3, 4, 5), "photo.png:crop,/255 (0..1)"),
        ("", "u8", (1, 3, 4, 5), "use photo.png:resize to stretch it, or photo.png:crop to keep"),
        (":/255", "u8", (1, 3, 6, 8), "u8 pixels cannot be scaled with /255"),
        ("", "i8", (1, 3, 6, 8), "pixels are 0..255, but i8 represents -128..127"),
        ("", "bool", (1, 3, 6, 8), "pixels cannot be bool"),
        ("", "c64", (1, 3, 6, 8), "pixels cannot be c64"),
        ("", "u8", (4, 3, 6, 8), "one image is a batch of 1, not 4"),
        ("", "u8", (8,), "an image has 2 to 4 axes, not 1"),
        ("", "u8", (1, 3, 6, 3), "does not determine the axis of the channels"),
        ("", "u8", ("N", "C", "H", "W"), "photo.png:nchw or photo.png:nhwc"),
        (":hw", "u8", (1, 3, 6, 8), "hw has 2 axes"),
        (":nchw", "u8", (1, 6, 8, 3), "an image has 1, 3 or 4 channels, not 6"),
        (":bgr", "u8", (1, 1, 6, 8), "bgr needs 3 channels, not 1"),
        (":imagenet", "f32", (1, 1, 6, 8), "imagenet needs 3 channels, not 1"),
        ("", "u8", (1, 4, 6, 8), "it has no alpha channel"),
        (":raw", "f8e4m3fn", (1, 3, 6, 8), ""),
    ],
)
def test_an_incompatible_image_is_refused_with_both_sizes_or_types(photo, steps, dtype, shape, message):
    if not message:
        array, _ = read(photo, steps, dtype, *shape)
        assert np.isfinite(array.astype(np.float32)).all()
    else:
        assert message in refusal(photo, steps, dtype, *shape)


def palette(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels).quantize(4)


OPAQUE = np.dstack([COLORS, np.full((6, 8), 255, np.uint8)])
TRANSPARENT = np.dstack([COLORS, np.arange(48, dtype=np.uint8).reshape(6, 8)])


@pytest.mark.parametrize(
    ("make", "suffix", "description"),
    [
        (lambda: Image.fromarray(GRAY), "png", "8x6 gray, converted to RGB"),
        (lambda: Image.fromarray(GRAY > 128), "png", "8x6 black and white, converted to RGB"),
        (lambda: palette(COLORS), "png", "8x6 palette, converted to RGB"),
        (lambda: palette(COLORS), "gif", "8x6 palette, converted to RGB"),
        (lambda: Image.fromarray(OPAQUE), "png", "8x6 RGBA, opaque alpha removed"),
        (lambda: Image.fromarray(COLORS).convert("CMYK"), "tif", "8x6 CMYK, converted to RGB"),
        (lambda: Image.fromarray(COLORS), "bmp", "8x6 RGB"),
        (lambda: Image.fromarray(COLORS), "tiff", "8x6 RGB"),
    ],
)
def test_colors_are_converted_to_rgb_as_in_pillow(tmp_path, make, suffix, description):
    path = saved(tmp_path / f"a.{suffix}", make())
    array, note = read(path, "", "u8", 6, 8, 3)
    np.testing.assert_array_equal(array, np.asarray(Image.open(path).convert("RGB")))
    assert note == f"input %x: a.{suffix}, {description}, raw 0..255, HWC"


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "webp"])
def test_lossy_formats_are_read(tmp_path, suffix):
    path = saved(tmp_path / f"a.{suffix}", COLORS)
    array, _ = read(path, "", "u8", 1, 3, 6, 8)
    np.testing.assert_array_equal(array[0].transpose(1, 2, 0), np.asarray(Image.open(path).convert("RGB")))


@pytest.mark.parametrize("shape", [(6, 8), (1, 6, 8), (6, 8, 1), (1, 1, 6, 8), (1, 6, 8, 1)])
def test_one_channel_takes_gray_and_converts_colors(tmp_path, shape):
    gray, note = read(saved(tmp_path / "gray.png", GRAY), "", "u8", *shape)
    np.testing.assert_array_equal(gray, GRAY.reshape(shape))
    assert ", converted" not in note
    photo = saved(tmp_path / "photo.png", COLORS)
    colors, note = read(photo, "", "u8", *shape)
    np.testing.assert_array_equal(colors.reshape(6, 8), np.asarray(Image.open(photo).convert("L")))
    assert "8x6 RGB, converted to gray" in note


def test_four_channels_take_alpha(tmp_path):
    path = saved(tmp_path / "a.png", TRANSPARENT)
    np.testing.assert_array_equal(read(path, "", "u8", 6, 8, 4)[0], TRANSPARENT)


@pytest.mark.parametrize("channels", [1, 3])
def test_transparent_pixels_are_refused(tmp_path, channels):
    path = saved(tmp_path / "a.png", TRANSPARENT)
    assert "it has transparent pixels" in refusal(path, "", "u8", 6, 8, channels)


def test_sixteen_bit_gray_keeps_its_values(tmp_path):
    path = saved(tmp_path / "depth.png", DEEP)
    array, note = read(path, "", "u16", 1, 1, 6, 8)
    np.testing.assert_array_equal(array[0, 0], DEEP)
    assert note == "input %x: depth.png, 8x6 16-bit gray, raw 0..65535, NCHW"
    scaled, note = read(path, ":/65535", "f32", 1, 3, 6, 8)
    for channel in scaled[0]:
        np.testing.assert_array_equal(channel, DEEP.astype(np.float32) / np.float32(65535))
    assert "repeated in 3 channels" in note
    assert "use /65535" in refusal(path, ":/255", "f32", 6, 8)
    assert "pixels are 0..65535, but u8 represents 0..255" in refusal(path, "", "u8", 6, 8)
    assert "f16 cannot represent all its values" in refusal(
        saved(tmp_path / "white.png", np.full((6, 8), 65535, np.uint16)), ":raw", "f16", 6, 8
    )


def sixteen_bit_colors(path: Path) -> Path:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0))
    rows = zlib.compress((b"\0" + bytes(range(12))) * 2)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


def test_colors_that_pillow_would_reduce_are_refused(tmp_path):
    assert "it has 16-bit colors" in refusal(sixteen_bit_colors(tmp_path / "a.png"), "", "u8", 2, 2, 3)
    wide = saved(tmp_path / "f.tif", Image.fromarray(GRAY.astype(np.float32)))
    assert "it has 32-bit pixels" in refusal(wide, ":raw", "f32", 6, 8)


def test_animations_are_refused(tmp_path):
    frames = [Image.fromarray(COLORS), Image.fromarray(COLORS[::-1])]
    for suffix in ("gif", "webp", "tif"):
        path = saved(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:])
        assert "it has 2 images" in refusal(path, "", "u8", 6, 8, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
def test_photos_are_rotated_upright(tmp_path, orientation, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / f"a.{suffix}", COLORS, exif=exif)
    turns = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
        7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
        8: lambda a: a.transpose(1, 0, 2)[::-1],
    }
    stored = np.asarray(Image.open(path).convert("RGB")) if suffix == "jpg" else COLORS
    upright = turns[orientation](stored)
    array, note = read(path, "", "u8", *upright.shape)
    np.testing.assert_array_equal(array, upright)
    assert ("turned upright (EXIF)" in note) == (orientation != 1)
    if orientation >= 5:
        assert "the image is 6x8" in refusal(path, "", "u8", 6, 8, 3)


def with_header_size(path: Path, width: int, height: int) -> Path:
    """A small PNG with another size in its header."""
    data = bytearray(saved(path, COLORS).read_bytes())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    path.write_bytes(data)
    return path


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("side", [8193, 12_000, 30_000, 1_000_000])
def test_decompression_bombs_are_refused_from_the_header(tmp_path, side):
    with pytest.raises(LoadError, match="more than 67,108,864 pixels"):
        read(with_header_size(tmp_path / "bomb.png", side, side), ":/255", "f32", 1, 3, "H", "W")
    assert MOST_PIXELS < 8193**2


def test_sizes_are_compared_before_pixels_are_decoded(tmp_path, monkeypatch):
    path = with_header_size(tmp_path / "a.png", 8000, 8000)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("the pixels were decoded"))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("the pixels were decoded"))
    assert "the image is 8000x8000, but the input needs 8x6" in refusal(path, "", "u8", 6, 8, 3)


@pytest.mark.parametrize("keep", [0, 1, 8, 20, 40, 60, 100, -100])
@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp", "tif", "webp"])
def test_truncated_files_are_load_errors(tmp_path, suffix, keep):
    path = saved(tmp_path / f"a.{suffix}", np.tile(COLORS, (8, 8, 1)))
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises((LoadError, InputError)) as caught:
        read(path, ":raw", "f32", "H", "W", 3)
    assert "a." in str(caught.value)


def test_other_files_are_load_errors(tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(LoadError, match="is not an image"):
        read(tmp_path / "text.png", "", "u8", 6, 8, 3)
    (tmp_path / "page.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 6\n")
    with pytest.raises(LoadError, match="is not an image"):
        read(tmp_path / "page.png", "", "u8", 6, 8, 3)
    with pytest.raises(LoadError, match="does not exist"):
        read(tmp_path / "missing.png", "", "u8", 6, 8, 3)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(LoadError, match="is a directory"):
        read(tmp_path / "folder.png", "", "u8", 6, 8, 3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(LoadError, match="not a regular file"):
        read(tmp_path / "pipe.png", "", "u8", 6, 8, 3)


def test_without_pillow_the_error_names_the_command(photo, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError) as caught:
        read(photo, "", "u8", 6, 8, 3)
    assert caught.value.message == "photo.png needs Pillow, which is not installed"
    assert caught.value.hint == f"run {sys.executable} -m pip install pillow"


def test_a_name_with_control_characters_is_shown_escaped(tmp_path):
    path = saved(tmp_path / "a\x1b[31m.png", COLORS)
    assert "\x1b" not in refusal(path, ":/255", "u8", 6, 8, 3)


def test_paths_relative_to_the_folder_and_path_objects(photo):
    graph = Graph("main", inputs=(Value("x", TensorType("u8", (6, 8, 3))),))
    by_text = bind(graph, {"x": "photo.png"}, folder=photo.parent)["x"]
    by_path = bind(graph, {"x": photo})["x"]
    np.testing.assert_array_equal(by_text, COLORS)
    np.testing.assert_array_equal(by_path, COLORS)
    np.save(photo.with_suffix(".npy"), COLORS)
    np.testing.assert_array_equal(bind(graph, {"x": photo.with_suffix(".npy")})["x"], COLORS)
    with pytest.raises(InputError, match="is not a data file"):
        bind(graph, {"x": Path("zeros")})
    with pytest.raises(InputError, match="is not a valid step"):
        bind(graph, {"x": Path("a.png:rezise")})


def test_a_sequence_takes_images_of_several_sizes(tmp_path, photo):
    small = saved(tmp_path / "small.png", COLORS[:2])
    element = TensorType("u8", (None, None, 3))
    bound = bind(Graph("main", inputs=(Value("x", SequenceType(element)),)), {"x": [str(photo), small]})
    assert [array.shape for array in bound["x"]] == [(6, 8, 3), (2, 8, 3)]
    assert [str(note) for note in bound.notes] == [
        "input %x[0]: photo.png, 8x6 RGB, raw 0..255, HWC",
        "input %x[1]: small.png, 8x2 RGB, raw 0..255, HWC",
    ]


def test_symbols_take_the_size_of_the_image(photo):
    graph = Graph("main", inputs=(Value("x", TensorType("u8", ("N", 3, "H", "W"))),))
    assert bind(graph, {"x": str(photo)}).dims == {"N": 1, "H": 6, "W": 8}
    with pytest.raises(InputError, match="axis 2 is H=6, but H=7"):
        bind(graph, {"x": str(photo)}, {"H": 7})


def test_an_input_without_a_type_is_refused(photo):
    with pytest.raises(InputError, match="its type is not known"):
        bind(Graph("main", inputs=(Value("x"),)), {"x": str(photo)})


PROGRAM = """graph @main(%x: f32[1,3,6,8]) -> (%y: f32[1,3,6,8]) {
  %h: f32[1,3,6,8] = Neg(%x)
  %y: f32[1,3,6,8] = Neg(%h)
  return %y
}
"""


def test_run_and_watch_take_an_image(photo):
    program = nncdbg.parse(PROGRAM)
    expected = COLORS.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(nncdbg.run(program, {"x": f"{photo}:/255"})["y"], expected)
    report = nncdbg.watch(program, {"x": f"{photo}:/255"})
    assert report.notes == ["input %x: photo.png, 8x6 RGB, /255, NCHW"]


def test_set_value_takes_an_image(photo):
    debugger = nncdbg.Debugger(nncdbg.parse(PROGRAM), {"x": "zeros"}, folder=photo.parent)
    debugger.step_over()
    debugger.set_value("%h", "photo.png:/255")
    assert debugger.control.messages == ["%h: photo.png, 8x6 RGB, /255, NCHW"]
    expected = COLORS.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(debugger.value("%h"), expected)
    with pytest.raises(UsageError, match="the scale from 0..255 to f32 is missing"):
        debugger.set_value("%h", "photo.png")
