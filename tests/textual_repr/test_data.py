"""Numbers, strings and arrays read back with the same bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.dtypes import NUMPY, name_of
from nncdbg.ir.records import Array, Constant, Graph, Inline, Node, Program, TensorType, Value
from nncdbg.text.lexemes import quote, quote_bytes, unquote
from nncdbg.text.types import parse_type as type_of_text
from nncdbg.text.types import print_type
from nncdbg.textual_repr import parse, print_program
from nncdbg.textual_repr.literals import array_text
from tests.textual_repr.strategies import types


def through_text(array: Array) -> Array:
    """Print `array` as a constant of a program, parse the text, and return the parsed array."""
    type = TensorType(name_of(array.dtype), array.shape)
    constant = Constant(Value("c", type), Inline(array))
    program = Program({"f": Graph("f", constants=(constant,))}, "f")
    data = parse(print_program(program)).graphs["f"].constants[0].data
    assert isinstance(data, Inline)
    return data.array


def assert_same_bits(array: Array) -> None:
    again = through_text(array)
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_16_bit_pattern_reads_back(dtype: str) -> None:
    assert_same_bits(np.arange(65536, dtype=np.uint16).view(NUMPY[dtype]))


@pytest.mark.parametrize("dtype", [name for name in NUMPY if name.startswith("f8")])
def test_every_8_bit_pattern_reads_back(dtype: str) -> None:
    assert_same_bits(np.arange(256, dtype=np.uint8).view(NUMPY[dtype]))


@pytest.mark.parametrize("dtype", ["f4e2m1fn", "i4", "u4", "i2", "u2", "i8", "u8"])
def test_every_value_of_small_types_reads_back(dtype: str) -> None:
    limits = (-8, 8) if dtype == "f4e2m1fn" else (int(ml_dtypes.iinfo(NUMPY[dtype]).min), 256)
    values = np.arange(*limits).astype(NUMPY[dtype])
    assert_same_bits(values)


@pytest.mark.parametrize(("dtype", "bits"), [("f32", np.uint32), ("f64", np.uint64), ("c64", np.uint64)])
def test_random_bit_patterns_read_back(dtype: str, bits: type) -> None:
    raw = np.random.default_rng(7).integers(0, np.iinfo(bits).max, 10_000, bits, endpoint=True)
    assert_same_bits(raw.view(NUMPY[dtype]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_subnormals_and_limits_read_back(dtype: str) -> None:
    limits = np.finfo(NUMPY[dtype])
    edges = [
        0.0,
        -0.0,
        limits.tiny,
        limits.smallest_subnormal,
        -limits.smallest_subnormal,
        limits.max,
        limits.min,
    ]
    values = np.array([*edges, np.inf, -np.inf, np.nan, 0.1, 1 / 3], NUMPY[dtype])
    with np.errstate(over="ignore"):
        near = [np.nextafter(values, 0), np.nextafter(values, NUMPY[dtype].type(np.inf))]
    assert_same_bits(np.concatenate([values, *near]))


@pytest.mark.parametrize(
    ("dtype", "bits", "text"),
    [
        ("f32", 0x7FC00000, "nan"),
        ("f32", 0xFFC00000, "nan:0xffc00000"),
        ("f32", 0x7F800001, "nan:0x7f800001"),
        ("f16", 0x7E00, "nan"),
        ("f16", 0x7D00, "nan:0x7d00"),
        ("bf16", 0x7FC0, "nan"),
        ("bf16", 0xFFC0, "nan:0xffc0"),
        ("f64", 0x7FF8000000000000, "nan"),
        ("f64", 0x7FF8000000000001, "nan:0x7ff8000000000001"),
        ("f8e5m2", 0x7E, "nan"),
        ("f8e4m3fnuz", 0x80, "nan"),
        ("f32", 0x3DCCCCCD, "0.1"),
        ("bf16", 0x3DCD, "0.1"),
        ("f32", 1, "1e-45"),
        ("f32", 0x80000000, "-0.0"),
        ("f8e4m3fn", 0x7E, "448.0"),
    ],
)
def test_numbers_have_their_shortest_text(dtype: str, bits: int, text: str) -> None:
    size = NUMPY[dtype].itemsize
    assert array_text(np.array([bits], f"u{size}").view(NUMPY[dtype]).reshape(())) == text


@given(st.floats(width=32))
def test_a_float_attribute_has_the_shortest_text_of_an_f32(value: float) -> None:
    text = _attribute_text(value)
    assert ":f64" not in text
    assert np.float32(text).tobytes() == np.float32(value).tobytes() or np.isnan(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_attribute_beyond_f32_is_marked_as_f64(value: float) -> None:
    with np.errstate(over="ignore"):
        exact = float(np.float32(value)) == value
    assert _attribute_text(value).endswith(":f64") != exact


def _attribute_text(value: float) -> str:
    node = Node("Op", attributes={"a": value})
    program = Program({"f": Graph("f", nodes=(node,))}, "f")
    text = print_program(program)
    assert parse(text) == program
    return text.split("a=")[1].split(")")[0]


@given(st.text())
def test_strings_read_back(text: str) -> None:
    quoted = quote(text)
    assert unquote(quoted) == text
    assert quoted.isprintable()
    quoted.encode("utf-8")


@given(st.binary())
def test_bytes_read_back(data: bytes) -> None:
    quoted = quote_bytes(data)
    assert quoted.isascii()
    assert unquote(quoted[1:]).encode("latin-1") == data


@given(types)
def test_types_read_back(type: TensorType) -> None:
    assert type_of_text(print_type(type)) == type


def test_parsed_arrays_are_read_only() -> None:
    assert not through_text(np.arange(3)).flags.writeable
