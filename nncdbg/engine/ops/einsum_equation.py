"""Equations of Einsum: the letters of each term."""

from __future__ import annotations

import string
from collections.abc import Sequence

from nncdbg.engine.errors import GraphError


def einsum_terms(equation: str, count: int) -> tuple[list[str], str]:
    """Return the letters of each input and of the output, ``.`` for the ellipsis."""
    left, arrow, right = equation.replace(" ", "").replace("...", ".").partition("->")
    terms = left.split(",")
    if len(terms) != count:
        raise GraphError(
            f"the equation {equation!r} has {len(terms)} terms, but the op has {count} inputs",
            attribute="equation",
        )
    letters = left.replace(",", "").replace(".", "")
    if not all(c.isascii() and c.isalpha() for c in letters):
        raise GraphError(
            f"the equation {equation!r} contains a character that is not a letter", attribute="equation"
        )
    if not arrow:
        # Without an arrow: the letters that occur once, in alphabetical order.
        single = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
        right = ("." if "." in left else "") + single
    unknown = [c for c in right if c != "." and c not in letters]
    if unknown:
        raise GraphError(
            f"the output letter {unknown[0]!r} of {equation!r} is not in any input", attribute="equation"
        )
    return terms, right


def without_ellipsis(terms: Sequence[str], right: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the terms with a letter for each axis of the ellipsis; `ranks` are those of the inputs."""
    used = {letter for term in terms for letter in term}
    free = [letter for letter in string.ascii_letters if letter not in used]
    widths = [rank - len(term) + 1 if "." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    most = max(widths)
    if most > len(free) or min(widths) < 0:
        raise GraphError(f"the equation does not fit inputs of {list(ranks)} axes", attribute="equation")
    # Axes of a shorter ellipsis broadcast from the right.
    letters = "".join(free[:most])
    full = [term.replace(".", letters[most - width :]) for term, width in zip(terms, widths, strict=True)]
    return full, right.replace(".", letters)
