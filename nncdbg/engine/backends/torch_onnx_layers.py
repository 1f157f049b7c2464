"""ONNX's activations, normalizations and layers that one function of torch computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from nncdbg.errors import UnsupportedOp

if TYPE_CHECKING:
    from nncdbg.engine.backends import Call, Execute

Maker = Callable[["Call"], "Execute | None"]


def _celu(call: Call) -> Execute:
    alpha = call.attributes["alpha"]
    return lambda x: functional.celu(x, alpha)


def _thresholded_relu(call: Call) -> Execute:
    alpha = call.attributes["alpha"]
    return lambda x: functional.threshold(x, alpha, 0)


def _swish(call: Call) -> Execute | None:
    return functional.silu if call.attributes["alpha"] == 1 else None


def _prelu(x: Any, slope: Any) -> Any:
    return torch.where(x < 0, slope * x, x)


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


def _global_max(x: Any) -> Any:
    return x.amax(tuple(range(2, x.dim())), keepdim=True)


def _tile(x: Any, repeats: Any) -> Any:
    return x.repeat(repeats.tolist())


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


LAYERS: Mapping[str, Maker] = {
    "Celu": _celu,
    "HardSwish": lambda call: functional.hardswish,
    "Mish": lambda call: functional.mish,
    "PRelu": lambda call: _prelu,
    "Softplus": lambda call: functional.softplus,
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
    "Attention": _attention,
    "GridSample": _grid_sample,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "RMSNormalization": _rms_norm,
    "GlobalMaxPool": lambda call: _global_max,
    "Tile": lambda call: _tile,
    "Einsum": _einsum,
    "Trilu": _triangle,
    "CumSum": _cumulative_sum,
    "Identity": lambda call: lambda x: x,
}
"""ONNX's operator to the function of torch."""
