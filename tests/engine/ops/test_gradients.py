"""Every gradient rule against finite differences, in f64, through the engine itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from nncdbg.dtypes import NUMPY
from nncdbg.engine.ops import declared, names
from nncdbg.ir.records import Value
from tests.engine.differentiation.gradients import (
    by_differences,
    check,
    gradients,
    program_of,
    run,
    with_gradient,
)
from tests.engine.ops.declarations import is_differentiable
from tests.engine.ops.one_node import by_formula, by_kernel
from tests.engine.ops.samples import by_entry
from tests.laws import examples

GENERATOR = np.random.default_rng(7)


def r(*shape: int) -> Any:
    """Standard normal, but at least 0.1 away from 0, where some derivatives are discontinuous."""
    x = GENERATOR.standard_normal(shape)
    return x + np.copysign(0.1, x)


def positive(*shape: int) -> Any:
    return GENERATOR.uniform(0.5, 2.0, shape)


def inner(*shape: int) -> Any:
    return GENERATOR.uniform(-0.9, 0.9, shape)


ZEROS = np.array([[1.5, 0.0, -2.0], [0.0, 0.7, 0.0], [1.2, -0.6, 0.9]])
"""Rows with one, two and no zeros."""

REGIONS = np.array([[0.3, 1.2, 3.4, 4.1], [-1.7, 0.4, 2.6, 5.3]])
"""Two regions, the second partly outside an image."""

Row = tuple[str, dict[str, Any], int]


def row(line: str, opset: int = 21, **inputs: Any) -> Row:
    return line, inputs, opset


UNARY = ["Neg", "Abs", "Exp", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Identity"]
UNARY += [
    "Sigmoid",
    "Relu",
    "LeakyRelu",
    "Erf",
    "Elu",
    "Selu",
    "Celu",
    "Gelu",
    "Mish",
    "Softplus",
    "Softsign",
]
UNARY += ["HardSigmoid", "HardSwish", "ThresholdedRelu", "Reciprocal"]

ROWS: list[Row] = [
    *(row(f"%y = {name}(%x)", x=r(2, 3)) for name in UNARY),
    *(row(f"%y = {name}(%x)", x=positive(2, 3)) for name in ("Log", "Sqrt")),
    *(row(f"%y = {name}(%x)", x=inner(2, 3)) for name in ("Asin", "Acos", "Atanh")),
    row("%y = Acosh(%x)", x=positive(4) + 1),
    row('%y = Gelu(%x, approximate="tanh")', x=r(2, 3)),
    row("%y = Swish(%x, alpha=0.5)", 24, x=r(3)),
    row("%y = LeakyRelu(%x, alpha=0.3)", x=r(5)),
    row("%y = ThresholdedRelu(%x, alpha=-0.5)", x=r(5)),
    row("%y = PRelu(%x, %s)", x=r(2, 3), s=r(3)),
    *(row(f"%y = {name}(%x, %b)", x=r(2, 3), b=r(3)) for name in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    *(row(f"%y = {name}(%x, %b)", x=r(3), b=r(2, 1)) for name in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    row("%y = Mul(%x, %x)", x=r(3)),
    row("%y = Max(%x, %b, %c)", x=r(2, 3), b=r(3), c=r(2, 1)),
    row("%y = Min(%x)", x=r(2)),
    row("%y = Sum(%x, %b, %c)", x=r(2, 3), b=r(3), c=r(2, 1)),
    row("%y = Mean(%x, %b, %c)", x=r(2, 3), b=r(3), c=r(2, 1)),
    row("%y = Pow(%x, %e)", x=positive(2, 3), e=r(3)),
    row("%y = Pow(%x, 3)", x=r(4)),
    row("%y = Pow(%x, -1.5)", x=positive(4)),
    row("%y = Pow(%x, 0)", x=r(2)),
    row("%e: i64[2] = [2, 3]\n  %y = Pow(%x, %e)", x=r(3, 2)),
    row("%y = Clip(%x, -0.5, 0.5)", x=r(2, 5)),
    row("%y = Clip(%x, %low, %high)", x=np.linspace(-2, 2, 9), low=np.array(-0.7), high=np.array(0.9)),
    row("%y = Clip(%x, %low)", x=np.linspace(-2, 2, 9), low=np.array(-0.7)),
    row("%y = Clip(%x, _, %high)", x=np.linspace(-2, 2, 9), high=np.array(0.9)),
    row("%y = Clip(%x, min=-0.5, max=0.5)", 10, x=r(2, 5)),
    row("%c = Greater(%x, %b)\n  %y = Where(%c, %x, %b)", x=r(2, 3), b=r(3)),
    row("%h = Cast(%x, to=1)\n  %w = Cast(%h, to=11)\n  %y = Sub(%x, %x)", x=r(3)),
    row("%y = MatMul(%x, %b)", x=r(2, 3), b=r(3, 4)),
    row("%y = MatMul(%x, %b)", x=r(5, 2, 3), b=r(3, 4)),
    row("%y = MatMul(%x, %b)", x=r(2, 3), b=r(5, 3, 4)),
    row("%y = MatMul(%x, %b)", x=r(1, 2, 3), b=r(5, 3, 4)),
    row("%y = MatMul(%x, %b)", x=r(3), b=r(5, 3, 4)),
    row("%y = MatMul(%x, %b)", x=r(5, 2, 3), b=r(3)),
    row("%y = MatMul(%x, %b)", x=r(3), b=r(3)),
    *(
        row(
            f"%y = Gemm(%x, %b, %c, alpha=0.5, beta=2.0, transA={left}, transB={right})",
            x=r(*((3, 2) if left else (2, 3))),
            b=r(*((4, 3) if right else (3, 4))),
            c=r(4),
        )
        for left in (0, 1)
        for right in (0, 1)
    ),
    row("%y = Gemm(%x, %b)", x=r(2, 3), b=r(3, 4)),
    # Arrays in place of an operand.
    row("%y = MatMul(%x, [[1.5], [0.25], [-2.0]])", x=r(2, 3)),
    row("%y = MatMul([0.5, -1.5], %x)", x=r(2, 3)),
    row('%y = Einsum(%x, [[1.5], [0.25], [-2.0]], equation="ij,jk->ik")', x=r(2, 3)),
    row("%y = Conv(%x, [[[1.5, 0.25]]])", x=r(2, 1, 5)),
    row("%y = Gemm(%x, %b, %c)", 12, x=r(2, 3), b=r(3, 4), c=r(2, 1)),
    *(
        row(f"%y = {name}(%x, [1])", x=r(2, 3, 2))
        for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
    ),
    *(row(f"%y = {name}(%x)", x=r(2, 3)) for name in ("ReduceSum", "ReduceMean", "ReduceMax")),
    *(
        row(f"%y = {name}(%x, axes=[1], keepdims=0)", 12, x=r(2, 3))
        for name in ("ReduceSum", "ReduceMean", "ReduceMax")
    ),
    *(
        row(f"%y = {name}(%x, [0, -1], keepdims=0)", x=r(2, 3, 4))
        for name in ("ReduceSum", "ReduceMean", "ReduceMax")
    ),
    *(row(f"%y = {name}(%x, keepdims=0)", x=r(2, 3)) for name in ("ReduceSum", "ReduceMean", "ReduceMin")),
    *(
        row(f"%y = {name}(%x, noop_with_empty_axes=1)", x=r(2, 3))
        for name in ("ReduceSum", "ReduceMean", "ReduceMax")
    ),
    *(
        row(f"%y = {name}(%x, [1])", x=positive(2, 3))
        for name in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")
    ),
    row("%y = ReduceLogSumExp(%x, [1])", x=r(2, 3)),
    row("%y = Reshape(%x, [3, -1])", x=r(2, 3)),
    row("%y = Flatten(%x, axis=2)", x=r(2, 3, 2)),
    row("%y = Squeeze(%x, [0])", x=r(1, 3)),
    row("%y = Squeeze(%x, axes=[0])", 12, x=r(1, 3)),
    row("%y = Unsqueeze(%x, [0, -1])", x=r(3)),
    row("%y = Unsqueeze(%x, axes=[0, 2])", 12, x=r(3)),
    row("%y = Transpose(%x, perm=[2, 0, 1])", x=r(2, 3, 4)),
    row("%y = Transpose(%x)", x=r(2, 3)),
    row("%y = Expand(%x, [2, 3, 4])", x=r(3, 1)),
    row("%y = Expand(%x, [1])", x=r(2, 3)),
    row("%y = Concat(%x, %b, %x, axis=-1)", x=r(2, 3), b=r(2, 1)),
    row("%y = Concat(%x, %b, axis=0)", 12, x=r(2, 3), b=r(1, 3)),
    row("%y = Slice(%x, [3, 1], [0, 9], [1, 0], [-2, 1])", x=r(3, 4)),
    row("%y = Slice(%x, [1], [3], [0])", 12, x=r(4, 2)),
    row("%a, %y = Split(%x, [1, 2], axis=1)", x=r(2, 3)),
    row("%a, %b = Split(%x, num_outputs=2)\n  %y = Mul(%a, %b)", x=r(4, 2)),
    row("%a, %b = Split(%x, axis=1)\n  %y = Mul(%a, %b)", 12, x=r(2, 4)),
    row("%y = Gather(%x, [[2, 0], [2, -1]], axis=1)", x=r(2, 3)),
    row("%y = GatherND(%x, [[1], [1], [0]])", x=r(2, 3)),
    row("%y = GatherElements(%x, [[2, 0], [2, -1]], axis=1)", x=r(2, 3)),
    row("%y = ScatterElements(%x, [[1, 0]], %b, axis=1)", x=r(2, 3), b=r(1, 2)),
    row('%y = ScatterElements(%x, [[1, 1]], %b, axis=1, reduction="add")', x=r(2, 3), b=r(1, 2)),
    row("%y = Scatter(%x, [[1, 0]], %b, axis=1)", 10, x=r(2, 3), b=r(1, 2)),
    row("%y = Tile(%x, [2, 3])", x=r(2, 2)),
    row("%y = Trilu(%x, 1, upper=0)", x=r(3, 3)),
    row('%y = DepthToSpace(%x, blocksize=2, mode="CRD")', x=r(1, 4, 1, 2)),
    row("%y = SpaceToDepth(%x, blocksize=2)", x=r(1, 1, 2, 4)),
    row("%y = ReverseSequence(%x, [2, 3])", x=r(3, 2)),
    *(row(f"%y = {name}(%x, axis=1)", x=r(2, 3, 2)) for name in ("Softmax", "LogSoftmax")),
    *(row(f"%y = {name}(%x)", 12, x=r(2, 3, 2)) for name in ("Softmax", "LogSoftmax")),
    row("%y = SoftmaxCrossEntropyLoss(%x, [2, 0])", x=r(2, 3)),
    row('%y = SoftmaxCrossEntropyLoss(%x, [2, 0], reduction="sum")', x=r(2, 3)),
    row('%y = SoftmaxCrossEntropyLoss(%x, [[2, 0], [1, 1]], reduction="none")', 13, x=r(2, 3, 2)),
    row("%y = SoftmaxCrossEntropyLoss(%x, [2, 0], ignore_index=0)", x=r(2, 3)),
    row("%y = LayerNormalization(%x, %s, %b, axis=-1)", x=r(2, 3), s=r(3), b=r(3)),
    row("%y = Dropout(%x)", x=r(3)),
    row("%y = Dropout(%x, ratio=0.5)", 11, x=r(3)),
    row("%i = Cast(%x, to=7)\n  %f = Floor(%x)\n  %s = Add(%f, %x)\n  %y = Mul(%s, %x)", x=r(3)),
    row("%y = nncdbg.SumLike(%x, %b)", x=r(2, 2, 3), b=r(1, 3)),
    row("%y = Compress(%x, [true, false, true], axis=1)", x=r(2, 3)),
    row("%y = Pad(%x, [1, -1, 2, 0], %b)", x=r(2, 3), b=np.array(0.7)),
    row('%y = Pad(%x, [1, 2], mode="reflect")', x=r(4)),
    row('%y = Pad(%x, [1, 2], _, [1], mode="edge")', x=r(2, 3)),
    row('%y = Pad(%x, [1, 2], _, [1], mode="wrap")', x=r(2, 3)),
    row("%y = Pad(%x, pads=[1, -1, 2, 0], value=3.0)", 10, x=r(2, 3)),
    row('%y = Pad(%x, pads=[0, 1, 0, 2], mode="reflect")', 10, x=r(2, 3)),
    row("%y = Slice(%x, starts=[1], ends=[3], axes=[1])", 9, x=r(2, 4)),
    row("%d: i64[] = 3\n  %y = OneHot([0, 2, 1], %d, %x)", x=r(2)),
    row("%y, %i = TopK(%x, [2], axis=0)", x=r(4, 3)),
    row("%y = TopK(%x, [2], axis=0, largest=0)", x=r(4, 3)),
    row("%y = Unique(%x)", x=r(4)),
    row("%y = Unique(%x, axis=1, sorted=0)", x=r(2, 3)),
    row("%y = ScatterND(%x, [[1], [0]], %b)", x=r(3, 2), b=r(2, 2)),
    *(
        row(f'%y = ScatterND(%x, [[1], [1]], %b, reduction="{reduction}")', x=r(3, 2), b=r(2, 2))
        for reduction in ("add", "mul", "max", "min")
    ),
    *(
        row(f'%y = ScatterElements(%x, [[1, 1]], %b, axis=1, reduction="{reduction}")', x=r(2, 3), b=r(1, 2))
        for reduction in ("mul", "max", "min")
    ),
    row("%y = TensorScatter(%x, %b, [1, 0])", 24, x=r(2, 4, 2), b=r(2, 2, 2)),
    row("%a: i64[] = 1\n  %y = CumSum(%x, %a, exclusive=1)", x=r(2, 3)),
    *(
        row(f"%a: i64[] = 1\n  %y = CumProd(%x, %a, exclusive={exclusive}, reverse={reverse})", 26, x=ZEROS)
        for exclusive in (0, 1)
        for reverse in (0, 1)
    ),
    row("%y = ReduceProd(%x, [1])", x=ZEROS),
    row("%y = ReduceProd(%x, axes=[0], keepdims=0)", 12, x=ZEROS),
    row("%y = Mod(%x, %b, fmod=1)", x=np.array([3.2, -5.3, 7.1]), b=np.array([1.5, 2.2, -3.1])),
    row("%l: f64[] = 9.5\n  %y = Range(%x, %l, %b)", x=np.array(1.2), b=np.array(1.7)),
    row("%q: u8[2,3] = [[3, 7, 2], [1, 0, 6]]\n  %y = DequantizeLinear(%q, %x, axis=1)", x=r(3)),
    row("%q: u8[2] = [3, 7]\n  %z: u8[] = 2\n  %y = DequantizeLinear(%q, %x, %z)", x=np.array(0.3)),
    row(
        "%q: u8[2,3] = [[3, 7, 2], [1, 0, 6]]\n  %y = DequantizeLinear(%q, %x, axis=1, block_size=2)",
        x=r(2, 2),
    ),
    row("%y = Det(%x)", x=r(2, 3, 3)),
    row("%y = Det(%x)", x=np.array([[1.0, 2.0], [2.0, 4.0]])),
    row("%y = nncdbg.Cofactors(%x)", x=r(3, 3)),
    *(
        row(f'%y = Einsum({operands}, equation="{equation}")', **inputs)
        for equation, operands, inputs in (
            ("ij,jk->ik", "%x, %b", {"x": r(2, 3), "b": r(3, 2)}),
            ("bij,bjk", "%x, %b", {"x": r(2, 2, 3), "b": r(2, 3, 2)}),
            ("ii->i", "%x", {"x": r(3, 3)}),
            ("iij->", "%x", {"x": r(2, 2, 3)}),
            ("ij,kl->i", "%x, %b", {"x": r(2, 3), "b": r(3, 2)}),
            ("...ij,...jk->...ik", "%x, %b", {"x": r(2, 2, 3), "b": r(3, 4)}),
            ("i...,i->...", "%x, %b", {"x": r(3, 1, 2), "b": r(3)}),
            ("...i,...i->...", "%x, %b", {"x": r(3, 1, 2), "b": r(4, 2)}),
            ("i,j,ij->", "%x, %b, %c", {"x": r(2), "b": r(3), "c": r(2, 3)}),
        )
    ),
    *(
        row(f"%y = Conv(%x, %b{attributes})", x=r(*x), b=r(*weight))
        for attributes, x, weight in (
            ("", (2, 3, 5), (4, 3, 2)),
            (", strides=[2, 3], pads=[1, 0, 2, 1]", (2, 2, 6, 7), (3, 2, 3, 2)),
            (", dilations=[2], pads=[2, 1]", (1, 2, 7), (2, 2, 3)),
            (", group=2, strides=[2], dilations=[3]", (2, 4, 9), (6, 2, 2)),
            (', auto_pad="SAME_UPPER", strides=[2]', (1, 2, 5), (2, 2, 2)),
            (', auto_pad="SAME_LOWER"', (1, 2, 5), (2, 2, 4)),
        )
    ),
    row("%y = Conv(%x, %b, %c, group=3)", x=r(2, 3, 4, 4), b=r(3, 1, 3, 3), c=r(3)),
    *(
        row(f"%y = ConvTranspose(%x, %b{attributes})", x=r(*x), b=r(*weight))
        for attributes, x, weight in (
            ("", (2, 3, 4), (3, 2, 2)),
            (", strides=[2, 3], pads=[1, 0, 1, 1], output_padding=[1, 2]", (2, 2, 3, 3), (2, 3, 3, 2)),
            (", dilations=[3], strides=[2], output_padding=[2]", (1, 2, 4), (2, 2, 3)),
            (", group=2", (2, 4, 3), (4, 3, 2)),
            (", output_shape=[9], strides=[2]", (1, 2, 4), (2, 2, 2)),
            (', auto_pad="SAME_UPPER", strides=[2]', (1, 2, 4), (2, 2, 3)),
        )
    ),
    row("%y = ConvTranspose(%x, %b, %c)", x=r(1, 2, 3), b=r(2, 2, 2), c=r(2)),
    row("%y = MaxPool(%x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])", x=r(2, 2, 5, 4)),
    row("%y, %i = MaxPool(%x, kernel_shape=[2], ceil_mode=1, strides=[2])", x=r(1, 2, 5)),
    row("%y, %i = MaxPool(%x, kernel_shape=[2, 2], storage_order=1)", x=r(1, 2, 3, 4)),
    row("%y = AveragePool(%x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])", x=r(2, 2, 5, 4)),
    row("%y = LpPool(%x, kernel_shape=[3], p=3)", x=r(1, 2, 5)),
    row("%y = GlobalLpPool(%x, p=2)", x=r(1, 2, 5)),
    row("%y = LRN(%x, size=3, alpha=0.1)", x=r(1, 5, 2)),
    row("%y = nncdbg.Windows(%x, kernel_shape=[2, 2], strides=[2, 1], dilations=[1, 2])", x=r(1, 5, 4)),
    row("%y = nncdbg.SumWindows(%x, %b, kernel_shape=[2])", x=r(3, 2), b=r(4)),
    row("%y = Col2Im(%x, [3, 4], [2, 2], pads=[0, 1, 0, 1], strides=[1, 2])", x=r(1, 8, 6)),
    row("%y = nncdbg.Im2Col(%x, [2, 2], pads=[0, 1, 0, 1], strides=[1, 2])", x=r(1, 2, 3, 4)),
    row("%p = nncdbg.Positions(%x)\n  %i = Div(%p, 2)\n  %y = nncdbg.SumAt(%b, %i, %x)", x=r(3), b=r(3)),
    *(
        row(f'%y = Resize(%x, _, [1, 2.5], mode="{mode}")', x=r(2, 3))
        for mode in ("nearest", "linear", "cubic")
    ),
    row('%y = Resize(%x, _, _, [2], mode="linear", antialias=1, axes=[1])', x=r(2, 5)),
    row("%y = Resize(%x, [1, 2])", 10, x=r(2, 3)),
    row("%y = Upsample(%x, [1, 2])", 9, x=r(2, 3)),
    row('%y = Upsample(%x, scales=[1.0, 2.0], mode="linear")', 8, x=r(2, 3)),
    row("%y = nncdbg.ResizeTransposed(%x, %b, _, [2.0])", x=r(6), b=r(3)),
    row("%y = MaxUnpool(%x, [[[1, 2]]], kernel_shape=[2], strides=[2])", 22, x=r(1, 1, 2)),
    row("%y = MaxUnpool(%x, [[[1, 2]]], [1, 1, 6], kernel_shape=[2], strides=[2])", 22, x=r(1, 1, 2)),
    row("%o = Optional(%x)\n%y = OptionalGetElement(%o)", x=r(3)),
    row("%s = SplitToSequence(%x, axis=1)\n%y = ConcatFromSequence(%s, axis=0)", x=r(2, 3)),
    *(
        row(f"%s = SequenceConstruct(%x, %b)\n{lines}\n%y = ConcatFromSequence(%t, axis=0)", x=r(3), b=r(3))
        for lines in (
            "%t = SequenceInsert(%s, %x, 1)",
            "%e = SequenceAt(%s, -1)\n%t = SequenceInsert(%s, %e, -1)",
            "%t = SequenceErase(%s, 0)",
            "%t = nncdbg.SequenceSum(%s, %s)",
            "%t = nncdbg.SequencePlaced(%x, -1, %s)",
            "%e = SequenceErase(%s)\n%t = nncdbg.SequencePadded(%e, 0, %s)",
            "%j = ConcatFromSequence(%s, axis=0)\n%t = nncdbg.SplitLike(%j, %s, axis=0)",
            "%e = nncdbg.EmptySequenceOf(%s)\n%n = nncdbg.SequenceAppend(%e, %s)\n%t = SequenceAt(%n, 0)",
        )
    ),
    *(
        row(f"%y = DFT(%x{rest})", x=r(*shape))
        for rest, shape in (
            ("", (1, 4, 1)),
            (", onesided=1", (1, 5, 1)),
            (", _, 1, inverse=1", (2, 5, 2)),
            (", 6, 1", (2, 5, 2)),
            (", 3, 1, inverse=1", (2, 5, 2)),
            (", 6, 1, inverse=1, onesided=1", (2, 4, 2)),
            (", 5, 1, inverse=1, onesided=1", (2, 3, 2)),
        )
    ),
    row("%y = DFT(%x, axis=2, onesided=1)", 17, x=r(1, 2, 5, 1)),
    row("%s: i64[] = 2\n  %y = STFT(%x, %s, %b)", x=r(1, 8, 1), b=r(3)),
    row('%y = GridSample(%x, %b, mode="cubic")', x=r(1, 2, 4, 3), b=r(1, 2, 2, 2)),
    *(
        row(f"%n: i64[2] = [1, 0]\n  %y = RoiAlign(%x, %b, %n, {rest})", x=r(2, channels, 6, 5), b=REGIONS)
        for channels, rest in (
            (1, "output_height=2, output_width=3, spatial_scale=0.5"),
            (1, 'output_height=2, output_width=1, sampling_ratio=2, mode="max"'),
            (2, 'output_height=1, output_width=2, coordinate_transformation_mode="output_half_pixel"'),
        )
    ),
    row("%y = MaxRoiPool(%x, [[1.0, 0.0, 1.0, 3.0, 4.0]], pooled_shape=[2, 2])", x=r(2, 2, 6, 5)),
    *(
        row(f"%y = DeformConv(%x, %b, %c{rest})", 22, x=r(1, 2, 4, 3), b=r(2, 2 // group, 2, 1), c=r(*offset))
        for rest, group, offset in (
            (", pads=[1, 0, 0, 1], strides=[2, 2]", 1, (1, 4, 2, 2)),
            (", group=2, dilations=[3, 1]", 2, (1, 4, 1, 3)),
            (", offset_group=2, strides=[2, 2]", 1, (1, 8, 2, 2)),
        )
    ),
    row(
        "%y = DeformConv(%x, %b, %c, %bias, %mask)",
        22,
        x=r(2, 1, 4, 1),
        b=r(2, 1, 2, 1),
        c=r(2, 4, 3, 1),
        bias=r(2),
        mask=r(2, 2, 3, 1),
    ),
    row('%y = GridSample(%x, %b, padding_mode="reflection")', x=r(1, 1, 4, 3, 2), b=r(1, 2, 1, 2, 3)),
]


def loss_of(line: str) -> list[str]:
    """The lines, followed by %loss as the sum of y*y + y, so that elements have different cotangents."""
    return [
        *line.splitlines(),
        "%square = Mul(%y, %y)",
        "%both = Add(%square, %y)",
        "%loss = ReduceSum(%both, keepdims=0)",
    ]


NEED_SHAPES = {"MatMul", "LayerNormalization", "Einsum", "Conv", "ConvTranspose", "AveragePool", "LpPool"}
NEED_SHAPES |= {"SoftmaxCrossEntropyLoss", "RoiAlign", "MaxRoiPool", "DeformConv"}
NEED_SHAPES |= {"GlobalLpPool", "LRN", "STFT", "GridSample", "DequantizeLinear", "nncdbg.Cofactors"}
"""Ops with rules or formulas for known ranks or sizes."""

DIFFERENCES: dict[int, list[Any]] = {}
"""The gradients of a row from finite differences, by the identity of its inputs: both types share them."""


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "untyped"])
@pytest.mark.parametrize(("line", "inputs", "opset"), ROWS, ids=[f"{r[0]} {r[2]}" for r in ROWS])
def test_rule(line: str, inputs: dict[str, Any], opset: int, typed: bool) -> None:
    """R1: the rule, which reads attributes such as the axis, against two-sided differences in f64."""
    if not typed and any(f"= {name}(" in line for name in NEED_SHAPES):
        pytest.skip("the rule needs more than element types before the run")
    xs = [name for name in inputs if not (("SumLike" in line or "SumWindows" in line) and name == "b")]
    lines = loss_of(line)
    if id(inputs) not in DIFFERENCES:
        DIFFERENCES[id(inputs)] = by_differences(lines, inputs, xs, opset=opset)
    check(lines, inputs, xs, opset=opset, typed=typed, wanted=DIFFERENCES[id(inputs)])


RULED = {line.split("(")[0].rpartition(" ")[2] for lines, _, _ in ROWS for line in lines.splitlines()}
CONSTANT = {"Shape", "Size", "Sign", "Ceil", "Round", "EyeLike", "RandomNormalLike", "RandomUniformLike"}
CONSTANT |= {"Bernoulli", "Hardmax", "QuantizeLinear", "QLinearMatMul"}
CONSTANT |= {f"ai.onnx.ml.{name}" for name in ("CategoryMapper", "LabelEncoder", "OneHotEncoder")}
CONSTANT |= {"nncdbg.FullLike", "nncdbg.EmptySequenceOf", "nncdbg.KeepsCheckpoint"}
"""Ops that propagate no gradient."""


def test_every_rule_is_in_the_table() -> None:
    own = {name for name in names() if not name.startswith("nncdbg.tests.")}
    with_rule = {name for name in own if any(op.vjp is not None for op in declared(name))}
    sampled = {sample.op.name for (sample,) in by_entry(1).values() if is_differentiable(sample)}
    assert with_rule - RULED - CONSTANT - sampled == {"CastLike"}  # Covered by the formula of Mean.


SIDES = st.integers(1, 3)


@st.composite
def broadcast_pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast: leading axes omitted, or axes of size 1."""
    whole = draw(st.lists(SIDES, max_size=3))
    shapes = []
    for _ in range(2):
        start = draw(st.integers(0, len(whole)))
        shapes.append(tuple(1 if draw(st.booleans()) else size for size in whole[start:]))
    return shapes[0], shapes[1]


