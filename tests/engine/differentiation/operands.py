"""Random operands from shapes in a text table."""

from __future__ import annotations

from typing import Any

import numpy as np

DOMAINS = {"+": np.abs, "~": np.tanh}


def random_operands(shapes: str) -> dict[str, Any]:
    """Random operands x, b, c ... of shapes like ``2,3 +3``; a mark before a shape limits the elements.

    A shape ``()`` is a scalar.
    """
    generator = np.random.default_rng(13)
    made = {}
    for name, text in zip("xbcdefgh", shapes.split(), strict=False):
        sizes = text.strip("+~()")
        array = np.asarray(generator.standard_normal([int(size) for size in sizes.split(",") if size]))
        domain = DOMAINS.get(text[0], np.asarray)
        made[name] = np.asarray(domain(array + np.copysign(0.1, array)))
    return made
