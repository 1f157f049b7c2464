"""Births as a run reports them, from an op's kernel over given operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nncdbg.dtypes import NUMPY
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.causes import Birth
from nncdbg.engine.ops.causes.evidence import flat
from nncdbg.engine.ops.schema import complete, newest_opset, split
from nncdbg.stats.inspection import holds


def tensor(data: Any, dtype: str = "f32") -> Any:
    """An array of an element type by its short name; overflow gives Inf without a warning."""
    with np.errstate(all="ignore"):
        return np.asarray(np.array(data, None if dtype == "str" else np.float64).astype(NUMPY[dtype]))


def results(op: str, opset: int, attributes: Mapping[str, Any], operands: Sequence[Any], outputs: int) -> Any:
    """Run the op's kernel and return its results as a tuple."""
    declared = lookup(op, opset)
    assert declared is not None
    arguments = dict(attributes)
    if declared.opset_version:
        arguments["opset"] = opset
    if declared.outputs_count:
        arguments["outputs_count"] = outputs
    if declared.random:
        arguments["rng"] = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        found = declared.bind(np, arguments)(*operands)
    return found if isinstance(found, tuple) else (found,)


def births(
    op: str,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
    opset: int,
    outputs: int,
    names: Sequence[str],
) -> Iterator[Birth]:
    """The births in the results of one statement."""
    known = complete(op, opset, attributes)
    for index, result in enumerate(results(op, opset, known, operands, outputs)):
        for kind in ("nan", "inf"):
            given = any(holds(value, kind) for value in flat(operands))
            if holds(result, kind) and not given:
                yield Birth(kind, op, opset, known, names, operands, np.asarray(result), index)


def born(op: str, *operands: Any, opset: int | None = None, outputs: int = 1, **attributes: Any) -> Birth:
    """The first birth of a statement with operands named %a, %b, %c, ..."""
    version = opset or (1 if split(op)[0] else newest_opset())
    names = ["" if value is None else "abcdefgh"[number] for number, value in enumerate(operands)]
    return next(births(op, operands, attributes, version, outputs, names))