@examples(25)
@given(
    shapes=broadcast_pairs(),
    name=st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Pow"]),
    typed=st.booleans(),
)
def test_broadcasting(shapes: tuple[tuple[int, ...], ...], name: str, typed: bool) -> None:
    generator = np.random.default_rng(3)
    x, b = (np.asarray(generator.uniform(0.5, 2.0, shape)) for shape in shapes)
    check(loss_of(f"%y = {name}(%x, %b)"), {"x": x, "b": b}, ["x", "b"], typed=typed)


@examples(10)
@given(shapes=broadcast_pairs(), rows=SIDES, columns=SIDES)
def test_broadcasting_of_matrices(shapes: tuple[tuple[int, ...], ...], rows: int, columns: int) -> None:
    generator = np.random.default_rng(4)
    x = generator.standard_normal((*shapes[0], rows, 2))
    b = generator.standard_normal((*shapes[1], 2, columns))
    check(loss_of("%y = MatMul(%x, %b)"), {"x": x, "b": b}, ["x", "b"])


NAN = [
    *UNARY, "Log", "Sqrt", "Asin", "Acos", "Atanh", "Acosh", "Softmax", "LogSoftmax", "ReduceMax",
]  # fmt: skip
NAN_LINES = [f"%y = {name}(%x)" for name in NAN if name not in ("Neg", "Identity")] + [
    "%y = Clip(%x, -0.5, 0.5)",
    "%y = Max(%x, 0)",
    "%y = Min(%x, 0)",
    "%y = PRelu(%x, 0.5)",
    "%y = Pow(%x, 2)",
    "%y = Div(1, %x)",
    "%y = ReduceMin(%x, [0])",
]


