"""Samples, histograms and statistics of tensors, for the views of the extension."""

from __future__ import annotations

import base64
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nncdbg import dtypes
from nncdbg.dap_server.handlers.tensors import (
    MAX_BINS,
    MAX_ELEMENTS,
    MAX_REDUCED,
    json_numbers,
    packed,
    sampling,
)
from nncdbg.ir.records import Array
from nncdbg.stats.blocks import Reduction, reduce_blocks
from tests.dap_server import odd_values
from tests.dap_server.client import Client


def sample(client: Client, **arguments: Any) -> Any:
    return client.request("nncdbg/slice", arguments)


def test_samples_have_the_elements_of_every_kind_of_value(client: Client, tmp_path: Path) -> None:
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


def test_known_data_is_not_sent_again(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    whole = sample(client, name="narrow")
    client.move("stepBack")
    again = sample(client, name="narrow", known=whole["version"])
    assert again["unchanged"]
    assert again["data"] == ""
    other = sample(client, name="small", known=whole["version"])
    assert "unchanged" not in other
    assert other["data"] == [0, 1, 2, 3, 4, 5]
    client.request("setExpression", {"expression": "%narrow[0, 0]", "value": "7"})
    edited = sample(client, name="narrow", known=whole["version"])
    assert edited["data"][0] == 7.0
    assert "version" not in sample(client, name="small", against={"expression": "%small"})


def test_parts_are_selected_by_index_and_by_axes(client: Client, tmp_path: Path) -> None:
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
        ({"name": "x", "index": "5"}, "the index is invalid"),
        ({"name": "x", "index": "0, 0, 0"}, "the index is invalid"),
        ({"name": "x", "index": "("}, "expected"),
        ({"name": "x", "axes": [{"step": 0}]}, "the index is invalid"),
        ({"name": "x", "index": "0", "axes": []}, "use only one of `index` and `axes`"),
        ({"name": "x", "expression": "%x"}, "either `name` or `expression`"),
        ({}, "either `name` or `expression`"),
        ({"name": "nope"}, "nope"),
        ({"name": "rows"}, "not a tensor"),
        ({"expression": '"text"'}, "not a tensor"),
        ({"name": "x", "maxElements": 0}, "a sample cannot have 0 elements"),
        ({"name": "x", "maxElements": MAX_ELEMENTS + 1}, "request 1 to"),
        ({"name": 5}, "name"),
        ({"name": "x", "frameId": 999_999}, "frame no longer exists"),
    ]
    for arguments, reason in wrong:
        message = client.refused("nncdbg/slice", arguments)
        assert reason in message, message
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
    took: list[float] = []
    while len(took) < 50 and min(took, default=1.0) >= 0.1:
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
        request = client.send(command, arguments)
        client.request("cancel", {"requestId": request})
        response = client.expect_response(request)
        assert not response["success"]
        assert response["message"] == "cancelled"
    request = client.send("nncdbg/stats", {"expressions": ["%x"]})
    client.move("next")
    assert client.expect_response(request)["message"] == "cancelled", "the program has moved on"


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
    assert "not a tensor" in rows["error"]
    assert empty["stats"]["count"] == 0
    assert number["stats"]["mean"] == 2.5
    histogram = client.request("nncdbg/histogram", {"expression": '%"odd name"', "bins": 3})
    assert (histogram["counts"], histogram["nan"]) == ([2, 0, 1], 1)
    assert len(histogram["edges"]) == 4
    ranged = client.request("nncdbg/histogram", {"expression": "%x", "bins": 2, "range": [0, 4]})
    assert (ranged["edges"], ranged["counts"]) == ([0, 2, 4], [2, 3])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"expression": "%x", "bins": 0}, "0 bins"),
        ({"expression": "%x", "bins": MAX_BINS + 1}, "request 1 to"),
        ({"expression": "%x", "range": [4, 0]}, "range"),
        ({"expression": "%words"}, "strings have no histogram"),
        ({"expression": "%x", "range": [0]}, "range"),
        ({}, "expression"),
    ]
    for arguments, expected in wrong:
        assert expected in client.refused("nncdbg/histogram", arguments)


