"""ONNX's operators on torch: those that one function of torch computes.

Each entry takes a statement and returns its function of tensors, or None for attributes or an opset that
torch has no plain counterpart for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from nncdbg.dtypes import FROM_ONNX
from nncdbg.engine.backends.torch_calls import converting_constants
from nncdbg.engine.ops.aten.signatures import TORCH_DTYPES
from nncdbg.errors import UnsupportedOp

if TYPE_CHECKING:
    from nncdbg.engine.backends import Call, Execute


def _thresholded_relu(call: Call) -> Execute:
    alpha = call.attributes["alpha"]
    return lambda x: functional.threshold(x, alpha, 0)


def _instance_norm(call: Call) -> Execute:
    epsilon = call.attributes["epsilon"]
    return lambda x, scale, bias: functional.instance_norm(x, weight=scale, bias=bias, eps=epsilon)


def _group_norm(call: Call) -> Execute | None:
    """Return the function from opset 21 on, which has a scale per channel."""
    groups, epsilon = call.attributes["num_groups"], call.attributes["epsilon"]
    if call.version < 21 or call.attributes["stash_type"] != 1:
        return None
    return lambda x, scale, bias: functional.group_norm(x, groups, scale, bias, epsilon)


def _rms_norm(call: Call) -> Execute | None:
    if call.attributes["stash_type"] != 1:
        return None
    axis, epsilon = call.attributes["axis"], call.attributes["epsilon"]

    def run(x: Any, scale: Any) -> Any:
        sizes = x.shape[axis % x.dim() :]
        return functional.rms_norm(x, sizes, scale.expand(sizes), epsilon)

    return run


def _attention(call: Call) -> Execute | None:
    """Return the function without a window, a cache of keys, a soft cap, and further results."""
    attributes = call.attributes
    windows = {attributes.get(f"{side}_window_size", -1) for side in ("left", "right")}
    if call.several or windows != {-1} or attributes.get("softcap") or attributes.get("softmax_precision"):
        return None
    heads = attributes.get("q_num_heads"), attributes.get("kv_num_heads")
    scale, causal = attributes.get("scale"), bool(attributes.get("is_causal"))

    def run(query: Any, key: Any, value: Any, mask: Any = None, *cached: Any) -> Any:
        if any(each is not None for each in cached):
            raise UnsupportedOp("Attention has no kernel on torch with cached keys")
        packed = query.dim() == 3
        if packed:
            query, key, value = (
                each.unflatten(2, (number, -1)).transpose(1, 2)
                for each, number in zip((query, key, value), (heads[0], heads[1], heads[1]), strict=True)
            )
        if causal and (mask is not None or query.shape[2] != key.shape[2]):
            raise UnsupportedOp("Attention has no kernel on torch with a mask and is_causal")
        grouped = query.shape[1] != key.shape[1]
        result = functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=grouped
        )
        return result.transpose(1, 2).flatten(2) if packed else result

    return run


_MODES = {"linear": "bilinear", "cubic": "bicubic"}


def _grid_sample(call: Call) -> Execute:
    mode, padding = call.attributes["mode"], call.attributes["padding_mode"]
    mode, align = _MODES.get(mode, mode), bool(call.attributes["align_corners"])

    def run(x: Any, grid: Any) -> Any:
        if x.dim() != 4 and (x.dim() != 5 or mode == "bicubic"):
            raise UnsupportedOp(f"GridSample has no kernel on torch for {x.dim() - 2} spatial axes")
        return functional.grid_sample(x, grid, mode, padding, align)

    return run


def _einsum(call: Call) -> Execute:
    equation = call.attributes["equation"]
    return lambda *operands: torch.einsum(equation, *operands).to(operands[0].dtype)


def _triangle(call: Call) -> Execute:
    function = torch.triu if call.attributes["upper"] else torch.tril
    return lambda x, k=None: function(x, 0 if k is None else int(k))


def _cumulative_sum(call: Call) -> Execute | None:
    if call.attributes["exclusive"] or call.attributes["reverse"]:
        return None
    return lambda x, axis: torch.cumsum(x, int(axis), dtype=x.dtype)


def onnx_call(call: Call, to_device: Callable[[Any], Any]) -> Execute | None:
    """Return a statement of ONNX's own domain as a function of its operands; None if torch has none.

    It raises UnsupportedOp for dtypes that torch does not implement.
    """
    if call.node.op not in _FUNCTIONS or (call.several and call.node.op not in _SEVERAL):
        return None
    function = _FUNCTIONS[call.node.op](call)
    if function is None:
        return None

    def run(*given: Any) -> Any:
        for value in given:
            if value is not None and not isinstance(value, torch.Tensor):
                raise UnsupportedOp(f"{call.node.op} has no kernel on torch: torch has no tensors of text")
        try:
            return function(*given)
        except (RuntimeError, NotImplementedError) as error:
            if not any(phrase in str(error) for phrase in _REFUSALS):
                raise
            raise UnsupportedOp(f"{call.node.op} has no kernel on torch: {error}") from None

    return converting_constants(run, to_device)


_REFUSALS = ("not implemented for", "not supported", "could not infer output dtype")
"""Parts of the messages with which torch refuses a dtype."""

_Maker = Callable[["Call"], "Execute | None"]


def _same_for_all(function: Execute) -> _Maker:
    """Return the maker of a function without attributes."""
    return lambda call: function


def _with(function: Execute, **names: str) -> _Maker:
    """Return the function with attributes as keywords: torch's name to ONNX's."""

    def make(call: Call) -> Execute:
        keywords = {name: call.attributes[attribute] for name, attribute in names.items()}
        return lambda *operands: function(*operands, **keywords)

    return make


def _folded(function: Execute) -> _Maker:
    """Return the maker of a function of two tensors that is applied to any number of them."""
    return lambda call: lambda *operands: reduce(function, operands)


def _div(a: Any, b: Any) -> Any:
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def _sign(x: Any) -> Any:
    # torch gives 0 for NaN, and so hides it.
    return torch.where(torch.isnan(x), x, torch.sign(x))


def _sum(x: Any, axes: Sequence[int], keepdim: bool) -> Any:
    return torch.sum(x, axes, keepdim=keepdim, dtype=x.dtype)


def _gemm(call: Call) -> Execute:
    alpha, beta = call.attributes["alpha"], call.attributes["beta"]
    turn_a, turn_b = call.attributes["transA"], call.attributes["transB"]

    def run(a: Any, b: Any, c: Any = None) -> Any:
        a, b = a.t() if turn_a else a, b.t() if turn_b else b
        if c is None:
            return a @ b if alpha == 1 else alpha * (a @ b)
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)

    return run


# -- windows -----------------------------------------------------------------------------------


def _padded(call: Call, spatial: int) -> tuple[list[int], list[int]] | None:
    """Return the padding before and after each spatial axis; None if the sizes determine it."""
    if call.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    pads = list(call.attributes.get("pads") or [0] * (2 * spatial))
    return pads[:spatial], pads[spatial:]


def _conv(call: Call) -> Execute | None:
    if call.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    functions = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}

    def run(x: Any, weight: Any, bias: Any = None) -> Any:
        function, spatial = functions.get(x.dim()), x.dim() - 2
        padding = _padded(call, spatial)
        if function is None or padding is None:
            raise UnsupportedOp(f"Conv has no kernel on torch for {spatial} spatial axes")
        before, after = padding
        if before != after:
            # torch has the last axis first.
            pairs = reversed(list(zip(before, after, strict=True)))
            x = functional.pad(x, [size for pair in pairs for size in pair])
            before = [0] * spatial
        strides = tuple(call.attributes.get("strides") or [1] * spatial)
        dilations = tuple(call.attributes.get("dilations") or [1] * spatial)
        return function(x, weight, bias, strides, tuple(before), dilations, call.attributes["group"])

    return run


def _pool(functions: Mapping[int, Execute], **more: str) -> _Maker:
    """Return the maker of a pool, by the number of spatial axes; `more` maps keywords to attributes."""

    def make(call: Call) -> Execute | None:
        kernel = tuple(call.attributes["kernel_shape"])
        padding, function = _padded(call, len(kernel)), functions.get(len(kernel))
        dilations = set(call.attributes.get("dilations") or [1])
        if padding is None or padding[0] != padding[1] or function is None or dilations != {1}:
            return None
        if call.attributes.get("ceil_mode") or call.attributes.get("storage_order"):
            return None
        if any(2 * pad > size for pad, size in zip(padding[0], kernel, strict=True)):
            return None
        strides = tuple(call.attributes.get("strides") or [1] * len(kernel))
        keywords = {name: bool(call.attributes[attribute]) for name, attribute in more.items()}
        return lambda x: function(x, kernel, strides, tuple(padding[0]), **keywords)

    return make


# -- normalization -----------------------------------------------------------------------------


def _softmax(function: Execute) -> _Maker:
    """Return the maker of a softmax; before opset 13 it flattens its operand."""

    def make(call: Call) -> Execute | None:
        axis = call.attributes["axis"]
        return None if call.version < 13 else lambda x: function(x, axis)

    return make


def _layer_norm(call: Call) -> Execute | None:
    if call.attributes["stash_type"] != 1:
        return None
    axis, epsilon = call.attributes["axis"], call.attributes["epsilon"]

    def run(x: Any, scale: Any, bias: Any = None) -> Any:
        sizes = x.shape[axis % x.dim() :]
        scale, bias = (None if each is None else each.expand(sizes) for each in (scale, bias))
        result, *moments = torch.native_layer_norm(x, sizes, scale, bias, epsilon)
        if not call.several:
            return result
        return [result, *(each.float() for each in moments)][: len(call.node.outputs)]

    return run


def _batch_norm(call: Call) -> Execute | None:
    epsilon = call.attributes["epsilon"]
    if call.version < 9 or call.attributes.get("training_mode"):
        return None
    return lambda x, scale, bias, mean, var: functional.batch_norm(x, mean, var, scale, bias, eps=epsilon)


# -- shapes ------------------------------------------------------------------------------------


def _reshape(call: Call) -> Execute | None:
    keeps_zero = call.attributes.get("allowzero")

    def run(x: Any, shape: Any) -> Any:
        wanted = shape.tolist()
        if not keeps_zero:
            wanted = [x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
        return x.reshape(wanted)

    return run if call.version >= 5 else None


def _transpose(call: Call) -> Execute:
    order = call.attributes.get("perm")
    return lambda x: x.permute(order if order is not None else tuple(reversed(range(x.dim()))))


def _flatten(call: Call) -> Execute:
    axis = call.attributes["axis"]

    def run(x: Any) -> Any:
        place = axis + x.dim() if axis < 0 else axis
        return x.reshape(x.shape[:place].numel(), x.shape[place:].numel())

    return run


def _unsqueeze(call: Call) -> Execute | None:
    def run(x: Any, axes: Any) -> Any:
        rank = x.dim() + len(axes)
        for axis in sorted(each % rank for each in axes.tolist()):
            x = x.unsqueeze(axis)
        return x

    return run if call.version >= 13 else None


def _squeeze(call: Call) -> Execute | None:
    run = lambda x, axes=None: x.squeeze() if axes is None else x.squeeze(tuple(axes.tolist()))  # noqa: E731
    return run if call.version >= 13 else None


def _concat(call: Call) -> Execute:
    axis = call.attributes["axis"]
    return lambda *operands: torch.cat(operands, axis)


def _gather(call: Call) -> Execute:
    axis = call.attributes["axis"]
    return lambda x, indices: x[(slice(None),) * (axis % x.dim()) + (indices.long(),)]


def _slice(call: Call) -> Execute | None:
    def run(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
        first, last = starts.tolist(), ends.tolist()
        places = range(len(first)) if axes is None else axes.tolist()
        strides = [1] * len(first) if steps is None else steps.tolist()
        for axis, start, end, step in zip(places, first, last, strides, strict=True):
            bounds = slice(start, end, step).indices(x.shape[axis])
            if step > 0:
                x = x[(slice(None),) * (axis % x.dim()) + (slice(*bounds),)]
            else:
                # torch has no negative steps.
                x = x.index_select(axis, torch.tensor([*range(*bounds)], dtype=torch.int64, device=x.device))
        return x

    return run if call.version >= 10 else None


def _expand(x: Any, shape: Any) -> Any:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist())))


def _gather_elements(call: Call) -> Execute:
    axis = call.attributes["axis"]

    def run(x: Any, indices: Any) -> Any:
        positive = torch.where(indices < 0, indices + x.shape[axis], indices)
        return torch.gather(x, axis, positive.long())

    return run


def _shape(call: Call) -> Execute:
    start, end = call.attributes.get("start") or 0, call.attributes.get("end")
    return lambda x: torch.tensor(tuple(x.shape)[start:end], dtype=torch.int64)


def _cast(x: Any, dtype: Any) -> Any:
    if 1 in (x.itemsize, dtype.itemsize) and (x.is_floating_point() or dtype.is_floating_point):
        if torch.bool not in (x.dtype, dtype):
            raise UnsupportedOp("torch rounds and saturates floats of 8 bits in its own way")
    elif x.is_floating_point() and not dtype.is_floating_point:
        raise UnsupportedOp("torch has its own integers for floats out of range")
    return x.to(dtype)


def _cast_to(call: Call) -> Execute | None:
    dtype = TORCH_DTYPES.get(FROM_ONNX[call.attributes["to"]])
    return (lambda x: _cast(x, dtype)) if dtype is not None else None


def _clip(call: Call) -> Execute | None:
    def run(x: Any, low: Any = None, high: Any = None) -> Any:
        return x if low is None and high is None else torch.clamp(x, low, high)

    return run if call.version >= 11 else None


def _reduction(function: Execute, since: int) -> _Maker:
    """Return the maker of a reduction whose axes are an operand from opset `since` on."""

    def make(call: Call) -> Execute | None:
        keeps = bool(call.attributes["keepdims"])
        nothing = bool(call.attributes.get("noop_with_empty_axes"))

        def run(x: Any, axes: Any = None) -> Any:
            chosen = () if axes is None else tuple(axes.tolist())
            if not chosen and nothing:
                return x
            if not x.numel() and function in (torch.amax, torch.amin):
                raise UnsupportedOp("torch has no extreme of an empty tensor")
            return function(x, chosen or tuple(range(x.dim())), keepdim=keeps)

        return run if call.version >= since else None

    return make


_FUNCTIONS: Mapping[str, _Maker] = {
    **{
        name: _same_for_all(getattr(torch, name.lower()))
        for name in (
            *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp"),
            *("Floor", "IsNaN", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sin"),
            *("Sinh", "Sqrt", "Tan", "Tanh", "Sub", "Mul", "Where", "Greater", "Less"),
        )
    },
    "Sign": _same_for_all(_sign),
    "Add": _same_for_all(torch.add),
    "Div": _same_for_all(_div),
    "Pow": _same_for_all(lambda base, exponent: torch.pow(base, exponent).to(base.dtype)),
    "MatMul": _same_for_all(torch.matmul),
    "Not": _same_for_all(torch.logical_not),
    "And": _same_for_all(torch.logical_and),
    "Or": _same_for_all(torch.logical_or),
    "Xor": _same_for_all(torch.logical_xor),
    "Equal": _same_for_all(torch.eq),
    "GreaterOrEqual": _same_for_all(torch.ge),
    "LessOrEqual": _same_for_all(torch.le),
    "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum),
    "Sum": _folded(torch.add),
    "Gemm": _gemm,
    "Conv": _conv,
    "AveragePool": _pool(
        {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d},
        count_include_pad="count_include_pad",
    ),
    "MaxPool": _pool({1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}),
    "GlobalAveragePool": _same_for_all(lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True)),
    "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax),
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
    "Elu": _with(functional.elu, alpha="alpha"),
    "Gelu": _with(functional.gelu, approximate="approximate"),
    "LeakyRelu": _with(functional.leaky_relu, negative_slope="alpha"),
    "Softsign": _same_for_all(functional.softsign),
    "Clip": _clip,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Expand": _same_for_all(_expand),
    "GatherElements": _gather_elements,
    "Shape": _shape,
    "Size": _same_for_all(lambda x: torch.tensor(x.numel(), dtype=torch.int64)),
    "Cast": _cast_to,
    "CastLike": _same_for_all(lambda x, like: _cast(x, like.dtype)),
    "ReduceSum": _reduction(_sum, 13),
    "ReduceMean": _reduction(torch.mean, 18),
    "ReduceMax": _reduction(torch.amax, 18),
    "ReduceMin": _reduction(torch.amin, 18),
    "Celu": _with(functional.celu, alpha="alpha"),
    "HardSwish": _same_for_all(functional.hardswish),
    "Mish": _same_for_all(functional.mish),
    "PRelu": _same_for_all(lambda x, slope: torch.where(x < 0, slope * x, x)),
    "Softplus": _same_for_all(functional.softplus),
    "Swish": lambda call: functional.silu if call.attributes["alpha"] == 1 else None,
    "ThresholdedRelu": _thresholded_relu,
    "Attention": _attention,
    "GridSample": _grid_sample,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "RMSNormalization": _rms_norm,
    "GlobalMaxPool": _same_for_all(lambda x: x.amax(tuple(range(2, x.dim())), keepdim=True)),
    "Tile": _same_for_all(lambda x, repeats: x.repeat(repeats.tolist())),
    "Einsum": _einsum,
    "Trilu": _triangle,
    "CumSum": _cumulative_sum,
    "Identity": _same_for_all(lambda x: x),
}
"""ONNX's operator to the function of torch."""

_SEVERAL = frozenset({"LayerNormalization"})
"""Operators whose further results torch computes too."""


def mapped() -> frozenset[str]:
    """Return the names of ONNX's operators that run on torch."""
    return frozenset(_FUNCTIONS)
