"""The Gelu family of onnxruntime, and the activations that it keeps from early versions of ONNX."""

from __future__ import annotations

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.declaration import Formula, composite
from nncdbg.engine.ops.gates import activation_lines
from nncdbg.engine.ops.microsoft.composing import formula, wide_formula
from nncdbg.engine.ops.types import Attributes, Types, broadcast, same_as, shape_at, shaped
from nncdbg.ir.records import Dim


@composite("com.microsoft.Gelu", infer=same_as(0))
def gelu(attributes: Attributes, types: Types) -> str:
    """x times the normal distribution function of x."""
    return formula("Gelu", ["x"], types, ["%y = Gelu(%x)"])


@composite("com.microsoft.BiasGelu", infer=same_as(0))
def bias_gelu(attributes: Attributes, types: Types) -> str:
    """Gelu(x + bias), with a bias over the last axis."""
    lines = ["%sum.wide = Add(%x.wide, %bias.wide)", "%y.wide = Gelu(%sum.wide)"]
    return wide_formula("BiasGelu", ["x", "bias"], types, lines)


@composite("com.microsoft.FastGelu", infer=same_as(0))
def fast_gelu(attributes: Attributes, types: Types) -> str:
    """The tanh approximation of Gelu(x + bias), with an optional bias over the last axis."""
    lines = ['%y.wide = Gelu(%x.wide, approximate="tanh")']
    if len(types) > 1 and types[1] is not None:
        lines = ["%sum = Add(%x.wide, %bias.wide)", '%y.wide = Gelu(%sum, approximate="tanh")']
    return wide_formula("FastGelu", ["x", "bias"], types, lines)


@composite("com.microsoft.QuickGelu", infer=same_as(0))
def quick_gelu(attributes: Attributes, types: Types) -> str:
    """x Sigmoid(alpha x)."""
    lines = [
        f"%scaled = Mul(%x.wide, {attributes['alpha']})",
        "%gate = Sigmoid(%scaled)",
        "%y.wide = Mul(%x.wide, %gate)",
    ]
    return wide_formula("QuickGelu", ["x"], types, lines)


def _half(attributes: Attributes, types: Types) -> tuple[Dim, ...] | None:
    shape = shape_at(types, 0)
    if shape is None:
        return None
    last = shape[-1]
    if isinstance(last, int) and last % 2:
        raise GraphError(f"the last axis has {last} elements, which cannot be split into two halves")
    return (*shape[:-1], last // 2 if isinstance(last, int) else None)


@composite("com.microsoft.BiasSplitGelu", infer=shaped(_half))
def bias_split_gelu(attributes: Attributes, types: Types) -> str:
    """The first half of x + bias along the last axis, times Gelu of the second half."""
    lines = [
        "%sum = Add(%x.wide, %bias.wide)",
        "%value, %gate = Split(%sum, axis=-1, num_outputs=2)",
        "%open = Gelu(%gate)",
        "%y.wide = Mul(%value, %open)",
    ]
    return wide_formula("BiasSplitGelu", ["x", "bias"], types, lines)


@composite("com.microsoft.BiasAdd", infer=broadcast())
def bias_add(attributes: Attributes, types: Types) -> str:
    """x + bias + skip, with a bias over the last axis."""
    lines = ["%sum = Add(%x.wide, %bias.wide)", "%y.wide = Add(%sum, %skip.wide)"]
    return wide_formula("BiasAdd", ["x", "bias", "skip"], types, lines)


# Ops of ONNX before version 1 that onnxruntime still has -----------------------------------------


def _parametric(name: str, doc: str) -> Formula:
    def build(attributes: Attributes, types: Types) -> str:
        parameters = (attributes["alpha"], attributes["beta"])
        return wide_formula(name, ["x"], types, activation_lines(name, "%x.wide", "%y.wide", parameters))

    build.__doc__ = doc
    return build


for _name, _doc in (
    ("Affine", "alpha x + beta."),
    ("ScaledTanh", "alpha tanh(beta x)."),
    ("ParametricSoftplus", "alpha Softplus(beta x)."),
):
    composite(_name, infer=same_as(0))(_parametric(_name, _doc))


@composite("Scale", infer=same_as(0))
def scale(attributes: Attributes, types: Types) -> str:
    """x times the attribute `scale`."""
    return wide_formula("Scale", ["x"], types, [f"%y.wide = Mul(%x.wide, {attributes['scale']})"])
