"""Samples, histograms and statistics of tensors, and marks, as views of our own ask for them."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg.dap_server.handlers.tensors import MAX_BINS, MAX_ELEMENTS, json_numbers, sampling
from nncdbg.engine.graph import Array
from tests.dap_server import odd_values
from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES


def sample(client: Client, **arguments: Any) -> Any:
    return client.request("nncdbg/slice", arguments)


def test_values_of_every_kind(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    data: dict[str, list[Any]] = {
        "odd name": ["NaN", "Infinity", "-Infinity", pytest.approx(0.1), -0.0, 3.0],
        '%"größe/1"': [5.0],
        "narrow": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        "small": [0, 1, 2, 3, 4, 5],
        "flags": [False, True, True, True, True, True],
        "words": ["plain", "größe"],
        "empty": [],
        "%turned": [0.0, 3.0, 1.0, 4.0, 2.0, 5.0],
    }
    for name, elements in data.items():
        body = sample(client, name=name)
        assert body["data"] == elements
        assert math.prod(body["shape"]) == len(elements)
        assert body["shape"] == body["sourceShape"]
    assert sample(client, expression="%x * 2", index="1")["data"] == [6.0, 8.0, 10.0]
    assert sample(client, name="words", index="1")["data"] == ["größe"]
    assert json_numbers(np.array([1 + 2j, complex(np.nan, np.inf)])) == [[1.0, 2.0], ["NaN", "Infinity"]]


def test_parts_by_index_and_by_axes(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    parts: list[tuple[dict[str, Any], Array]] = [
        ({"index": "0"}, odd_values.X[0]),
        ({"index": "[:, 1]"}, odd_values.X[:, 1]),
        ({"index": "..., ::-1"}, odd_values.X[..., ::-1]),
        ({"index": "1, 2"}, odd_values.X[1, 2]),
        ({"index": "%flags"}, odd_values.X[odd_values.X > 0.5]),
        ({"axes": [{"start": 1}]}, odd_values.X[1:]),
        ({"axes": [{}, {"stop": -1, "step": 2}]}, odd_values.X[:, :-1:2]),
    ]
    for arguments, expected in parts:
        body = sample(client, name="x", **arguments)
        assert body["data"] == np.ravel(expected).tolist()
        assert body["shape"] == list(np.shape(expected))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"name": "x", "index": "5"}, "does not fit"),
        ({"name": "x", "index": "0, 0, 0"}, "does not fit"),
        ({"name": "x", "index": "("}, "expected"),
        ({"name": "x", "axes": [{"step": 0}]}, "does not fit"),
        ({"name": "x", "index": "0", "axes": []}, "give one of them"),
        ({"name": "x", "expression": "%x"}, "either `name` or `expression`"),
        ({}, "either `name` or `expression`"),
        ({"name": "nope"}, "nope"),
        ({"name": "rows"}, "no tensor"),
        ({"expression": '"text"'}, "no tensor"),
        ({"name": "x", "maxElements": 0}, "a sample of 0 elements"),
        ({"name": "x", "maxElements": MAX_ELEMENTS + 1}, "ask for 1 to"),
        ({"name": 5}, "name"),
        ({"name": "x", "frameId": 999_999}, "frame is gone"),
    ]
    for arguments, words in wrong:
        message = client.refused("nncdbg/slice", arguments)
        assert words in message, message
        assert "internal error" not in message


@pytest.mark.parametrize(
    ("shape", "most"),
    [((), 1), ((5,), 5), ((6,), 5), ((1000, 3), 10), ((64, 64, 3), 100), ((10**9,), 16384), ((0, 9), 1)],
)
def test_a_sample_is_small_enough_and_not_much_smaller(shape: tuple[int, ...], most: int) -> None:
    steps = sampling(shape, most)
    left = [-(-size // step) for size, step in zip(shape, steps, strict=True)]
    assert math.prod(left) <= most
    assert 0 in shape or math.prod(left) * 2 >= min(most, math.prod(shape)) / 2
    assert math.prod(shape) > most or set(steps) <= {1}


def test_a_billion_elements_open_as_fast_as_ten(client: Client, tmp_path: Path) -> None:
    rows, size = 1000, 1_000_000
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (rows, size))[rows - 1, 0] = 7
    (tmp_path / "large.nnc").write_text(
        f"#nncdbg 1\nopset 18\n\ngraph @main(%x: u8[{rows},{size}]) -> (%y: u8[1,1]) {{\n"
        "  %y: u8[1,1] = Slice(%x, [0,0], [1,1])\n  return %y\n}\n"
    )
    client.start("large.nnc", inputs={"x": "x.npy"}, initialize=odd_values.FLAGS)
    sample(client, name="x", index=":2, :2")
    took = []
    for _ in range(5):
        start = time.perf_counter()
        body = sample(client, name="x", maxElements=1000)
        last = sample(client, name="x", index="-1, :3")
        memory = client.request("evaluate", {"expression": "%x"})["memoryReference"]
        client.request("readMemory", {"memoryReference": memory, "offset": 999_000_000, "count": 4})
        took.append(time.perf_counter() - start)
    assert last["data"] == [7, 0, 0]
    assert 250 <= len(body["data"]) <= 1000
    assert body["sourceShape"] == [rows, size]
    assert min(took) < 0.1, "four answers, while other tests run"


def test_a_full_pass_can_be_cancelled(client: Client, tmp_path: Path) -> None:
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (2_000_000_000,))[0] = 7
    (tmp_path / "large.nnc").write_text(
        "#nncdbg 1\nopset 18\n\ngraph @main(%x: u8[2000000000]) -> (%y: u8[1]) {\n"
        "  %y: u8[1] = Slice(%x, [0], [1])\n  return %y\n}\n"
    )
    client.start("large.nnc", inputs={"x": "x.npy"})
    for command, arguments in {
        "nncdbg/stats": {"expressions": ["%x"]},
        "nncdbg/histogram": {"expression": "%x"},
    }.items():
        asked = client.send(command, arguments)
        client.request("cancel", {"requestId": asked})
        response = client.expect_response(asked)
        assert not response["success"]
        assert response["message"] == "cancelled"
    asked = client.send("nncdbg/stats", {"expressions": ["%x"]})
    client.move("next")
    assert client.expect_response(asked)["message"] == "cancelled", "the program has moved on"


def test_statistics_and_histograms(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    texts = ['%"odd name"', "%x * 2", "%nope", "%words", "%rows", "%empty", "2.5"]
    odd, doubled, nope, words, rows, empty, number = client.request("nncdbg/stats", {"expressions": texts})[
        "statistics"
    ]
    assert odd["expression"] == texts[0]
    assert odd["type"] == "f32[2,3]"
    stats = odd["stats"]
    assert (stats["nan"], stats["posinf"], stats["neginf"], stats["count"]) == (1, 1, 1, 6)
    assert list(stats) == [
        "min", "max", "mean", "std", "nan", "posinf", "neginf", "zero", "subnormal", "count"
    ]  # fmt: skip
    assert doubled["stats"]["max"] == 10
    assert doubled["seconds"] >= 0
    assert "%nope" in nope["error"]
    assert (words["stats"]["count"], words["stats"]["min"]) == (2, None)
    assert "no tensor" in rows["error"]
    assert empty["stats"]["count"] == 0
    assert number["stats"]["mean"] == 2.5
    histogram = client.request("nncdbg/histogram", {"expression": '%"odd name"', "bins": 3})
    assert (histogram["counts"], histogram["nan"]) == ([2, 0, 1], 1)
    assert len(histogram["edges"]) == 4
    ranged = client.request("nncdbg/histogram", {"expression": "%x", "bins": 2, "range": [0, 4]})
    assert (ranged["edges"], ranged["counts"]) == ([0, 2, 4], [2, 3])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"expression": "%x", "bins": 0}, "0 bins"),
        ({"expression": "%x", "bins": MAX_BINS + 1}, "ask for 1 to"),
        ({"expression": "%x", "range": [4, 0]}, "range"),
        ({"expression": "%words"}, "strings have no histogram"),
        ({"expression": "%x", "range": [0]}, "range"),
        ({}, "expression"),
    ]
    for arguments, expected in wrong:
        assert expected in client.refused("nncdbg/histogram", arguments)


def test_marks(client: Client) -> None:
    client.start(EXAMPLES / "first_steps.nnc")
    assert client.request("nncdbg/marks", {}) == {"marks": []}
    start = {"name": "start", "statements": 0, "branch": 0, "here": True}
    assert client.request("nncdbg/marks", {"action": "set", "name": "start"}) == {"marks": [start]}
    client.move("next")
    client.evaluate("mark later", "repl")
    marks = client.request("nncdbg/marks", {"action": "list"})["marks"]
    assert [(mark["name"], mark["here"]) for mark in marks] == [("start", False), ("later", True)]
    client.request("nncdbg/marks", {"action": "goto", "name": "start"})
    client.expect_event("continued")
    client.expect_stop("entry")
    client.request("nncdbg/marks", {"action": "goto", "name": "later"})
    client.expect_stop("goto")
    left = client.request("nncdbg/marks", {"action": "delete", "name": "start"})["marks"]
    assert [mark["name"] for mark in left] == ["later"]
    for action in ("goto", "delete"):
        message = client.refused("nncdbg/marks", {"action": action, "name": "start"})
        assert message == "there is no mark 'start' (marks: later)"
    assert "a mark has a name" in client.refused("nncdbg/marks", {"action": "set"})
    assert "action" in client.refused("nncdbg/marks", {"action": "drop"})
