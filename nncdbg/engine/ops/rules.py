"""Two facts that the type rules of the network ops state again and again: a rank, and that sizes agree."""

from __future__ import annotations

from nncdbg.engine.errors import GraphError
from nncdbg.engine.graph import Dim
from nncdbg.engine.ops.types import Types, at


def need_rank(types: Types, index: int, what: str, least: int, most: int | None = None) -> None:
    """GraphError if the rank of operand `index` is known and outside `least`..`most` (None: no bound)."""
    given = at(types, index)
    if given is None or given.shape is None:
        return
    rank = len(given.shape)
    if rank < least or (most is not None and rank > most):
        wanted = (
            f"at least {least}" if most is None else f"{least}" if most == least else f"{least} to {most}"
        )
        raise GraphError(f"{what} has {rank} axes, expected {wanted}", operand=index)


def agree(a: Dim, b: Dim, fact: str, operand: int | None = None) -> Dim:
    """The size that both describe, rather a number; GraphError(fact) for `operand` if two numbers differ."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise GraphError(fact, operand=operand)
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or a is None else a
