"""Causes in the backward pass of a training step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nncdbg.engine.dtypes import name_of
from nncdbg.engine.ops.aten.names import autograd_nodes, base_name
from nncdbg.engine.ops.causes import WHERE_TRAP, Birth, Cause, Made
from nncdbg.engine.ops.causes.numbers import shown
from nncdbg.engine.ops.causes.places import at, count, element, spelled, spot
from nncdbg.engine.ops.causes.torch_operands import paired
from nncdbg.engine.ops.causes.training_forward import here, in_forward, maker_of
from nncdbg.engine.text.counting import elements

_MASKS = {
    "WhereBackward": "torch.where",
    "MaskedFillBackward": "masked_fill",
    "MaskedScatterBackward": "masked_scatter",
    "MaskedSelectBackward": "masked_select",
    "IndexPutBackward": "index_put",
    "IndexBackward": "x[index]",
}
"""Autograd nodes of operators that select elements by a mask or an index, and how the user writes them.

The formulas of other nodes use the same operators: a norm masks its own gradient at 0.
"""


def autograd_node(birth: Birth) -> str:
    """Return the autograd node that runs a statement; empty outside of a backward pass."""
    last = birth.node.rpartition(" ")[2]
    return last if "backward" in birth.graph and ("Backward" in last or last == "AccumulateGrad") else ""


def autograd_kind(birth: Birth) -> str:
    """Return the autograd node without its number: `LogBackward`; empty outside of a backward pass."""
    return autograd_node(birth).rstrip(_DIGITS)


_DIGITS = "0123456789"


def _mask_of(made: Made) -> str:
    """Return the user's mask that a statement of a backward pass derives; empty for another statement.

    In a double backward pass, the name of the node begins with the one whose formula it derives.
    """
    nodes = autograd_nodes(made.node)
    return _MASKS.get(nodes[0].rstrip(_DIGITS), "") if len(nodes) == 1 else ""


def in_backward(birth: Birth) -> Cause | None:
    node = autograd_node(birth)
    if not node:
        return None
    trap = _where_trap(birth, node)
    if trap is not None:
        return trap
    kind = autograd_kind(birth)
    if kind in _AT_ZERO and birth.kind in ("nan", "inf"):
        found = _at_zero(birth, kind)
        if found is not None:
            return found
    if kind in ("AcosBackward", "AsinBackward", "AcoshBackward", "AtanhBackward"):
        function = kind.removesuffix("Backward").lower()
        evidence = f"the derivative of {function} is infinite at the end of its domain: {here(birth)}"
        inside = "clamp_min(1 + eps)" if function == "acosh" else "clamp(-1 + eps, 1 - eps)"
        hint = f"keep the argument of torch.{function} inside its domain with {inside}"
        return Cause("outside of the domain", evidence, hint)
    found = in_forward(birth)
    if found is not None and (found.is_overflow and found.name != "overflow of the exponential"):
        return _gradient_overflow(birth, found)
    return found


def _where_trap(birth: Birth, node: str) -> Cause | None:
    """Return the cause for a NaN from a gradient of 0 of the branch that a mask did not take."""
    if birth.kind != "nan" or base_name(birth.op) not in ("div", "mul"):
        return None
    index = spot(birth)
    pair = paired(birth)
    if pair is None:
        return None
    numbers = [element(each, index) for each in pair.inputs]
    if 0 not in numbers:
        return None
    gradient = numbers.index(0)
    masked = next(filter(None, map(_mask_of, _ancestors(maker_of(birth, gradient)))), "")
    if not masked:
        return None
    words = f"{shown(numbers[0])} {'/' if base_name(birth.op) == 'div' else '*'} {shown(numbers[1])}"
    evidence = (
        f"the gradient {spelled(birth, gradient)}{at(index)} is 0, because {masked} does not "
        f"take this branch in forward; {node} computes {words}"
    )
    hint = (
        "mask the argument as well: y = f(torch.where(mask, x, safe)), then torch.where(mask, y, other), so "
        "that the branch not taken has a finite derivative"
    )
    return Cause(WHERE_TRAP, evidence, hint)


_AT_ZERO = {
    "SqrtBackward": ("square root at zero in backward", "sqrt", "add eps inside the root: (x + eps).sqrt()"),
    "RsqrtBackward": ("square root at zero in backward", "rsqrt", "add eps inside: (x + eps).rsqrt()"),
    "NormBackward": ("norm at zero in backward", "norm", "use (x.pow(2).sum() + eps).sqrt()"),
    "LinalgVectorNormBackward": ("norm at zero in backward", "norm", "use (x.pow(2).sum() + eps).sqrt()"),
    "PowBackward": ("power at zero in backward", "pow", "add eps to the base, or use x.clamp_min(eps)"),
}
"""Autograd nodes with an infinite derivative at 0: the cause, the function, and the fix."""


def _at_zero(birth: Birth, kind: str) -> Cause | None:
    name, function, hint = _AT_ZERO[kind]
    index = spot(birth)
    base = base_name(birth.op)
    if base == "div":
        pair = paired(birth)
        if pair is None or element(pair.inputs[1], index) != 0:
            return None
        zero, name_of_zero = pair.inputs[1], spelled(pair, 1)
    elif base in ("pow", "reciprocal", "rsqrt") and element(birth.inputs[0], index) == 0:
        zero, name_of_zero = birth.inputs[0], spelled(birth, 0)
    else:
        return None
    evidence = f"the derivative of {function} at 0 is infinite: {here(birth)}"
    if zero.size > 1:
        evidence += f"; {elements(count(zero == 0), zero.size, name_of_zero)} 0"
    return Cause(name, evidence, hint)


def _gradient_overflow(birth: Birth, found: Cause) -> Cause:
    if name_of(birth.output.dtype) == "f16" or found.name in (
        "cast out of range",
        "overflow of half precision",
    ):
        return replace(found, name="gradient overflow")
    products = sum(base_name(made.op) == "mul" for made in _ancestors(_chain(birth)))
    if base_name(birth.op) == "mul" and products >= _LONG_PRODUCT:
        return replace(found, name="overflow of a product")
    return found


_LONG_PRODUCT = 3
"""Products one after another from which an overflow is that of a long product."""


def _chain(birth: Birth) -> Made | None:
    return maker_of(birth, 0) or maker_of(birth, 1)


def _ancestors(maker: Made | None) -> Iterator[Made]:
    if maker is not None:
        yield maker
        for each in maker.of:
            yield from _ancestors(each)
