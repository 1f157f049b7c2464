"""Names of PyTorch's operators in program text.  Imports nothing of torch."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from itertools import takewhile
from typing import TYPE_CHECKING

from nncdbg.ir.kinds import Kind, kind_of

if TYPE_CHECKING:
    from nncdbg.ir.records import Node

DOMAINS = ("aten", "prims", "torch")
"""Domains of PyTorch's operators; ``torch`` holds nncdbg's own and those of all other libraries."""

VIEW = "torch.view"
"""`torch.view(base, size=, stride=, offset=, dtype=)`: a view with this layout of the memory of `base`."""

WRITE = "torch.write"
"""`torch.write(base, part, size=, stride=, offset=)`: a copy of `base` with `part` written at this layout."""

RECORDED = "torch.recorded"
"""`torch.recorded(result, op=)`: the recorded result of an operator that cannot run again."""

RECORDED_INPUT = "recorded."
"""The start of the name of an input with such a result."""

RECEIVED_INPUT = "received."
"""The start of the name of an input with the recorded result of a collective: other processes sent it."""

READ = "torch.read"
"""`torch.read(tensor, value=)`: Python read this tensor's one number; `value` is the recorded one."""

NUMBER = "torch.number"
"""`torch.number(a, b, function=)`: a function of Python's numbers, such as sizes: ``floordiv`` or ``ge``."""

OPERAND = "?"
"""The text of an argument that is a number of a statement, such as a size: an operand after the tensors."""

_NAMESPACES = frozenset(
    ("quantized", "quantized_decomposed", "_quantized", "mkldnn", "onednn", "profiler", "c10d")
    + ("_c10d_functional", "c10d_functional", "symm_mem", "_dtensor", "inductor", "rngprims", "higher_order")
    + ("prim", "debugprims")
)
"""Namespaces of operators that PyTorch itself has, besides ``aten`` and ``prims``."""

OF_TORCH = frozenset(("aten", "prims")) | _NAMESPACES
"""All of them."""

OPERATOR = "torch."
"""The start of the name of an operator that runs other ones: they have a graph, as those of a module have."""

OWN = {VIEW, WRITE, RECORDED, READ, NUMBER}


def text_name(namespace: str, name: str, overload: str) -> str:
    """Return the name of one of torch's operators in program text; an `overload` "" is the default one."""
    domain = namespace if namespace in ("aten", "prims") else f"torch.{namespace}"
    return f"{domain}.{name}.{overload or 'default'}"


_WITH_TENSOR = frozenset(
    (
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "true_divide",
        "remainder",
        "fmod",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
    )
    + ("bitwise_and", "bitwise_or", "bitwise_xor", "index", "slice", "split", "masked_fill", "fill", "lerp")
)
"""Operators of which the overload ``Tensor`` is the usual one, also in place; of others it is ``default``."""


def _usual_overload(domain: str, name: str) -> str:
    return "Tensor" if domain == "aten" and name.removesuffix("_") in _WITH_TENSOR else "default"


def without_overload(op: str) -> str:
    """Return ``aten.add`` for ``aten.add.Tensor``: an operator as program text spells it."""
    parts = op.split(".")
    if len(parts) != 3 or parts[0] not in ("aten", "prims") or parts[2] != _usual_overload(*parts[:2]):
        return op
    return f"{parts[0]}.{parts[1]}"


def with_overload(op: str) -> str:
    """Return ``aten.add.Tensor`` for ``aten.add``; the opposite of `without_overload`."""
    domain, _, name = op.partition(".")
    if domain not in ("aten", "prims") or not name or "." in name:
        return op
    return f"{op}.{_usual_overload(domain, name)}"


def of_other_library(op: str) -> bool:
    """Return whether a name is that of an operator of a library that extends PyTorch."""
    domain, _, rest = op.partition(".")
    return domain == "torch" and "." in rest and rest.partition(".")[0] not in _NAMESPACES


def is_torch(op: str) -> bool:
    """Return whether a statement's op belongs to PyTorch."""
    return op.partition(".")[0] in DOMAINS


_AUTOGRAD_NODE = re.compile(r"\w*Backward(s|\d*)|AccumulateGrad|CopySlices")


def autograd_nodes(name: str) -> list[str]:
    """Return the autograd nodes at the end of a statement's name; empty outside of a backward pass."""
    return [*takewhile(_AUTOGRAD_NODE.fullmatch, reversed(name.split(" ")))][::-1]


def named_place(op: str, name: str) -> str:
    """Return what a statement's name is: a module and an autograd node of PyTorch, otherwise a node.

    The name of a backward statement is ``"hidden AddmmBackward0"`` or ``"hidden.weight AccumulateGrad"``.
    In a double backward pass, the node with the formula comes first: ``"NormBackward0 MulBackward0"``.
    """
    if not (is_torch(op) or kind_of(op) is Kind.UPDATE):
        return f'node "{name}"'
    nodes = autograd_nodes(name)
    if not nodes:
        return _owner(name)
    last = " ".join(nodes)
    owner, node = name.removesuffix(last).rstrip(), f'node "{last}"'
    place = f'parameter "{owner}"' if nodes[-1] == "AccumulateGrad" else _owner(owner)
    return f"{place}, {node}" if owner else node


def _owner(name: str) -> str:
    return f'{"operator" if name.startswith(OPERATOR) else "module"} "{name}"'


def origin_text(node: Node) -> str:
    """Return the place of a statement in the user's model: ``net.py:12, module "hidden"``, or empty."""
    location = node.location
    if location is None:
        return ""
    name = named_place(node.op, location.name) if location.name else ""
    return ", ".join(part for part in (location.place, name) if part)


@cache
def stop_names(op: str) -> frozenset[str]:
    """Return the names by which a user may stop at a statement's op.

    For an operator of PyTorch, they include those without the overload and without leading underscores:
    ``aten.softmax`` is one for ``aten._softmax.default``.
    """
    if not is_torch(op) or op in OWN:
        return frozenset((op,))
    domain, _, name = op.rpartition(".")[0].rpartition(".")
    return frozenset((op, f"{domain}.{name}", f"{domain}.{name.lstrip('_')}"))


@cache
def installed() -> bool:
    """Return whether torch can be imported, without importing it."""
    return find_spec("torch") is not None


def base_name(op: str) -> str:
    """Return the name of an operator without domain, overload and its forms in place and for lists.

    ``aten._foreach_addcdiv_.ScalarList`` is ``addcdiv``, ``torch.c10d.allreduce_.default`` ``allreduce``.
    """
    parts = op.split(".")
    name = parts[1] if len(parts) <= 3 else parts[-2]
    return name.removeprefix("_foreach_").removesuffix("_")