@pytest.mark.parametrize("line", NAN_LINES)
def test_nan_in_the_operand_is_nan_in_the_gradient(line: str) -> None:
    x = np.array([0.5, np.nan, -0.5])
    (got,) = gradients(program_of([line, "%loss = ReduceSum(%y, keepdims=0)"], {"x": x}), ["x"], {"x": x})
    assert np.isnan(got[1])


@pytest.mark.parametrize("line", [f"%y = {name}(%x)" for name in UNARY] + NAN_LINES[-7:-1])
def test_nan_in_the_cotangent_is_nan_in_the_gradient(line: str) -> None:
    inputs = {"x": np.array([-2.0, 0.5, 2.0]), "w": np.array([np.nan, np.nan, np.nan])}
    lines = [line, "%weighed = Mul(%y, %w)", "%loss = ReduceSum(%weighed, keepdims=0)"]
    (got,) = gradients(program_of(lines, inputs), ["x"], inputs)
    assert np.isnan(got).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("name", ["Tanh", "Gelu", "Softmax", "Relu", "ReduceMean", "LeakyRelu", "Clip"])
def test_gradients_have_the_type_of_their_values(name: str, dtype: str) -> None:
    x = np.linspace(-1.0, 1.0, 6).reshape(2, 3).astype(NUMPY[dtype])
    lines = [f"%y = {name}(%x)", "%square = Mul(%y, %y)", "%loss = ReduceSum(%square, keepdims=0)"]
    (got,) = gradients(program_of(lines, {"x": x}), ["x"], {"x": x})
    wide = {"x": x.astype(np.float64)}
    (wanted,) = gradients(program_of(lines, wide), ["x"], wide)
    assert got.dtype == x.dtype
    tolerance = {"f16": 4e-3, "bf16": 3e-2, "f32": 1e-5}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["Max", "Min"])
