"""No rule for a cause fails where an optional operand is omitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the operators are those of PyTorch")

from nncdbg.engine.diagnosis.explaining import cause_of  # noqa: E402
from nncdbg.engine.ops.aten.operators import FACTS  # noqa: E402
from nncdbg.engine.ops.aten.signatures import ArgumentKind, signature_of  # noqa: E402
from nncdbg.engine.ops.causes import Birth  # noqa: E402

aten = torch.ops.aten
BIG = torch.tensor([3e38, -3e38, 3e38, 1.0, -3e38, 3e38, 2.0, -1.0]).reshape(4, 2)
INFINITE = torch.tensor([torch.inf, 1.0, -torch.inf, 2.0, torch.inf, 3.0, 0.0, 1.0]).reshape(4, 2)
ZERO = torch.zeros(4, 2)
VALUES = {"big": BIG, "infinite": INFINITE, "zero": ZERO}

ONE, NEGATIVE = torch.ones(2), torch.tensor([1.0, -1.0])
IMAGE = (4, 2, 1, 1)
KEYS = (1, 1, 4, 2)
CLOSED = torch.full((1, 1, 4, 4), -torch.inf)

CALLS: dict[str, tuple[Any, Callable[[Any], list[Any]]]] = {
    "native_batch_norm": (aten.native_batch_norm.default, lambda x: [x, ONE, ONE, ONE, ONE, True, 0.1, 0.0]),
    "native_batch_norm of statistics": (
        aten.native_batch_norm.default,
        lambda x: [x, ONE, ONE, ONE, NEGATIVE, False, 0.1, 0.0],
    ),
    "_native_batch_norm_legit": (
        aten._native_batch_norm_legit.no_stats,
        lambda x: [x, ONE, ONE, True, 0.1, 0.0],
    ),
    "native_layer_norm": (aten.native_layer_norm.default, lambda x: [x, [2], ONE, ONE, 0.0]),
    "native_group_norm": (
        aten.native_group_norm.default,
        lambda x: [x.reshape(4, 2, 1), ONE, ONE, 4, 2, 1, 2, 0.0],
    ),
    "convolution": (
        aten.convolution.default,
        lambda x: [x.reshape(IMAGE), torch.ones(2, 2, 1, 1), ONE, [1, 1], [0, 0], [1, 1], False, [0, 0], 1],
    ),
    "nll_loss_forward": (
        aten.nll_loss_forward.default,
        lambda x: [x, torch.tensor([0, 1, 0, 1]), torch.zeros(2), 1, -100],
    ),
    "nll_loss2d_forward": (
        aten.nll_loss2d_forward.default,
        lambda x: [x.reshape(IMAGE), torch.zeros(4, 1, 1, dtype=torch.long), torch.zeros(2), 1, -100],
    ),
    "nll_loss_backward": (
        aten.nll_loss_backward.default,
        lambda x: [torch.ones(()), x, torch.tensor([0, 1, 0, 1]), ONE, 1, -100, torch.zeros(())],
    ),
    "binary_cross_entropy": (
        aten.binary_cross_entropy.default,
        lambda x: [torch.ones(0), torch.ones(0), torch.ones(0), 1],
    ),
    "multi_margin_loss": (
        aten.multi_margin_loss.default,
        lambda x: [torch.ones(0, 2), torch.zeros(0, dtype=torch.long), 1, 1.0, ONE, 1],
    ),
    "_scaled_dot_product_attention_math": (
        aten._scaled_dot_product_attention_math.default,
        lambda x: [torch.ones(KEYS), torch.ones(KEYS), torch.ones(KEYS), CLOSED],
    ),
}
"""Operators with optional operands, and arguments with all of them."""

NEEDED = {"native_batch_norm of statistics": ("running_mean", "running_var")}
"""Operands without which the operator ends the process."""


def births(call: str, values: str) -> Iterator[Birth]:
    """Yield the results with NaN or Inf, with any of the optional operands omitted."""
    operator, arguments_of = CALLS[call]
    arguments = signature_of(operator).arguments
    given = arguments_of(VALUES[values])
    optional = [
        i
        for i, each in enumerate(arguments[: len(given)])
        if each.optional and given[i] is not None and each.name not in NEEDED.get(call, ())
    ]
    for omitted in chain.from_iterable(combinations(optional, n) for n in range(len(optional) + 1)):
        called = [None if i in omitted else each for i, each in enumerate(given)]
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in called]
        try:
            results = operator(*copies)
        except (RuntimeError, ValueError):  # an operand that is needed with these arguments
            continue
        pairs = [*zip(arguments, called, strict=False)]
        tensors = [(each.name, value) for each, value in pairs if each.kind is ArgumentKind.TENSOR]
        attributes = {each.name: value for each, value in pairs if each.kind is not ArgumentKind.TENSOR}
        operands = [None if value is None else value.numpy() for _, value in tensors]
        for index, result in enumerate(results if isinstance(results, tuple) else (results,)):
            output = np.asarray(result)
            for kind, test in (("nan", np.isnan), ("inf", np.isinf)):
                if output.dtype.kind == "f" and test(output).any():
                    name = f"aten.{operator._schema.name.partition('::')[2]}.{operator._overloadname}"
                    names = [name for name, _ in tensors]
                    yield Birth(kind, name, 1, attributes, names, operands, output, index)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("call", CALLS)
def test_no_rule_fails_without_optional_operands(call: str, values: str) -> None:
    for birth in births(call, values):
        found = cause_of(birth)
        assert "failed" not in found.evidence
        assert found.name


def test_each_rule_of_an_operator_with_optional_operands_is_called() -> None:
    def has_optional(name: str) -> bool:
        packet = getattr(aten, name, None)
        overloads = packet.overloads() if packet is not None else ()
        schemas = [getattr(packet, each)._schema for each in overloads if "out" not in each]
        return any(str(each.type) == "Optional[Tensor]" for schema in schemas for each in schema.arguments)

    optional = {name for name, facts in FACTS.items() if facts.cause and has_optional(name)}
    here = {operator._schema.name.partition("::")[2] for operator, _ in CALLS.values()}
    assert optional - here - GPU_OR_SAME == set()


GPU_OR_SAME = {
    "cudnn_batch_norm",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "nll_loss2d_backward",
}
"""Operators of a GPU, and those with the rule and the operands of one in `CALLS`."""
