"""Text views of tensors: exact output at 80 and 20 columns, and no line wider than the screen."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from nncdbg import dtypes
from nncdbg.errors import UsageError
from nncdbg.presentation.character_images import channel_strip, image, spark
from nncdbg.presentation.element_grid import grid
from nncdbg.presentation.elements import Layout
from nncdbg.presentation.tensor_text import histogram_bars, show, value_line
from nncdbg.stats.histograms import Histogram
from nncdbg.stats.summary import Summary, summarize
from tests.laws import examples

WIDE, NARROW = Layout(80), Layout(20)
PLAIN = Layout(20, unicode=False)
BIG = np.zeros((1, 64, 56, 56), np.float32)
SUMMARY = Summary(-0.1, 6.1, 0.4, 0.9, 0, 0, 0, 2, 0, BIG.size)
BROKEN = Summary(-0.1, 6.1, 0.4, 0.9, 12, 0, 3, 2, 0, BIG.size)


def test_value_line_gives_statistics() -> None:
    line = value_line("h", BIG, SUMMARY, WIDE)
    assert line.plain == "%h f32[1,64,56,56] min -0.1 mean 0.4 max 6.1 std 0.9"
    assert not line.spans


def test_value_line_wraps_statistics_and_never_cuts_them() -> None:
    line = value_line("h", BIG, BROKEN, WIDE)
    assert line.plain == "%h f32[1,64,56,56] nan 12 -inf 3 min -0.1 mean 0.4 max 6.1 std 0.9"
    marked = {line.plain[span.start : span.end] for span in line.spans if span.style == "bold red"}
    assert marked == {"nan 12", "-inf 3"}
    assert value_line("h", BIG, BROKEN, Layout(52)).plain == (
        "%h f32[1,64,56,56]\n    nan 12 -inf 3 min -0.1 mean 0.4 max 6.1 std 0.9"
    )
    assert value_line("h", BIG, BROKEN, NARROW).plain == (
        "%h f32[1,64,56,56]\n    nan 12 -inf 3\n    min -0.1\n    mean 0.4 max 6.1\n    std 0.9"
    )
    assert value_line("conv/h", BIG, BROKEN, PLAIN).plain.split("\n")[:2] == [
        "%conv/h",
        "    f32[1,64,56,56]",
    ]


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("i", np.array(3), "%i i64[] 3"),
        ("v", np.array([1, 2, 3], np.float32), "%v f32[3] [1. 2. 3.]"),
        ("v", np.array([1, np.nan, -np.inf], np.float16), "%v f16[3] [1. nan -inf]"),
        ("m", np.arange(4).reshape(2, 2), "%m i64[2,2] [[0 1] [2 3]]"),
        ("b", np.array([True, False]), "%b bool[2] [true false]"),
        ("b", np.arange(64) < 12, "%b bool[64] 12 of 64 true"),
        ("s", np.array(["a", "two\nlines"], object), "%s str[2] ['a' 'two\\nlines']"),
        ("s", np.array(["ab"] * 10, object), "%s str[10] [" + "'ab' " * 8 + "…]"),
        ("odd\x1b[2J", np.array(0.1), '%"odd\\x1b[2J" f64[] 0.1'),
        ("e", np.zeros((0, 3), np.float32), "%e f32[0,3] (empty)"),
        ("bf", np.array([1.5, np.nan], dtypes.NUMPY["bf16"]), "%bf bf16[2] [1.5 nan]"),
        ("i4", np.array(-8, dtypes.NUMPY["i4"]), "%i4 i4[] -8"),
    ],
)
def test_value_line_shows_small_values(name: str, array: Any, expected: str) -> None:
    assert value_line(name, array, summarize(array), WIDE).plain == expected


MATRIX = np.array([[0.5, -1.25, 1000], [np.nan, np.inf, 1 / 3]], np.float32)


def test_grid_of_a_matrix() -> None:
    view = grid(MATRIX, layout=WIDE)
    assert view.plain == "      0     1      2\n[0] 0.5 -1.25   1000\n[1] nan   inf 0.3333"
    bad = [view.plain[span.start : span.end].strip() for span in view.spans if span.style == "bold red"]
    assert bad == ["nan", "inf"]
    assert grid(MATRIX, layout=NARROW).plain == view.plain


def test_grid_of_a_large_matrix_shows_its_edges() -> None:
    table = np.arange(100 * 50).reshape(100, 50)
    assert grid(table, layout=NARROW, rows=4).plain == (
        "        0 …   49\n [0]    0 …   49\n [1]   50 …   99\n"
        "   …    … …    …\n[98] 4900 … 4949\n[99] 4950 … 4999"
    )
    lines = grid(table, layout=WIDE, rows=4).plain.split("\n")
    assert lines[0].split() == [*map(str, range(7)), "…", *map(str, range(43, 50))]
    assert [line.split()[0] for line in lines[1:]] == ["[0]", "[1]", "…", "[98]", "[99]"]


def test_grid_of_a_slice_shows_its_index() -> None:
    tensor = np.arange(2 * 3 * 2 * 2).reshape(2, 3, 2, 2)
    assert grid(tensor, (1, 2), layout=WIDE).plain == (
        "[1, 2, :, :] of i64[2,3,2,2]\n     0  1\n[0] 20 21\n[1] 22 23"
    )
    assert grid(tensor, layout=WIDE).plain.startswith("[0, 0, :, :] of i64[2,3,2,2]\n")
    assert grid(tensor, (..., slice(1, None), 0), layout=WIDE).plain == (
        "[0, :, 1:, 0] of i64[2,3,2,2]\n     1\n[0]  2\n[1]  6\n[2] 10"
    )
    assert grid(tensor, (1, 2, 1, 0), layout=WIDE).plain == "[1, 2, 1, 0] of i64[2,3,2,2]\n22"
    assert grid(tensor, (tensor > 20,), layout=WIDE).plain == "selected elements: i64[3]\n[0] 21 22 23"


def test_grid_of_a_vector_wraps() -> None:
    assert grid(np.arange(7) * 100, layout=NARROW).plain == "[0]   0 100 200 300\n[4] 400 500 600"
    assert grid(np.arange(10**6), layout=NARROW, rows=2).plain == (
        "     [0]      0\n       …\n[999999] 999999"
    )


@pytest.mark.parametrize("index", [(5,), (0, 0, 0), (..., ...), ("a",), (1.5,)])
def test_grid_rejects_an_invalid_index(index: Any) -> None:
    with pytest.raises(UsageError, match="the index is invalid for"):
        grid(MATRIX, index)


RAMP = np.linspace(0, 9, 10, dtype=np.float32) * np.ones((4, 1), np.float32)


def test_image_in_characters() -> None:
    assert (
        image(RAMP, layout=WIDE).plain
        == "scale 0 .. 9, each cell is the mean of 2x1 elements\n .:-=+*#%@\n .:-=+*#%@"
    )
    spotted = RAMP.copy()
    spotted[0, 3], spotted[2:, 5], spotted[2:, 7] = np.nan, np.inf, -np.inf
    assert (
        image(spotted, layout=WIDE).plain
        == "scale 0 .. 9, each cell is the mean of 2x1 elements\n .:!=+*#%@\n .:-=^*v%@"
    )


def test_image_in_half_blocks() -> None:
    spotted = RAMP.copy()
    spotted[1, 0] = np.nan
    view = image(spotted, layout=Layout(80, color=True))
    assert view.plain == "scale 0 .. 9\n" + "▀" * 10 + "\n" + "▀" * 10
    styles = [str(span.style) for span in view.spans]
    assert "rgb(68,1,84) on rgb(255,0,255)" in styles
    assert "rgb(253,231,37) on rgb(253,231,37)" in styles
    assert (
        image(spotted, layout=Layout(80, color=True, unicode=False)).plain.split("\n")[1:] == [" " * 10] * 2
    )


def test_image_shows_the_mean_of_each_area() -> None:
    blocks = np.kron(np.arange(4.0).reshape(2, 2), np.ones((30, 30)))
    blocks[0, 0], blocks[1, 1] = 60, -60
    assert image(blocks, layout=NARROW, lines=1).plain == "scale 1 .. 2\neach cell is the me…\n @"
    assert (
        image(np.full((3, 3), 7.0), layout=WIDE).plain
        == "scale 7 .. 7, each cell is the mean of 1.5x1 elements\n   \n   "
    )
    huge = np.array([[1.7e308, -1.7e308], [1.7e308, -1.7e308]])
    assert (
        image(huge, layout=WIDE).plain
        == "scale -1.7e+308 .. 1.7e+308, each cell is the mean of 2x1 elements\n@ "
    )


def test_channel_strip_draws_channels_side_by_side() -> None:
    tensor = np.stack([RAMP[:, :4] * 0, RAMP[:, :4] * 3, RAMP[:, 6:]])[None]
    assert channel_strip(tensor, layout=WIDE).plain == (
        "[0, :, :, :] of f32[1,3,4,4], channels 0 to 2 of 3, scale 0 .. 9\n"
        "each cell is the mean of 2x1 elements\n"
        "0    1    2\n      -*@ *#%@\n      -*@ *#%@"
    )
    assert channel_strip(tensor, layout=Layout(9)).plain.split("\n")[-3:] == [
        "0    1",
        "      -*@",
        "      -*@",
    ]


def test_spark_draws_one_character_per_element() -> None:
    assert spark(np.arange(8), layout=WIDE).plain == "▁▂▃▄▅▆▇█"
    assert spark(np.array([0, np.nan, np.inf, -np.inf, 1]), layout=WIDE).plain == "▁!^v█"
    assert spark(np.arange(10), layout=PLAIN).plain == " .:-=+*#%@"
    assert len(spark(np.arange(1000), layout=NARROW).plain) == 20


HISTOGRAM = Histogram(np.array([-1.0, 0, 1, 2]), np.array([2, 16, 8]), nan=4, posinf=0, neginf=1)


def test_histogram_bars_are_proportional_to_counts() -> None:
    assert histogram_bars(HISTOGRAM, Layout(30)).plain == (
        "-1 .. 0 ██▍                  2\n"
        " 0 .. 1 ███████████████████ 16\n"
        " 1 .. 2 █████████▌           8\n"
        "   -inf █▎                   1\n"
        "    nan ████▊                4"
    )
    assert histogram_bars(HISTOGRAM, PLAIN).plain == (
        "-1 .. 0 #          2\n"
        " 0 .. 1 ######### 16\n"
        " 1 .. 2 ####       8\n"
        "   -inf #          1\n"
        "    nan ##         4"
    )


def test_histogram_bars_show_empty_and_rare_counts() -> None:
    nothing = Histogram(np.array([0.0, 1]), np.array([0]), 0, 0, 0)
    assert histogram_bars(nothing, WIDE).plain == "(empty)"
    rare = Histogram(np.array([0.0, 1, 2]), np.array([10**6, 1]), 0, 0, 0)
    assert "▏" in histogram_bars(rare, WIDE).plain.split("\n")[1]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(2.5), "%x f64[]\n2.5"),
        (np.array([1, 3, 2]), "%x i64[3]\n▁█▅\n[0] 1 3 2"),
        (np.eye(2, dtype=np.int8), "%x i8[2,2]\n    0 1\n[0] 1 0\n[1] 0 1"),
        (np.array([["a", "b"]], object), "%x str[1,2]\n      0   1\n[0] 'a' 'b'"),
        (np.zeros((2, 0)), "%x f64[2,0]\n(empty)"),
        (np.array("a", object), "%x str[]\n'a'"),
    ],
)
def test_show_selects_the_view_for_the_shape(array: Any, expected: str) -> None:
    assert show(array, "x", WIDE).plain == expected


def test_show_draws_large_tensors_as_pictures() -> None:
    assert show(np.zeros((17, 17)), "x", WIDE).plain.startswith("%x f64[17,17]\nscale 0 .. 0, each cell")
    assert "channels 0 to 3 of 64" in show(BIG, "x", WIDE).plain
    assert show(np.zeros((8, 4, 1, 1)), "x", WIDE).plain.startswith("%x f64[8,4,1,1]\n    0 1 2 3\n[0] 0")


def test_layout_follows_the_console() -> None:
    assert Layout.of(Console(file=io.StringIO(), width=33)) == Layout(33, False, True)
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="256", width=33)
    assert Layout.of(terminal).color
    quiet = Console(file=io.StringIO(), force_terminal=True, color_system="256", no_color=True)
    assert not Layout.of(quiet).color


def test_a_console_without_colour_prints_the_text_of_the_view() -> None:
    """The characters that a console without colour prints are those of the view."""
    file = io.StringIO()
    view = show(BIG + np.arange(56, dtype=np.float32), "x", Layout(40))
    Console(file=file, width=40).print(view)
    assert file.getvalue().split("\n")[:-1] == view.plain.split("\n")


# -- no exception, and no line wider than the screen --------------------------------------------------

NUMBERS = [name for name in dtypes.NUMPY if name != "str"]


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    shape = draw(
        hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=40).filter(lambda s: np.prod(s) < 9000)
    )
    name = draw(st.sampled_from([*NUMBERS, "str"]))
    if name == "str":
        words = draw(st.lists(st.text(max_size=30), min_size=1, max_size=5))
        return np.array([words[i % len(words)] for i in range(int(np.prod(shape)))], object).reshape(shape)
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    if draw(st.booleans()):
        bits = generator.bytes(int(np.prod(shape)) * dtypes.NUMPY[name].itemsize)
        if name not in ("bool", "i4", "u4", "i2", "u2", "f4e2m1fn"):
            return np.frombuffer(bits, dtypes.NUMPY[name]).reshape(shape)
    return generator.integers(0, 2, shape).astype(dtypes.NUMPY[name])


@examples(150)
@given(tensors(), st.integers(1, 90), st.booleans(), st.booleans(), st.text(max_size=12))
def test_every_view_of_every_tensor_fits(
    array: Any, width: int, color: bool, unicode: bool, name: str
) -> None:
    layout = Layout(width, color, unicode)
    views = [value_line(name, array, BROKEN, layout), show(array, name, layout), grid(array, layout=layout)]
    if array.dtype.kind != "O":
        views.append(spark(array, layout=layout))
        if array.ndim >= 2:
            views.append(image(array, layout=layout))
        if array.ndim >= 3:
            views.append(channel_strip(array, layout=layout))
    for view in views:
        assert isinstance(view, Text)
        assert view.plain
        assert all(cell_len(line) <= width for line in view.plain.split("\n"))
        if not unicode and array.dtype.kind != "O" and name.isascii():
            assert view.plain.isascii()


COUNTS = st.integers(0, 10**12)


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=9),
    st.lists(COUNTS, min_size=8, max_size=8),
    st.tuples(COUNTS, COUNTS, COUNTS),
    st.integers(1, 90),
    st.booleans(),
)
def test_every_histogram_fits(
    edges: list[float], counts: list[int], nonfinite: tuple[int, int, int], width: int, unicode: bool
) -> None:
    bins = Histogram(np.sort(edges), np.array(counts[: len(edges) - 1]), *nonfinite)
    view = histogram_bars(bins, Layout(width, unicode=unicode)).plain
    lines = view.split("\n")
    assert all(cell_len(line) <= width for line in lines)
    assert unicode or view.isascii()
    shown = len(edges) - 1 + sum(count > 0 for count in nonfinite)
    assert len(lines) == (shown if any(bins.counts) or any(nonfinite) else 1)


@pytest.mark.parametrize("view", [image, channel_strip])
def test_pictures_reject_vectors_and_strings(view: Any) -> None:
    with pytest.raises(UsageError, match="axes"):
        view(np.arange(3))
    with pytest.raises(UsageError, match="strings cannot be drawn"):
        view(np.full((2, 2, 2), "a", object))
