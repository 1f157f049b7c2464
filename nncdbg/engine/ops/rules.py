"""Two facts that the type rules of the network ops state again and again: a rank, and that sizes agree."""

from __future__ import annotations

from nncdbg.engine.errors import GraphError
from nncdbg.engine.graph import Dim, TensorType


def need_rank(given: TensorType | None, what: str, least: int, most: int | None = None) -> None:
    """GraphError if the rank is known and outside `least`..`most` (no upper bound if None)."""
    if given is None or given.shape is None:
        return
    rank = len(given.shape)
    if rank < least or (most is not None and rank > most):
        wanted = (
            f"at least {least}" if most is None else f"{least}" if most == least else f"{least} to {most}"
        )
        raise GraphError(f"{what} has {rank} axes, expected {wanted}")


def agree(a: Dim, b: Dim, fact: str) -> Dim:
    """The size that both describe, a number rather than a symbol; GraphError(fact) if two numbers differ."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise GraphError(fact)
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or a is None else a