def test_the_next_nonfinite_element_is_found_in_order_and_wraps_around(
    client: Client, tmp_path: Path
) -> None:
    odd_values.start(client, tmp_path)
    found = [
        client.request("nncdbg/nonfinite", {"expression": '%"odd name"', "start": start})["index"]
        for start in range(6)
    ]
    assert found == [[0, 0], [0, 1], [0, 2], [0, 0], [0, 0], [0, 0]]
    for finite in ("%x", "%small", "%words", "%empty", "2.5"):
        assert client.request("nncdbg/nonfinite", {"expression": finite}) == {"index": None}
    assert client.request("nncdbg/nonfinite", {"expression": "%x / 0"})["index"] == [0, 0]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"expression": "%x", "start": 6}, "no element at position 6"),
        ({"expression": "%x", "start": -1}, "no element at position -1"),
        ({"expression": "%rows"}, "not a tensor"),
    ]
    for arguments, expected in wrong:
        assert expected in client.refused("nncdbg/nonfinite", arguments)


def unpacked(body: Any) -> Array:
    """Decode the base64 cells of an answer; complex values are pairs along the last axis."""
    dtype = np.dtype(dtypes.NUMPY[body["elements"]]).newbyteorder("<")
    flat = np.frombuffer(base64.b64decode(body["data"]), dtype)
    return (
        flat.reshape(*body["shape"], -1)
        if flat.size != math.prod(body["shape"])
        else flat.reshape(body["shape"])
    )


def start_with(client: Client, folder: Path, **tensors: Array) -> None:
    """Stop at the start of a program with these input tensors."""
    names = ", ".join(
        f"%{name}: {dtypes.name_of(array.dtype)}[{','.join(map(str, array.shape))}]"
        for name, array in tensors.items()
    )
    first, array = next(iter(tensors.items()))
    kind = f"{dtypes.name_of(array.dtype)}[{','.join(map(str, array.shape))}]"
    text = f"#nncdbg 1\nopset 21\n\ngraph @main({names}) -> (%out: {kind}) {{\n"
    (folder / "given.nnc").write_text(f"{text}  %out: {kind} = Identity(%{first})\n  return %out\n}}\n")
    for name, array in tensors.items():
        np.save(folder / f"{name}.npy", array)
    client.start("given.nnc", inputs={name: f"{name}.npy" for name in tensors}, initialize=odd_values.FLAGS)


PLAIN = ["f32", "f64", "f16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"]


def test_numbers_are_sent_as_bytes(client: Client, tmp_path: Path) -> None:
    tensors = {f"x_{name}": np.arange(6).reshape(2, 3).astype(dtypes.NUMPY[name]) for name in PLAIN}
    tensors["big"] = np.array([2**63 - 1, -(2**63)], np.int64)
    tensors["pairs"] = np.array([[1 + 2j, complex(np.nan, -np.inf)]], np.complex64)
    start_with(client, tmp_path, **tensors)
    for name, array in tensors.items():
        body = sample(client, name=name, encoding="base64")
        found = unpacked(body)
        if name == "pairs":
            assert body["elements"] == "f32"
            np.testing.assert_array_equal(found, [[[1, 2], [np.nan, -np.inf]]])
        else:
            expected = {"x_f16": "f32", "x_bool": "u8"}.get(name, dtypes.name_of(array.dtype))
            assert body["elements"] == expected
            np.testing.assert_array_equal(found, array)
    assert "elements" not in sample(client, name="big")


