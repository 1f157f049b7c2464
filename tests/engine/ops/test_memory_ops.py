"""`nncdbg.Empty`: the initial contents of uninitialized memory, per element type."""

from __future__ import annotations

import numpy as np
import pytest

from nncdbg.dtypes import COMPLEX, FLOATS, NUMPY
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import complete, schema
from nncdbg.errors import GraphError
from tests.engine.ops.onnx_cases import assert_agrees, execute
from tests.presence import present

EMPTY = present(lookup("nncdbg.Empty", 1))
INFER = present(EMPTY.infer)


@pytest.mark.parametrize("dtype", sorted(NUMPY))
@pytest.mark.parametrize("init", ["nan", "none", "zeros", "ones"])
def test_every_dtype_and_init(dtype: str, init: str) -> None:
    attributes = {"shape": (2, 3), "dtype": dtype, "init": init}
    if init in ("zeros", "ones") and dtype in ("str", "f8e8m0fnu"):
        pytest.skip("strings have no one, and E8M0 no zero")
    (x,) = execute(EMPTY, 1, attributes, ())
    assert_agrees(INFER(complete("nncdbg.Empty", 1, attributes), ())[0], x)
    if init in ("zeros", "ones"):
        assert (x.astype(np.complex128) == (init == "ones")).all()
    elif dtype in (FLOATS - {"f4e2m1fn"}) | COMPLEX:
        assert np.isnan(x.astype(np.complex128)).all()
    elif dtype[0] in "iu" and dtype[1:] not in ("2", "4"):
        assert set(x.tobytes()) == {0x7F}


def test_the_signature_is_derived_from_the_kernel() -> None:
    found = schema("nncdbg.Empty", 1)
    assert found is not None
    assert set(found.attributes) == {"shape", "dtype", "init"}
    assert found.inputs == ()


@pytest.mark.parametrize(
    ("attributes", "fact"),
    [
        ({"shape": (2,), "dtype": "f33"}, "not an element type"),
        ({"shape": (2,), "init": "maybe"}, "init cannot be 'maybe'"),
        ({"shape": (-2,)}, "negative"),
    ],
)
def test_wrong_attributes_are_graph_errors(attributes: dict[str, object], fact: str) -> None:
    with pytest.raises(GraphError, match=fact):
        INFER(complete("nncdbg.Empty", 1, attributes), ())
    with pytest.raises(GraphError, match=fact):
        execute(EMPTY, 1, attributes, ())


REMAINS = present(lookup("nncdbg.Remains", 1))
REMAINING = present(REMAINS.infer)


@pytest.mark.parametrize("dtype", sorted({*NUMPY} - {"str"}))
def test_remains_without_operands_are_poison(dtype: str) -> None:
    attributes = {"shape": (2, 3), "dtype": dtype}
    (x,) = execute(REMAINS, 1, attributes, ())
    assert_agrees(REMAINING(complete("nncdbg.Remains", 1, attributes), ())[0], x)
    if dtype in (FLOATS - {"f4e2m1fn", "f8e8m0fnu"}) | COMPLEX:
        assert np.isnan(x.astype(np.complex128)).all()


def test_remains_are_the_bytes_of_the_operands() -> None:
    one, other = np.array([1, 2, 3], np.float32), np.array([5, 6], np.int32)
    pieces = {"starts": (0, 12), "offsets": (4, 0), "sizes": (8, 8)}
    (x,) = execute(REMAINS, 1, {"shape": (5,), "dtype": "f32", **pieces}, (one, other))
    assert x[:2].tolist() == [2, 3]
    assert np.isnan(x[2])
    assert x[3:].view(np.int32).tolist() == [5, 6]


def test_remains_of_short_operands_end_with_poison() -> None:
    pieces = {"starts": (0,), "offsets": (4,), "sizes": (64,)}
    (x,) = execute(REMAINS, 1, {"shape": (3,), "dtype": "f32", **pieces}, (np.array([1, 2], np.float32),))
    assert x[0] == 2
    assert np.isnan(x[1:]).all()


@pytest.mark.parametrize(
    ("attributes", "fact"),
    [
        ({"shape": (2,), "dtype": "str"}, "not an element type with a fixed size"),
        ({"shape": (2,), "starts": (0,)}, "need one number, 0 or more, for each of the 0 operands"),
        ({"shape": (-2,)}, "negative"),
    ],
)
def test_wrong_attributes_of_remains_are_graph_errors(attributes: dict[str, object], fact: str) -> None:
    with pytest.raises(GraphError, match=fact):
        REMAINING(complete("nncdbg.Remains", 1, attributes), ())