def test_equal_operands_share_the_gradient(name: str) -> None:
    x = np.array([1.0, 2.0])
    inputs = {"a": x, "b": x}
    lines = [f"%y = {name}(%a, %b)", "%loss = ReduceSum(%y, keepdims=0)"]
    for got in gradients(program_of(lines, inputs), ["a", "b"], inputs):
        assert got.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("line", "x", "e", "wanted"),
    [
        ("%loss = Pow(%x, %e)", 0.0, 0.0, [0.0, -np.inf]),
        ("%loss = Pow(%x, %e)", 0.0, 1.0, [1.0, 0.0]),
        ("%loss = Pow(%x, %e)", 0.0, 2.0, [0.0, 0.0]),
        ("%loss = Pow(%x, %e)", -2.0, 3.0, [12.0, np.nan]),
    ],
)
def test_power_at_edge_values(line: str, x: float, e: float, wanted: list[float]) -> None:
    inputs = {"x": np.array(x), "e": np.array(e)}
    got = gradients(program_of([line], inputs), ["x", "e"], inputs)
    np.testing.assert_array_equal(np.array(got), wanted)


@pytest.mark.parametrize(("training", "mask"), [(True, True), (False, True), (True, False)])
def test_dropout_gradient_is_masked_like_its_output(training: bool, mask: bool) -> None:
    x = np.ones(64)
    lines = [
        f"%t: bool[] = {str(training).lower()}",
        f"%y{', %m' if mask else ''} = Dropout(%x, 0.25, %t)",
        "%loss = ReduceSum(%y, keepdims=0)",
    ]
    program = program_of(lines, {"x": x})
    if not mask:
        with pytest.raises(AssertionError, match="the mask, has no name"):
            gradients(program, ["x"], {"x": x})
        return
    program = with_gradient(program, ["x"])
    main = program.graphs["main"]
    program = replace(
        program, graphs={**program.graphs, "main": replace(main, outputs=(*main.outputs, Value("y")))}
    )
    got = run(program, {"x": x})
    np.testing.assert_array_equal(got["g_loss_x"], got["y"])
    assert (0 < (got["y"] == 0).sum() < 64) == training