def test_narrow_types_are_sent_as_bytes(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    for name, elements, expected in (
        ("narrow", "f32", [[0, 1, 2], [3, 4, 5]]),
        ("small", "i8", [[0, 1, 2], [3, 4, 5]]),
        ("empty", "f32", np.zeros((0, 3))),
        ('%"größe/1"', "f32", 5),
    ):
        body = sample(client, name=name, encoding="base64")
        assert body["elements"] == elements
        np.testing.assert_array_equal(unpacked(body), expected)
    assert "cannot be sent as bytes" in client.refused(
        "nncdbg/slice", {"name": "words", "encoding": "base64"}
    )
    assert "Invalid" in client.refused("nncdbg/slice", {"name": "x", "encoding": "hex"})
    assert "Invalid" in client.refused("nncdbg/slice", {"name": "x", "reduce": "median"})


def test_block_reduction_misses_no_element(client: Client, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 1 << 20, dtype=np.float32).reshape(1024, 1024)
    x[701, 333], x[200, 800], x[201, 801] = np.nan, np.inf, -np.inf
    start_with(client, tmp_path, x=x)
    request = {"name": "x", "maxElements": 4096, "encoding": "base64"}
    strided = sample(client, **request)
    assert strided["reduce"] == "stride"
    assert np.isfinite(unpacked(strided)).all(), "a strided sample skips elements"
    body = sample(client, **request, reduce="absmax")
    assert (body["reduce"], body["stride"], body["shape"]) == ("absmax", [16, 16], [64, 64])
    assert (body["nan"], body["posinf"], body["neginf"]) == (1, 1, 1)
    flags = np.frombuffer(base64.b64decode(body["flags"]), np.uint8).reshape(64, 64)
    assert {tuple(place): int(flags[*place]) for place in np.argwhere(flags)} == {(43, 20): 1, (12, 50): 6}
    blocks = np.where(np.isfinite(x), x, 0).reshape(64, 16, 64, 16)
    np.testing.assert_array_equal(np.abs(unpacked(body)), np.abs(blocks).max((1, 3)))
    for reduce, expected in (("min", blocks.min((1, 3))), ("max", blocks.max((1, 3)))):
        found = unpacked(sample(client, **request, reduce=reduce))
        clean = flags == 0
        np.testing.assert_array_equal(found[clean], expected[clean])
    small = sample(client, name="x", index=":2, :2", reduce="mean")
    assert (small["reduce"], small["stride"]) == ("stride", [1, 1]), "all fit: nothing is reduced"
    line = sample(client, name="x", index="701", maxElements=16, reduce="range", encoding="base64")
    assert line["shape"] == [16, 2]


def test_strings_are_not_reduced(client: Client, tmp_path: Path) -> None:
    odd_values.start(client, tmp_path)
    assert sample(client, name="words", reduce="max")["data"] == ["plain", "größe"], "all fit"
    refused: tuple[dict[str, Any], ...] = (
        {"maxElements": 1, "reduce": "max"},
        {"against": {"expression": "%words"}},
    )
    for arguments, expected in zip(refused, ("cannot be reduced", "no difference"), strict=True):
        assert expected in client.refused("nncdbg/slice", {"name": "words", **arguments})


def test_a_difference_is_to_a_tensor_or_a_branch(client: Client, tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = x.copy()
    x[0, 0] = y[0, 0] = np.nan
    y[2, 3] += 0.5
    start_with(client, tmp_path, x=x, y=y, z=np.zeros(3, np.float32))
    against = {"expression": "%y"}
    there = sample(client, name="x", against=against, part="there", index="2")
    assert there["data"] == [8, 9, 10, 11.5]
    difference = sample(client, expression="%x", against=against)
    assert difference["data"] == [0] * 11 + [-0.5]
    found = client.request("nncdbg/compare", {"expression": "%x", "against": against})
    assert (found["mismatched"], found["max_abs"], found["worst"], found["types"]) == (
        1,
        0.5,
        [2, 3],
        ["f32[3,4]"] * 2,
    )
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"expression": "%z"}, "cannot be compared"),
        ({}, "needs exactly one other tensor"),
        ({"expression": "%y", "branch": 0}, "needs exactly one other tensor"),
        ({"branch": "other"}, "only one branch"),
        ({"branch": 7}, "no branch 7"),
        ({"expression": "prev(%x)"}, "no previous value"),
    ]
    for given, expected in wrong:
        for command in ("nncdbg/slice", "nncdbg/compare"):
            assert expected in client.refused(command, {"expression": "%x", "against": given})
    client.move("next")
    client.request("setExpression", {"expression": "%x[2, 3]", "value": "20"})
    other = sample(client, expression="%x", against={"branch": "other"})
    assert other["data"] == [0] * 11 + [9]
    assert client.request("nncdbg/compare", {"expression": "%x", "against": {"branch": 0}})["max_abs"] == 9
    assert "is only part of a value" in client.refused(
        "nncdbg/slice", {"expression": "%x[0]", "against": {"branch": 0}}
    )


