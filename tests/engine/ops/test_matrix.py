"""MatMul, Gemm, Einsum, Det, MatMulInteger: ONNX's cases, ONNX Runtime, formulas, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.engine.ops import matrix
from nncdbg.engine.ops.schema import complete
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType
from tests.engine.ops.one_node import (
    OPSET,
    assert_same,
    by_formula,
    by_kernel,
    check_all,
    check_kernel,
    declared,
    normal,
)
from tests.engine.ops.onnx_cases import NodeCase, cases_of, check, uncovered

OPS = ("MatMul", "Gemm", "Einsum", "Det", "MatMulInteger")


@pytest.mark.parametrize("case", cases_of(OPS), ids=str)
def test_onnx_case(case: NodeCase) -> None:
    check(case)


def test_every_op_has_a_case() -> None:
    assert uncovered(OPS) == []


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((0, 4), (4, 5)),
        ((3, 0), (0, 5)),
    ],
)
def test_matmul_agrees(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_all("MatMul", [normal(1, *a), normal(2, *b)], {})


@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4, 5)), ((3, 4), (4,))]
)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_matmul_formula_of_many_products(
    monkeypatch: pytest.MonkeyPatch, a: tuple[int, ...], b: tuple[int, ...], dtype: str
) -> None:
    monkeypatch.setattr(matrix, "LARGE", 0)
    inputs = [normal(1, *a, dtype=dtype), normal(2, *b, dtype=dtype)]
    step = 1e-5 if dtype == "f32" else 2**-9
    assert_same(by_formula("MatMul", inputs, {}), by_kernel("MatMul", inputs, {}), rtol=step)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_matmul_of_integers(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 9, shape).astype(dtype) for shape in ((3, 4), (4, 5)))
    check_all("MatMul", [a, b], {})


@pytest.mark.parametrize("name", ["MatMul", "Gemm"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_products_of_other_floats_accumulate_in_a_wider_type(name: str, dtype: str) -> None:
    inputs = [normal(1, 3, 300, dtype=dtype), normal(2, 300, 4, dtype=dtype)]
    (result,) = check_kernel(name, inputs, {})
    exact = inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)
    step = {"f16": 2**-10, "bf16": 2**-7, "f64": 1e-12}[dtype]
    np.testing.assert_allclose(result.astype(np.float64), exact, rtol=step, atol=1e-4)
    assert_same(by_formula(name, inputs, {}), [result], rtol=2 * step, atol=1e-3)


@pytest.mark.parametrize("c", [None, (5,), (3, 1), (1, 5), (3, 5), (), (1,)])
@pytest.mark.parametrize("attributes", [{}, {"alpha": 0.5, "beta": -2.0}, {"beta": 3.0}])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm_agrees(c: Any, attributes: dict[str, Any], trans_a: int, trans_b: int) -> None:
    a = normal(1, *((4, 3) if trans_a else (3, 4)))
    b = normal(2, *((5, 4) if trans_b else (4, 5)))
    inputs = [a, b] if c is None else [a, b, normal(3, *c)]
    check_all("Gemm", inputs, {**attributes, "transA": trans_a, "transB": trans_b})


def test_gemm_of_integers() -> None:
    a, b, c = (np.arange(n, dtype=np.int32).reshape(s) for n, s in ((6, (2, 3)), (6, (3, 2)), (2, (2,))))
    (plain,) = check_kernel("Gemm", [a, b, c], {})
    assert plain.tolist() == (a @ b + c).tolist()
    (scaled,) = check_kernel("Gemm", [a, b, c], {"alpha": 0.5, "beta": 2.0})
    assert scaled.tolist() == np.trunc(0.5 * (a @ b) + 2 * c).tolist()


def test_gemm_6_broadcasts_on_request() -> None:
    inputs = [normal(1, 3, 4), normal(2, 4, 5), normal(3, 5)]
    (result,) = check_kernel("Gemm", inputs, {"broadcast": 1}, version=6)
    assert_same([result], by_kernel("Gemm", inputs, {}))


@pytest.mark.parametrize("name", ["MatMul", "Gemm"])
def test_nan_propagates_to_its_row_only(name: str) -> None:
    a = normal(1, 3, 4)
    a[1, 2] = np.nan
    for read in (by_kernel, by_formula):
        (result,) = read(name, [a, normal(2, 4, 5)], {})
        assert np.isnan(result).tolist() == [[False] * 5, [True] * 5, [False] * 5]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ba,cb", [(2, 3), (4, 2)]),
        ("...ij,...jk->...ik", [(5, 2, 3), (1, 3, 4)]),
        ("b i j , b j k -> b i k", [(2, 2, 3), (2, 3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("...i->...", [(2, 3, 4)]),
        ("i,j,k->kji", [(2,), (3,), (4,)]),
        ("ij->", [(2, 3)]),
    ],
)
def test_einsum_agrees(equation: str, shapes: list[tuple[int, ...]]) -> None:
    check_all("Einsum", [normal(i, *shape) for i, shape in enumerate(shapes)], {"equation": equation})


@pytest.mark.parametrize("zeros", [(), (3, 5), ("a", "b")])
def test_matmul_integer_agrees(zeros: Any) -> None:
    rng = np.random.default_rng(2)
    inputs = [rng.integers(0, 256, s).astype(np.uint8) for s in ((3, 4), (4, 5))]
    if zeros == ("a", "b"):
        # ONNX Runtime does not support a zero point per row, so the oracle is plain arithmetic.
        rows, columns = np.arange(3, dtype=np.uint8), np.arange(5, dtype=np.uint8)
        (result,) = check_kernel("MatMulInteger", [*inputs, rows, columns], {})
        wide = [array.astype(np.int64) for array in (*inputs, rows, columns)]
        assert result.tolist() == ((wide[0] - wide[2][:, None]) @ (wide[1] - wide[3])).tolist()
        return
    check_all("MatMulInteger", [*inputs, *(np.array(zero, np.uint8) for zero in zeros)], {})


def test_det_of_stacks() -> None:
    x = normal(1, 2, 3, 4, 4)
    check_all("Det", [x], {}, rtol=1e-3)
    x[1, 2, 0, 0] = np.nan
    (result,) = by_kernel("Det", [x], {})
    assert np.isnan(result).tolist() == [[False] * 3, [False, False, True]]


def inferred(name: str, shapes: list[Any], attributes: dict[str, Any]) -> TensorType | None:
    infer = declared(name).infer
    assert infer is not None
    types = [None if shape is None else TensorType("f32", shape) for shape in shapes]
    inferred: TensorType | None = infer(complete(name, OPSET, attributes), types)[0]
    return inferred


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "expected"),
    [
        ("MatMul", [("N", 3, "K"), ("K", 5)], {}, ("N", 3, 5)),
        ("MatMul", [("K",), ("B", "K", 5)], {}, ("B", 5)),
        ("MatMul", [("B", 1, 3, 4), ("H", 4, None)], {}, ("B", "H", 3, None)),
        ("Gemm", [("K", "N"), (7, "K"), (7,)], {"transA": 1, "transB": 1}, ("N", 7)),
        ("Gemm", [None, (3, 7)], {}, None),
        ("Einsum", [("B", 3, "T"), ("B", "T", 5)], {"equation": "bij,bjk->bik"}, ("B", 3, 5)),
        ("Einsum", [("B", "H", 3), (1, 3)], {"equation": "...i,...i->..."}, ("B", "H")),
        ("Det", [("N", 3, "K")], {}, ("N",)),
    ],
)
def test_type_inference(name: str, shapes: list[Any], attributes: dict[str, Any], expected: Any) -> None:
    found = inferred(name, shapes, attributes)
    assert found == (None if expected is None else TensorType("f32", expected))


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "fact"),
    [
        ("MatMul", [(2, 3), (4, 5)], {}, "a has 3 columns, but b has 4 rows"),
        ("MatMul", [(2, 2, 3), (3, 3, 5)], {}, "do not broadcast"),
        ("MatMul", [(), (3, 5)], {}, "matrix multiplication does not accept a scalar"),
        ("Gemm", [(2, 3), (4, 5)], {}, "A has 3 columns, B has 4 rows"),
        ("Gemm", [(2, 3, 1), (3, 5)], {}, "A has 3 axes, expected 2"),
        ("Gemm", [(2, 3), (3, 5), (4,)], {}, "C has 4 columns, the product has 5"),
        ("Einsum", [(2, 3)], {"equation": "ij,jk->ik"}, "has 2 terms, but the op has 1 inputs"),
        ("Einsum", [(2, 3), (4, 5)], {"equation": "ij,jk->ik"}, "3 and 4 do not broadcast"),
        ("Einsum", [(2, 3, 4)], {"equation": "ij->i"}, "does not match an input of 3 axes"),
        ("Einsum", [(2, 3)], {"equation": "ij->k"}, "the output letter 'k'"),
        ("Einsum", [(2, 3)], {"equation": "i1->i"}, "not a letter"),
        ("Det", [(2, 3)], {}, "2 rows and 3 columns"),
    ],
)
def test_incompatible_types_are_refused(
    name: str, shapes: list[Any], attributes: dict[str, Any], fact: str
) -> None:
    with pytest.raises(GraphError, match=fact):
        inferred(name, shapes, attributes)
