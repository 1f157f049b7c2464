"""The HTML of programs, debuggers, reports and tensors in a notebook."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

import nncdbg
from nncdbg.notebook import render
from nncdbg.opening.corpus.cases import Case
from nncdbg.opening.diff_corpus_report import DiffCase, DiffCorpusReport

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
HOSTILE = '"</style><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\\u001b[2J\\u202e"'


class _HtmlReader(HTMLParser):
    """Collects tags, attributes and text, and checks that tags are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "img":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data


TAGS = {*"div style b pre span table thead tbody tr th td img svg polyline rect".split()}  # noqa: SIM905
ATTRIBUTES = {*"class style src width height alt points fill stroke stroke-width title x".split()}  # noqa: SIM905


def read_html(shown: Any) -> _HtmlReader:
    found = _HtmlReader(shown._repr_html_())
    assert found.tags <= TAGS
    assert found.attributes <= ATTRIBUTES
    return found


def debugger_at(line: int | None) -> nncdbg.Debugger:
    debugger = nncdbg.Debugger(EXAMPLES / "first_steps.nnc")
    if line is None:
        debugger.run()
    else:
        debugger.run_to(line=line)
    return debugger


def test_a_program_shows_its_signature_and_its_text() -> None:
    text = read_html(nncdbg.load(EXAMPLES / "first_steps.nnc")).text
    assert text.startswith("first_steps.nnc: @main(%x: f32[2,4])")
    assert "%probs = Softmax(%final, axis=-1) : f32[2,3]" in text
    assert "more lines" not in text


def test_a_long_program_shows_its_first_lines() -> None:
    lines = "".join(f"  %x{n + 1}: f32[] = Add(%x{n}, 1.0)\n" for n in range(3000))
    program = nncdbg.parse(f"graph @main(%x0: f32[]) -> (%x3000: f32[]) {{\n{lines}  return %x3000\n}}\n")
    html = program._repr_html_()
    assert "2,943 more lines: use print(program) to see all" in html
    assert len(html) < 40_000


def test_a_debugger_shows_the_statement_and_its_values() -> None:
    text = read_html(debugger_at(17)).text
    assert "in @sharpen" in text
    assert re.search(r"-> 17 +%s\.1 = Mul\(%s, 1\.5\) : f32\[2,3\]", text)
    assert "%sf32[2,3]" in text


def test_a_debugger_that_ended_shows_its_outputs() -> None:
    found = read_html(debugger_at(None))
    assert "ended after 52 statements" in found.text
    assert "%probsf32[2,3]" in found.text
    assert "img" in found.tags


def test_a_debugger_at_a_failure_shows_the_error() -> None:
    text = "graph @main(%x: f32[2]) -> (%y) {\n  %y = mine.Unknown(%x)\n  return %y\n}\n"
    debugger = nncdbg.Debugger(nncdbg.parse(text))
    stop = debugger.run()
    for shown in (debugger, stop):
        assert "error: mine.Unknown has no kernel" in read_html(shown).text


def test_a_stop_shows_why_and_where() -> None:
    debugger = nncdbg.Debugger(EXAMPLES / "first_steps.nnc")
    debugger.break_at(op="Softmax")
    text = read_html(debugger.run()).text
    assert text.startswith("breakpoint at line 13%p = Softmax(%s, axis=-1) : f32[2,3]")


def test_reports_show_their_text() -> None:
    for report in (
        nncdbg.watch(EXAMPLES / "nan_softmax.nnc"),
        nncdbg.diff(EXAMPLES / "attention.nnc", dtype_b="f16"),
        DiffCorpusReport([DiffCase("1.npz", "equal"), Case("2.npz", "unfit", error=HOSTILE)]),
    ):
        shown = read_html(report).text
        assert [line.rstrip() for line in shown.split("\n")] == [
            line.rstrip() for line in str(report).split("\n")
        ]


def test_statistics_are_shown_as_a_table() -> None:
    summary = nncdbg.summarize(np.array([1.0, np.nan, 3.0, -np.inf]))
    found = read_html(summary)
    assert found.text == "minmeanmaxstdnan+inf-infzerosubnormalcount1231101004"
    assert '<span class="bad">1</span>' in summary._repr_html_()


def test_outputs_show_every_value() -> None:
    outputs = nncdbg.run(EXAMPLES / "first_steps.nnc")
    text = read_html(outputs).text
    assert "%probsf32[2,3]" in text
    assert "%stepsi64[]5" in text


