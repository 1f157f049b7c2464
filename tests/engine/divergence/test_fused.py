"""Fused models against their unfused forms: equal pairs agree, planted differences are named."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import nncdbg
from tests.engine.divergence.planted import Planted, planted
from tests.engine.planted import x_of
from tests.models.forms import inputs_of, optimized
from tests.models.making import ARCHITECTURES
from tests.presence import present

_random = np.random.default_rng(5)
DATA = {
    "W": _random.standard_normal((8, 8)) * 0.3,
    "V": _random.standard_normal((8, 8)) * 0.3,
    "B": _random.standard_normal(8),
    "G": _random.standard_normal(8) + 1,
}

GELU = """
  %s = Div(%x, 1.4142135)
  %e = Erf(%s)
  %p = Add(%e, 1.0)
  %m = Mul(%x, %p)
  %g = Mul(%m, 0.5)
  %y = Neg(%g)"""
NORM = """
  %mean = ReduceMean(%x, [-1])
  %d = Sub(%x, %mean)
  %sq = Pow(%d, 2.0)
  %var = ReduceMean(%sq, [-1])
  %ve = Add(%var, 1e-5)
  %std = Sqrt(%ve)
  %n = Div(%d, %std)
  %w = Mul(%n, @G)
  %z = Add(%w, @B)
  %y = Tanh(%z)"""
SOFTMAX = """
  %h = MatMul(%x, @W)
  %e = Exp(%h)
  %t = ReduceSum(%e, [-1])
  %p = Div(%e, %t)
  %y = MatMul(%p, @V)"""
LINEAR = """
  %h = MatMul(%x, @W)
  %b = Add(%h, @B)
  %r = Relu(%b)
  %y = MatMul(%r, @V)"""
ATTENTION = """
  %q = Reshape(%x, [1, 1, 3, 8])
  %k = Tanh(%q)
  %v = Sin(%q)
  %kt = Transpose(%k, perm=[0,1,3,2])
  %s = MatMul(%q, %kt)
  %c = Mul(%s, 0.35355338)
  %a = Softmax(%c, axis=-1)
  %o = MatMul(%a, %v)
  %y = Reshape(%o, [1, 3, 8])"""
SKIP = """
  %r = Sin(%x)
  %s = Add(%x, %r)
  %n = LayerNormalization(%s, @G, @B, axis=-1, epsilon=1e-5)
  %y = Tanh(%n)"""
SHAPES = """
  %h = MatMul(%x, @W)
  %f = Reshape(%h, [0, -1])
  %u = Reshape(%f, [1, 3, 8])
  %s = ReduceSum(%u, [-1])
  %c = Slice(%u, [1], [9223372036854775807], [2])
  %p = Softmax(%c, axis=-1)
  %y = Mul(%p, %s)"""
BLOCK = """
  %s = MatMul(%x, @W)
  %e = Exp(%s)
  %t = ReduceSum(%e, [-1])
  %p = Div(%e, %t)
  %ctx = Reshape(%p, [0, 0, 8])
  %d = MatMul(%ctx, @V)
  %o = Add(%d, @B)
  %y = Add(%o, %x)"""
FUSED_BLOCK = """
  %s = MatMul(%x, @W)
  %ctx = Softmax(%s, axis=2)
  %g = Reshape(%ctx, [3, 8])
  %gm = Gemm(%g, @V, @B)
  %o = Reshape(%gm, [1, 3, 8])
  %y = Add(%o, %x)"""

PAIRS = {
    "gelu": (GELU, "\n  %g = Gelu(%x)\n  %y = Neg(%g)"),
    "layer norm": (NORM, "\n  %z = LayerNormalization(%x, @G, @B, axis=-1, epsilon=1e-5)\n  %y = Tanh(%z)"),
    "softmax": (SOFTMAX, "\n  %h = MatMul(%x, @W)\n  %p = Softmax(%h, axis=-1)\n  %y = MatMul(%p, @V)"),
    "linear": (
        LINEAR,
        """
  %f = Reshape(%x, [3, 8])
  %g = Gemm(%f, @W, @B)
  %r = Relu(%g)
  %m = MatMul(%r, @V)
  %y = Reshape(%m, [1, 3, 8])""",
    ),
    "attention": (
        ATTENTION,
        """
  %q = Reshape(%x, [1, 1, 3, 8])
  %k = Tanh(%q)
  %v = Sin(%q)
  %o = Attention(%q, %k, %v, scale=0.35355338)
  %y = Reshape(%o, [1, 3, 8])""",
    ),
    "skip layer norm": (
        SKIP,
        """
  %r = Sin(%x)
  %n = com.microsoft.SkipLayerNormalization(%x, %r, @G, @B, epsilon=1e-5)
  %y = Tanh(%n)""",
    ),
    "shapes": (
        SHAPES,
        """
  %h = MatMul(%x, @W)
  %u = Reshape(%h, [-1, 3, 8])
  %s = ReduceSum(%u, [2])
  %c = Slice(%u, [1], [8], [-1])
  %p = Softmax(%c, axis=2)
  %y = Mul(%p, %s)""",
    ),
    "block": (BLOCK, FUSED_BLOCK),
}

CHANGES = [
    ("gelu", "Gelu(%x)", 'Gelu(%x, approximate="tanh")', "Div, Erf, Add, Mul, ... / Gelu approximate=tanh"),
    ("gelu", "Neg(%g)", "Abs(%g)", "Neg / Abs"),
    ("layer norm", "epsilon=1e-5", "epsilon=0.1", "LayerNormalization axis=-1 epsilon=0.1"),
    ("layer norm", "@B", "@V[0]", "B of Add differs"),
    ("layer norm", "@G", "@V[0]", "B of Mul differs"),
    ("layer norm", "Tanh", "Sin", "Tanh / Sin"),
    ("softmax", "axis=-1", "axis=1", "Exp, ReduceSum, Div / Softmax axis=1"),
    ("softmax", "@V", "@W", "B of MatMul differs"),
    ("softmax", "Softmax(%h", "Softmax(%x", "reads %h / %x"),
    ("linear", "@W", "@V", "B of MatMul differs"),
    ("linear", "@B", "@G", "B of Add differs"),
    ("linear", "@W, @B)", "@W, @B, alpha=1.5)", "MatMul, Add / Reshape, Gemm"),
    ("linear", "@V", "@W", "B of MatMul differs"),
    ("linear", "Relu", "Elu", "Relu / Elu"),
    ("attention", "scale=0.35355338", "scale=0.5", "/ Attention scale=0.5"),
    ("attention", "Tanh(%q)", "Sin(%q)", "Tanh / Sin"),
    ("attention", "Attention(%q, %k, %v", "Attention(%q, %k, %q", "Sin"),
    ("skip layer norm", "epsilon=1e-5", "epsilon=0.1", "/ com.microsoft.SkipLayerNormalization epsilon=0.1"),
    ("skip layer norm", "@B", "@G", "B of LayerNormalization differs"),
    ("skip layer norm", "(%x, %r, @G", "(%x, %x, @G", "reads %r / %x"),
    ("shapes", "[1], [8], [-1]", "[0], [7], [-1]", "starts of Slice differs: 1 / 0"),
    ("shapes", "[-1, 3, 8]", "[3, 1, 8]", "Reshape"),
    ("block", "axis=2", "axis=1", "Exp, ReduceSum, Div, Reshape / Softmax axis=1"),
    (
        "block",
        "%ctx = Softmax(%s",
        "%sk = Mul(%s, 1.001)\n  %ctx = Softmax(%sk",
        "only side B has Mul with 1.001",
    ),
    ("block", "@V", "@W", "B of MatMul differs"),
]


@cache
def program(body: str) -> nncdbg.Program:
    """Return a program of one graph; @NAME is an array of `DATA`."""

    def literal(found: re.Match[str]) -> str:
        array = DATA[found[1]]
        return str((array[int(found[2])] if found[2] else array).astype(np.float32).tolist())

    text = re.sub(r"@([A-Z])(?:\[(\d)\])?", literal, body)
    result = "%y"
    header = "#nncdbg 1\nopset 23\nopset com.microsoft 1\n\ngraph @main(%x: f32[1,3,8]) -> (%y: f32[...]) {"
    return nncdbg.parse(f"{header}{text}\n  return {result}\n}}\n")


def renamed(body: str) -> str:
    """Return a body with other names for all values but the input and the output."""
    return re.sub(r"%(?!x\b|y\b)(\w+)", r"%other_\1_", body)


def compared(a: str, b: str) -> Any:
    return nncdbg.diff(program(a), program(b), {"x": x_of(1, 3, 8)})


@pytest.mark.parametrize("names", ["same", "other"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_equal_fused_and_unfused_chains_agree(name: str, swapped: bool, names: str) -> None:
    a, b = PAIRS[name][::-1] if swapped else PAIRS[name]
    report = compared(a, b if names == "same" else renamed(b))
    assert (report.status, report.causes, report.differences) == ("equal", [], [])
    assert not any(row.diverges for row in report.growth)


@pytest.mark.parametrize("names", ["same", "other"])
@pytest.mark.parametrize(("name", "old", "new", "text"), CHANGES)
def test_a_change_in_a_fused_chain_is_the_cause(name: str, old: str, new: str, text: str, names: str) -> None:
    a, b = PAIRS[name]
    assert old in b
    b = b.replace(old, new)
    report = compared(a, b if names == "same" else renamed(b))
    assert report.status == "diverged"
    cause = present(report.cause)
    said = cause.text.replace("other_", "").replace("_", "") if names == "other" else cause.text
    if names == "same":
        assert text in said
    else:
        # Without names, a cut before statements that only reshape is as small.
        expected = set(re.findall(r"\w+", text)) - {"Reshape", "Sin", "h", "x", "r"}
        assert expected <= set(re.findall(r"\w+", said))


def test_a_tensor_is_paired_with_its_dequantized_form() -> None:
    a = """
  %h = MatMul(%x, @W)
  %r = Relu(%h)
  %y = MatMul(%r, @V)"""
    b = """
  %r = MatMul(%x, @W)
  %r_QuantizeLinear_Output = QuantizeLinear(%r, 0.02, -128)
  %r_DequantizeLinear_Output = DequantizeLinear(%r_QuantizeLinear_Output, 0.02, -128)
  %y = MatMul(%r_DequantizeLinear_Output, @V)"""
    typed = ("0.02, -128", "0.02, %zero")
    b = "\n  %zero = Cast(-128, to=3)" + b.replace(*typed)
    report = compared(a, b)
    assert {row.value for row in report.growth} >= {"r", "y"}
    assert present(report.cause).text == "Relu / Cast, QuantizeLinear, DequantizeLinear"


HIDDEN = {
    # The element is below 0 before Relu, so it changes no value that a fused model has.
    "mlp bias element",
    # onnxruntime fuses Pow(x, 4) like Pow(x, 2), and mean - x like x - mean, so its models equal side A.
    "classifier power",
    "classifier centering",
}
SAMPLE = [each for each in planted() if not each.name.startswith("deep") and each.name not in HIDDEN][::6]


@pytest.mark.parametrize("level", ["basic", "extended", "all"])
@pytest.mark.parametrize("name", ["mlp", "convnet", "encoder", "token_classifier", "decoder"])
def test_a_model_agrees_with_its_optimized_form(name: str, level: str) -> None:
    pytest.importorskip("onnxruntime")
    model = ARCHITECTURES[name]()
    report = nncdbg.diff(nncdbg.load(model), nncdbg.load(optimized(model, level)), inputs_of(model))
    assert (report.status, report.causes) == ("equal", [])


@pytest.mark.parametrize("level", ["basic", "extended", "all"])
@pytest.mark.parametrize("difference", SAMPLE, ids=lambda difference: difference.name)
def test_a_planted_difference_is_in_the_part_of_an_optimized_model(difference: Planted, level: str) -> None:
    pytest.importorskip("onnxruntime")
    form = partial(optimized, level=level)
    a, b, truth = Planted(difference.name, difference.make, difference.edit, form).sides()
    cause = present(nncdbg.diff(nncdbg.load(a), nncdbg.load(b), inputs_of(a)).cause)
    order = [node.name for node in a.graph.node]
    part = [truth]
    if truth not in order:
        # An op that only side B has: it can lose its name when it is fused.
        assert cause.kind in ("only_b", "replaced")
    elif cause.site.node != truth:
        part = order[order.index(cause.site.node) : order.index(cause.match.a.node) + 1]
    assert truth in part
    # At the level "all", ops in the layout nchwc are not comparable one by one.
    assert len(part) <= 8
