"""Micro programs of PyTorch's operators: what an operator computes, in simpler operators.

torch has decompositions of many operators, as Python functions; `RULES` adds others: products, attention and
fused optimizers, by torch's documentation and the update formulas of `torch.optim`.  A function runs on
tensors without data, and the operators that it calls become the statements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from nncdbg.engine.ops.aten.internals import DispatchMode, decompositions, without_dispatch
from nncdbg.engine.ops.aten.signatures import (
    COUNT,
    DTYPES,
    TORCH_DTYPES,
    Argument,
    ArgumentKind,
    NotEncodable,
    Signature,
    decode,
    encode,
    flat_results,
    signature,
    signature_of,
)
from nncdbg.engine.ops.declaration import Formula, Op
from nncdbg.errors import GraphError, UnsupportedOp
from nncdbg.ir.records import Attribute, Graph, Node, Program, TensorType, Type, Value, tensor_only
from nncdbg.text.torch_names import OPERAND


def _mm(a: Any, b: Any) -> Any:
    """Rows of `a` times columns of `b`: each product, then the sum."""
    return (a.unsqueeze(2) * b.unsqueeze(0)).sum(1)


def _bmm(a: Any, b: Any) -> Any:
    return (a.unsqueeze(3) * b.unsqueeze(1)).sum(2)


def _added(product: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return beta times a bias plus alpha times a product."""

    def rule(bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
        return _scaled(bias, beta) + _scaled(product(a, b), alpha)

    return rule


def _scaled(value: Any, factor: float) -> Any:
    return value if factor == 1 else value * factor


def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """The windows of `x` as columns, times the weights of each group."""
    if transposed or x.dim() != 4:
        raise ValueError("only two-dimensional convolutions that are not transposed have one")
    columns = torch.nn.functional.unfold(x, weight.shape[2:], dilation, padding, stride)
    batch, channels = x.shape[0], weight.shape[0]
    columns = columns.reshape(batch, groups, -1, columns.shape[-1])
    kernels = weight.reshape(groups, channels // groups, -1)
    y = (kernels.unsqueeze(0).unsqueeze(-1) * columns.unsqueeze(2)).sum(3)
    spatial = [
        (size + 2 * pad - gap * (length - 1) - 1) // step + 1
        for size, pad, gap, length, step in zip(
            x.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
        )
    ]
    y = y.reshape(batch, channels, *spatial)
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """Softmax of the scaled scores, times the values; and the logarithm of the sum of exponentials."""
    if dropout_p:
        raise ValueError("attention with dropout has none")
    scores = torch.matmul(query, key.transpose(-2, -1)) * (scale or 1 / math.sqrt(query.shape[-1]))
    if is_causal:
        rows, columns = scores.shape[-2:]
        allowed = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril()
        scores = torch.where(allowed, scores, -math.inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    return torch.matmul(torch.softmax(scores, -1), value), torch.logsumexp(scores, -1)


def _fused_adam(decoupled: bool) -> Callable[..., Any]:
    """Return the update of Adam; with `decoupled`, the weight decay of AdamW."""

    def update(
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        averages: Sequence[Any],
        squares: Sequence[Any],
        greatest: Sequence[Any],
        steps: Sequence[Any],
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Any = None,
        found_inf: Any = None,
    ) -> Any:
        if found_inf is not None:
            raise ValueError("an update that found_inf can skip has none")
        new: list[list[Any]] = [[], [], [], [], []]
        for index, (w, g, m, v, step) in enumerate(
            zip(parameters, gradients, averages, squares, steps, strict=True)
        ):
            g = g if grad_scale is None else g / grad_scale
            new[1].append(g)
            g = -g if maximize else g
            if weight_decay and decoupled:
                w = w * (1 - lr * weight_decay)
            elif weight_decay:
                g = g + w * weight_decay
            m = m + (g - m) * (1 - beta1)
            v = v * beta2 + g * g * (1 - beta2)
            largest = torch.maximum(greatest[index], v) if amsgrad else v
            root = largest.sqrt() / (1 - beta2**step).sqrt() + eps
            new[0].append(w - lr / (1 - beta1**step) * m / root)
            new[2].append(m)
            new[3].append(v)
            if amsgrad:
                new[4].append(largest)
        return [tensor for tensors in new for tensor in tensors]

    return update


def _fused_sgd(
    parameters: Sequence[Any],
    gradients: Sequence[Any],
    buffers: Sequence[Any],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> Any:
    """The update of SGD with momentum and Nesterov."""
    if found_inf is not None:
        raise ValueError("an update that found_inf can skip has none")
    new: list[list[Any]] = [[], [], []]
    for index, (w, g) in enumerate(zip(parameters, gradients, strict=True)):
        g = g if grad_scale is None else g / grad_scale
        new[1].append(g)
        g = -g if maximize else g
        g = g + w * weight_decay if weight_decay else g
        if momentum:
            b = g if is_first_step else buffers[index] * momentum + g * (1 - dampening)
            new[2].append(b)
            g = g + b * momentum if nesterov else b
        new[0].append(w - g * lr)
    return [tensor for tensors in new for tensor in tensors]


RULES: dict[str, Callable[..., Any]] = {
    "aten.mm.default": _mm,
    "aten.bmm.default": _bmm,
    "aten.addmm.default": _added(_mm),
    "aten.addmv.default": _added(lambda a, vector: (a * vector).sum(1)),
    "aten.baddbmm.default": _added(_bmm),
    "aten.convolution.default": _convolution,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._fused_adam_.default": _fused_adam(decoupled=False),
    "aten._fused_adamw_.default": _fused_adam(decoupled=True),
    "aten._fused_sgd_.default": _fused_sgd,
}
"""Operator to the function that computes it."""


_OPS: dict[str, tuple[Op | None, Op | None]] = {}
"""Name to an operator's declaration, and the same with its formula."""


def with_formula(name: str, declared: Op | None) -> Op | None:
    """Return the declaration of an operator with its formula; None for one with neither."""
    known = _OPS.get(name)
    if known is None or known[0] is not declared:
        formula = formula_of(name)
        found = declared if formula is None else replace(declared or Op(name), formula=formula)
        known = _OPS[name] = declared, found
    return known[1]


def formula_of(name: str) -> Formula | None:
    """Return the formula of an operator by its name in program text; None for one that has none."""
    found = signature(name)
    if found is None or found.allocates or (found.random and name not in RULES):
        return None
    function = _function(found)
    return None if function is None else partial(_formula_text, found, function)


def _function(found: Signature) -> Callable[..., Any] | None:
    """Return a Python function that computes an operator; an in-place one by its functional counterpart."""
    own = RULES.get(found.name)
    if own is not None:
        return own
    known: Callable[..., Any] | None = decompositions().get(found.overload)
    if known is not None and not found.writes:
        return known
    if found.writes == ("self",):
        namespace, operator, overload = found.name.split(".")
        functional = signature(f"{namespace}.{operator.removesuffix('_')}.{overload}")
        if functional is not None and operator.endswith("_") and not functional.writes:
            return _function(functional)
    return None


def _formula_text(
    found: Signature,
    function: Callable[..., Any],
    attributes: Mapping[str, Any],
    types: Sequence[TensorType | None],
) -> str:
    """Return the text of a micro program; none for an operator that is one primitive of torch.

    Raises GraphError if the types do not fit the operator, UnsupportedOp if the function computes with
    what has no statement.
    """
    if OPERAND in attributes.values() or any(
        OPERAND in each for each in attributes.values() if isinstance(each, tuple)
    ):
        raise UnsupportedOp("a micro program needs the numbers among the arguments")
    operands = [None if known is None else _tensor_without_data(known) for known in types]
    positional, keywords = _arguments(found, attributes, operands)
    tracer = _Tracer(found.name, operands, _operand_names(found, attributes))
    try:
        with tracer:
            results = flat_results(function(*positional, **keywords))
    except (GraphError, UnsupportedOp):
        raise
    except Exception as error:
        raise GraphError(f"{found.name} has no micro program for these operands: {error}") from error
    return tracer.text([each for each in results if isinstance(each, torch.Tensor)])


_NO_DATA = torch.device("meta")


def _tensor_without_data(known: Type) -> Any:
    tensor = tensor_only(known)
    if tensor is None or not tensor.concrete or tensor.shape is None:
        raise UnsupportedOp("a micro program needs operands with known sizes")
    return torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype], device=_NO_DATA)


def _arguments(
    found: Signature, attributes: Mapping[str, Any], operands: Sequence[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments of a statement, without defaults at the end."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    rest = iter(operands)
    given = 0
    for argument in found.arguments:
        value = _argument(argument, attributes, rest)
        stated = argument.required or not argument.is_default(value)
        if not argument.keyword_only:
            positional.append(value)
            given = len(positional) if stated else given
        elif stated and value is not None:
            keywords[argument.name] = value
    return positional[:given], keywords


def _argument(argument: Argument, attributes: Mapping[str, Any], operands: Iterator[Any]) -> Any:
    given = attributes.get(argument.name)
    if argument.kind is ArgumentKind.TENSOR:
        tensor = next(operands, None)
        return tensor if given is None else decode(given, argument)
    if argument.kind is ArgumentKind.TENSORS:
        count = attributes.get(COUNT + argument.name)
        return argument.default if count is None else [next(operands, None) for _ in range(count)]
    return argument.default if given is None else decode(given, argument)


_NO_STATEMENTS = ("prim",)
"""Libraries whose operators ask a tensor for its device or sizes."""


class _Tracer(DispatchMode):
    """Collects the operators that run on tensors without data as statements."""

    def __init__(self, name: str, operands: Sequence[Any], names: Sequence[str]) -> None:
        super().__init__()
        self._name = name
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []
        """Tensors whose identity is in use."""
        self._taken: set[str] = set()
        self._nodes: list[Node] = []
        given = zip(operands, names, strict=False)
        self._inputs = [self._bound(tensor, name) for tensor, name in given if tensor is not None]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace not in _NO_STATEMENTS:
            with without_dispatch():
                self._add(signature_of(func), args, kwargs or {}, result)
        return result

    def text(self, results: Sequence[Any]) -> str:
        """Return the graph that gives these tensors, if it has more than one statement."""
        if len(self._nodes) < 2:
            return ""
        outputs = [Value(self._known(result), _type_of(result)) for result in results]
        graph = Graph(self._name.replace(".", "_"), tuple(self._inputs), tuple(outputs), tuple(self._nodes))
        return Program({graph.name: graph}, graph.name).text()

    def _add(self, found: Signature, args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> None:
        if found.writes or found.random:
            raise UnsupportedOp(f"the micro program of {self._name} would contain {found.name}")
        operands: list[str | None] = []
        attributes: dict[str, Attribute] = {}
        for index, argument in enumerate(found.arguments):
            given = args[index] if index < len(args) else keywords.get(argument.name, argument.default)
            self._add_argument(argument, given, operands, attributes)
        while operands and operands[-1] is None:
            operands.pop()
        local = found.name.split(".")[-2].strip("_")
        outputs = tuple(
            self._bound(each, local) if isinstance(each, torch.Tensor) else Value("")
            for each in flat_results(result)
        )
        self._nodes.append(Node(found.name, tuple(operands), outputs, attributes))

    def _add_argument(
        self, argument: Argument, given: Any, operands: list[str | None], attributes: dict[str, Attribute]
    ) -> None:
        if argument.kind is ArgumentKind.TENSOR and isinstance(given, (torch.Tensor, type(None))):
            operands.append(None if given is None else self._known(given))
        elif argument.kind is ArgumentKind.TENSORS:
            if given is not None:
                attributes[COUNT + argument.name] = len(given)
                operands.extend(None if each is None else self._known(each) for each in given)
        else:
            if argument.kind is ArgumentKind.TENSOR:
                operands.append(None)
            if argument.required or not argument.is_default(given):
                try:
                    attributes[argument.name] = "cpu" if given == _NO_DATA else encode(given)
                except NotEncodable as reason:
                    raise UnsupportedOp(f"an argument in the micro program is {reason}") from None

    def _bound(self, tensor: Any, wanted: str) -> Value:
        name, number = wanted, 0
        while name in self._taken:
            number += 1
            name = f"{wanted}.{number}"
        self._taken.add(name)
        self._names[id(tensor)] = name
        self._kept.append(tensor)
        return Value(name, _type_of(tensor))

    def _known(self, tensor: Any) -> str:
        name = self._names.get(id(tensor))
        if name is None:
            raise UnsupportedOp(f"the micro program of {self._name} contains a constant tensor")
        return name


def _operand_names(found: Signature, attributes: Mapping[str, Any]) -> list[str]:
    """Return a name for each operand; those of a list have the name of the list."""
    names: list[str] = []
    for argument in found.tensor_arguments:
        several = argument.kind is ArgumentKind.TENSORS
        names += [argument.name] * (attributes.get(COUNT + argument.name) or 0 if several else 1)
    return names


def _type_of(tensor: Any) -> TensorType:
    return TensorType(DTYPES[tensor.dtype], tuple(map(int, tensor.shape)))