def test_a_tensor_is_an_array_with_a_name() -> None:
    debugger = debugger_at(17)
    tensor = debugger["%s"]
    np.testing.assert_array_equal(np.asarray(tensor), debugger.value("s"))
    np.testing.assert_array_equal(np.asarray(tensor, np.float64), debugger.value("s"))
    assert (str(tensor.type), tensor.shape, tensor.stats.count) == ("f32[2,3]", (2, 3), 6)
    assert repr(tensor) == f"<Tensor %s f32[2,3] {tensor.stats}>"
    with pytest.raises(nncdbg.NotComputed):
        debugger["%probs"]


def pixels(html: str) -> list[np.ndarray[Any, Any]]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


def test_the_picture_of_a_matrix_has_a_pixel_per_element() -> None:
    array = np.array([[0.0, 1.0, np.nan], [np.inf, -np.inf, 0.5]], np.float32)
    (image,) = pixels(nncdbg.Tensor(array)._repr_html_())
    assert image.shape == (2, 3, 3)
    assert image[0, 0].tolist() == [68, 1, 84]
    assert image[0, 1].tolist() == [253, 231, 37]
    assert image[0, 2].tolist() == [255, 0, 255]
    assert image[1, 0].tolist() == [255, 40, 40]
    assert image[1, 1].tolist() == [40, 80, 255]


def test_one_nan_of_a_million_elements_is_in_the_picture() -> None:
    array = np.zeros((1000, 1000), np.float32)
    array[517, 300] = np.nan
    html = nncdbg.Tensor(array)._repr_html_()
    (image,) = pixels(html)
    assert image.shape == (125, 125, 3)
    assert (image == (255, 0, 255)).all(axis=-1).sum() == 1
    assert "each cell is the mean of 8 x 8 elements" in html


def test_three_axes_are_drawn_as_several_images_on_one_scale() -> None:
    array = np.arange(2 * 4 * 3 * 3, dtype=np.float32).reshape(2, 4, 3, 3)
    html = nncdbg.Tensor(array)._repr_html_()
    images = pixels(html)
    assert len(images) == 6
    assert "scale 0 to 53; images 1 to 6 of 8" in html
    assert images[0][0, 0].tolist() == [68, 1, 84]
    assert images[5][2, 2].tolist() == [253, 231, 37]


def test_a_vector_is_drawn_as_a_line_with_marks() -> None:
    array = np.sin(np.arange(100.0))
    array[40] = np.nan
    html = nncdbg.Tensor(array)._repr_html_()
    assert html.count("<rect") == 1
    assert len(re.search(r'points="([^"]+)"', html)[1].split()) == 99  # type: ignore[index]


UNUSUAL: dict[str, Callable[[], Any]] = {
    "scalar": lambda: np.float32(3),
    "empty": lambda: np.zeros((0, 3)),
    "bool": lambda: np.eye(5, dtype=bool),
    "int4": lambda: np.arange(12).reshape(3, 4).astype(ml_dtypes.int4),
    "bf16": lambda: np.ones((3, 4), ml_dtypes.bfloat16),
    "complex": lambda: np.ones((3, 4), complex),
    "strings": lambda: np.array([["a", "<b>"]], object),
    "all nan": lambda: np.full((30, 40), np.nan),
    "huge": lambda: np.array([[1.7e308, -1.7e308], [0, 1]]),
    "long": lambda: np.ones((1, 5000, 2)),
    "vector of nan": lambda: np.full(50, np.nan),
    "f16 beyond": lambda: np.full((300, 300), 65504, np.float16),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_tensors_render(kind: str) -> None:
    with np.errstate(all="raise"):
        found = read_html(nncdbg.Tensor(UNUSUAL[kind]()))
    assert "NaN" not in found.text


def test_hostile_names_and_strings_are_escaped() -> None:
    text = "graph @H(%H: f32[2], %t: str[1]) -> (%y, %u) {\n  %y = Log(%H)\n  %u = Identity(%t)\n"
    text += "  return %y, %u\n}\n"
    program = nncdbg.parse(text.replace("@H", "@" + HOSTILE).replace("%H", "%" + HOSTILE))
    value = np.array(["<script>alert(2)</script>"], object)
    name = next(iter(program.graph.inputs)).name
    inputs = {name: [-1.0, 0.0], "t": value}
    debugger = nncdbg.Debugger(program, inputs)
    debugger.catch("nan")
    shown = [program, debugger, debugger.run(), debugger, debugger[name]]
    shown += [nncdbg.watch(program, inputs), nncdbg.diff(program, None, inputs, allocator_b="arena")]
    debugger.uncatch()
    debugger.run()
    assert debugger.outputs is not None
    shown += [debugger, debugger.outputs, nncdbg.Tensor(value, name)]
    for each in shown:
        found = read_html(each)
        assert "script" not in found.tags
        assert "\x1b" not in found.text
        assert "\u202e" not in found.text


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="cannot render int as HTML"):
        render(3)
