"""First versions of ops that differ from later ones only in their attributes or in the form of an operand.

In the binary ops of opsets 1 to 6, `b` is broadcast to `a` only if `broadcast` is 1: its axes match those of
`a` from `axis` on, or the last ones.  The result has the shape of `a`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import nncdbg.engine.ops.activation
import nncdbg.engine.ops.elementwise
import nncdbg.engine.ops.normalization
import nncdbg.engine.ops.pooling
import nncdbg.engine.ops.recurrent
import nncdbg.engine.ops.resize  # noqa: F401 - these declare the later versions
from nncdbg.dtypes import ONNX
from nncdbg.engine.ops.cast import cast
from nncdbg.engine.ops.contracts import IntegerFault, divides_by_zero
from nncdbg.engine.ops.declaration import declare, declared, op
from nncdbg.engine.ops.influence import MOVED
from nncdbg.engine.ops.onnx_schemas import dtypes_of
from nncdbg.engine.ops.types import Attributes, Types, at, normal_axis, same_rank, shaped, typed
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType


def _under(a: Any, b: Any, axis: int | None) -> Any:
    """Append axes of size 1 to `b`, so that its first axis is aligned with `axis` of `a`."""
    if axis is None:
        return b
    return b.reshape(b.shape + (1,) * (a.ndim - axis % max(a.ndim, 1) - b.ndim))


def _divides_by_zero(attributes: Attributes, inputs: Sequence[Any]) -> IntegerFault | None:
    """Return the zeros of an integer divisor, and the result elements that `axis` aligns with them."""
    fault = divides_by_zero(attributes, inputs)
    if fault is None or not attributes["broadcast"]:
        return fault
    return replace(fault, results=_under(inputs[0], fault.elements, attributes.get("axis")))


def _declare_limited(name: str, dtype: str | None) -> None:
    """Declare the early versions of an op; `dtype` is that of the result, None for that of `a`."""
    newer = declared(name)[0]

    def kernel(
        xp: Any, a: Any, b: Any, *, broadcast: int, axis: int | None, consumed_inputs: Any = None
    ) -> Any:
        if not broadcast and a.shape != b.shape:
            raise GraphError(f"shapes {list(a.shape)} and {list(b.shape)} differ", hint="set broadcast=1")
        return xp.asarray(newer.bind(xp, {})(a, _under(a, b, axis) if broadcast else b))

    def infer(attributes: Attributes, types: Types) -> Types:
        like = at(types, 0)
        shape = None if like is None else like.shape
        return (typed(like, shape) if dtype is None else TensorType(dtype, shape),)

    kernel.__doc__ = f"{name} with `broadcast` and `axis` as attributes.  ONNX {name} 1 to 6."
    fault = _divides_by_zero if newer.integer_fault is divides_by_zero else None
    op(name, since=1, infer=infer, influence=newer.influence, integer_fault=fault)(kernel)


for _name in ("Add", "Sub", "Mul", "Div", "Pow"):
    _declare_limited(_name, None)
for _name in ("And", "Or", "Xor", "Equal", "Less", "Greater"):
    _declare_limited(_name, "bool")


Adapt = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""`adapt(attributes)`: the attributes as the later version has them."""

_UNUSED = ("consumed_inputs", "output_sequence")


def _declare(name: str, since: int, adapt: Adapt) -> None:
    """Declare an early version of an op by its oldest declared version."""
    later = declared(name)[0]
    kernel, infer, formula = later.kernel, later.infer, later.formula
    assert kernel is not None
    assert infer is not None

    def adapted(attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in adapt(attributes).items() if key not in _UNUSED}

    def run(xp: ModuleType, *inputs: Any, **attributes: Any) -> Any:
        return kernel(xp, *inputs, **adapted(attributes))

    declare(
        replace(
            later,
            since=since,
            kernel=run,
            infer=lambda attributes, types: infer(adapted(attributes), types),
            formula=None if formula is None else lambda given, types: formula(adapted(given), types),
            accepts_out=False,
            ufunc=None,
            vjp=None if formula is not None else later.vjp,
        )
    )


def _recurrent(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    # The default of GRU 1 is misspelt in ONNX.
    direction = "forward" if attributes["direction"] == "foward" else attributes["direction"]
    return {"linear_before_reset": 0, **attributes, "direction": direction}


def _pooled(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    if attributes["kernel_shape"] is None:
        raise GraphError(
            "LpPool needs the attribute 'kernel_shape'", hint="write kernel_shape=... in the call"
        )
    return attributes


def _upsampled(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    mode = "linear" if attributes["mode"] == "bilinear" else attributes["mode"]
    return {"scales": (1.0, 1.0, attributes["height_scale"], attributes["width_scale"]), "mode": mode}


for _name in ("Elu", "HardSigmoid", "LeakyRelu", "PRelu", "Relu", "Selu", "Sigmoid"):
    _declare(_name, 1, dict)
for _name in ("BatchNormalization", "GlobalLpPool", "InstanceNormalization"):
    _declare(_name, 1, dict)
_declare("LpPool", 1, _pooled)
_declare("GRU", 3, _recurrent)
_declare("GRU", 1, _recurrent)
_declare("LSTM", 1, _recurrent)
_declare("RNN", 1, _recurrent)
_declare("Upsample", 1, _upsampled)


def _named_type(to: str) -> int:
    """Return the number of an element type from its name in TensorProto."""
    kind = f"tensor({to.lower()})"
    found = dtypes_of(frozenset({kind}))
    if not found:
        raise GraphError(f"{to!r} is not an element type", hint='use a name such as "FLOAT" or "INT64"')
    return ONNX[next(iter(found))]


_NEWER_CAST = declared("Cast")[0]
assert _NEWER_CAST.infer is not None
_cast_types = _NEWER_CAST.infer


@op(
    "Cast",
    since=1,
    infer=lambda attributes, types: _cast_types({"to": _named_type(attributes["to"])}, types),
    influence=_NEWER_CAST.influence,
)
def cast_by_name(xp: ModuleType, x: Any, *, to: str) -> Any:
    """`x` as the element type named `to`, as in TensorProto.  ONNX Cast 1."""
    return cast(xp, x, to=_named_type(to))


@op("Tile", since=1, infer=shaped(same_rank), influence=MOVED, host_operands=(1, 2))
def tile_along_axis(xp: ModuleType, x: Any, tiles: Any, axis: Any) -> Any:
    """`x` repeated `tiles` times along `axis`; both are single numbers.  ONNX Tile 1."""
    return xp.concatenate([x] * int(tiles.reshape(-1)[0]), axis=normal_axis(int(axis.reshape(-1)[0]), x.ndim))