SUM_LIKE = [
    ((2, 3), (3,)),
    ((2, 3), (1, 3)),
    ((2, 3), (2, 1)),
    ((2, 3), ()),
    ((2, 3), (2, 3)),
    ((0, 3), (3,)),
]


@pytest.mark.parametrize(("shape", "like"), SUM_LIKE)
@pytest.mark.parametrize("dtype", ["f64", "f16"])
def test_sum_like(shape: tuple[int, ...], like: tuple[int, ...], dtype: str) -> None:
    x = GENERATOR.standard_normal(shape).astype(NUMPY[dtype])
    inputs = (x, np.empty(like, NUMPY[dtype]))
    (by_op,) = by_kernel("nncdbg.SumLike", inputs, {}, version=1)
    (by_micro,) = by_formula("nncdbg.SumLike", inputs, {}, version=1)
    assert by_op.shape == by_micro.shape == like
    wide = x.astype(np.float64)
    wanted = np.broadcast_to(np.empty(like), shape)
    total = wide.sum(axis=tuple(range(len(shape) - len(like)))) if wanted.ndim > len(like) else wide
    axes = tuple(i for i, size in enumerate(like) if size == 1)
    tolerance = 1e-12 if dtype == "f64" else 4e-3
    for got in (by_op, by_micro):
        np.testing.assert_allclose(
            got.astype(np.float64), total.sum(axis=axes, keepdims=True), tolerance, tolerance
        )


@pytest.mark.parametrize("name", [*UNARY, "ReduceLogSumExp", "Softmax", "LogSoftmax", "ReduceMax"])
def test_gradients_far_from_zero_have_no_nan(name: str) -> None:
    """Inf occurs only where the op itself gives Inf."""
    for far in (-1e4, 1e4):
        x = np.array([far], np.float32)
        lines = [f"%y = {name}(%x)", "%loss = ReduceSum(%y, keepdims=0)"]
        (got,) = gradients(program_of(lines, {"x": x}), ["x"], {"x": x})
        assert np.isfinite(got).all() or name in ("Exp", "Sinh", "Cosh"), (far, got)
        assert not np.isnan(got).any(), (far, got)