def test_a_difference_is_reduced_by_blocks(client: Client, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((300, 500)).astype(np.float32)
    y = x.copy()
    y[123, 456] += 3
    start_with(client, tmp_path, x=x, y=y)
    request = {"name": "x", "maxElements": 500, "against": {"expression": "%y"}, "reduce": "absmax"}
    body = sample(client, **request)
    found = np.array(body["data"]).reshape(body["shape"])
    place = tuple(np.array([123, 456]) // body["stride"])
    assert found[place] == pytest.approx(-3, abs=1e-6)
    assert np.count_nonzero(found) == 1


def test_a_reduction_and_a_comparison_can_be_cancelled(client: Client, tmp_path: Path) -> None:
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (1 << 25,))[0] = 7
    (tmp_path / "large.nnc").write_text(
        f"#nncdbg 1\nopset 18\n\ngraph @main(%x: u8[{1 << 25}]) -> (%y: u8[1]) {{\n"
        "  %y: u8[1] = Slice(%x, [0], [1])\n  return %y\n}\n"
    )
    client.start("large.nnc", inputs={"x": "x.npy"})
    for command, arguments in {
        "nncdbg/slice": {"name": "x", "reduce": "mean"},
        "nncdbg/compare": {"expression": "%x", "against": {"expression": "%x"}},
    }.items():
        # The first request runs while the second waits; the waiting one is answered at once.
        request = (
            client.send("nncdbg/compare", {"expression": "%x", "against": {"expression": "%x"}}),
            client.send(command, arguments),
        )
        for each in reversed(request):
            client.request("cancel", {"requestId": each})
        for each in request:
            assert client.expect_response(each)["message"] == "cancelled"
    assert sample(client, name="x", maxElements=4, reduce="max")["data"] == [7, 0, 0, 0]


def test_beyond_the_limit_a_strided_sample_is_taken_and_reported(client: Client, tmp_path: Path) -> None:
    size = MAX_REDUCED + 1
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (size,))[1] = 7
    (tmp_path / "large.nnc").write_text(
        f"#nncdbg 1\nopset 18\n\ngraph @main(%x: u8[{size}]) -> (%y: u8[1]) {{\n"
        "  %y: u8[1] = Slice(%x, [0], [1])\n  return %y\n}\n"
    )
    client.start("large.nnc", inputs={"x": "x.npy"})
    body = sample(client, name="x", reduce="max")
    assert (body["reduce"], max(body["data"])) == ("stride", 0)
    assert sample(client, name="x", index=":-1", reduce="max")["data"][0] == 7


@pytest.mark.parametrize("rank", range(7))
def test_blocks_of_every_rank(rank: int) -> None:
    shape = (5, 4, 3, 4, 5, 2)[:rank]
    x = np.random.default_rng(rank).standard_normal(shape)
    steps = sampling(shape, 20)
    expected = np.full([-(-size // step) for size, step in zip(shape, steps, strict=True)], -np.inf)
    for place in np.ndindex(*shape):
        cell = tuple(index // step for index, step in zip(place, steps, strict=True))
        expected[cell] = max(expected[cell], x[place])
    np.testing.assert_array_equal(reduce_blocks(x, steps, "max", lambda: None).data, expected)
    turned = x.copy(order="F")
    np.testing.assert_array_equal(reduce_blocks(turned, steps, "max", lambda: None).data, expected)
    mean = reduce_blocks(np.ones(shape), steps, "mean", lambda: None)
    np.testing.assert_array_equal(mean.data, np.ones(expected.shape))


@pytest.mark.parametrize("name", sorted(set(dtypes.NUMPY) - {"str"}))
def test_blocks_of_every_dtype(name: str) -> None:
    least = 0.5 if name == "f8e8m0fnu" else 0  # which has no zero
    x = np.array([least, 1, least, 1, 1, 1, least], np.float32).astype(dtypes.NUMPY[name])
    data = reduce_blocks(x, [4], "range", lambda: None).data
    np.testing.assert_array_equal(data, [[least, 1], [least, 1]])
    assert packed(x)[0] in {"f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"}


@pytest.mark.parametrize("reduction", ["mean", "min", "max", "absmax", "range"])
def test_a_block_without_finite_elements_is_nan(reduction: Reduction) -> None:
    x = np.array([np.nan, np.inf, 1, -3, np.nan, np.nan], np.float32)
    found = reduce_blocks(x, [2], reduction, lambda: None)
    assert found.flags.tolist() == [3, 0, 1]
    expected = {"mean": -1, "min": -3, "max": 1, "absmax": -3, "range": [-3, 1]}[reduction]
    np.testing.assert_array_equal(found.data[1], expected)
    assert np.isnan(found.data[[0, 2]]).all()
    assert (found.nan, found.posinf, found.neginf) == (3, 1, 0)


def test_the_lowest_integer_has_the_largest_magnitude() -> None:
    x = np.array([-128, 127, 3, -2], np.int8)
    assert reduce_blocks(x, [2], "absmax", lambda: None).data.tolist() == [-128, 3]
    assert reduce_blocks(np.zeros((0, 4)), [1, 2], "min", lambda: None).data.shape == (0, 2)
