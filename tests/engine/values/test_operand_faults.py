"""A statement that cannot run names what is wrong with its operands, never only a text of NumPy or Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.ops.schema import split
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Graph, Inline, Node, Program, Value
from tests.engine.ops.samples import Sample, by_entry

F = np.arange(12, dtype=np.float32).reshape(3, 4)

RAW = re.compile(
    r"object of type|has no attribute|not supported between|could not be broadcast|out of bounds|"
    r"not iterable|unsupported operand|missing \d+ required|to unpack|Traceback|numpy|ufunc"
)
"""Texts of NumPy and Python, which are allowed only after the types of the operands."""


def program_of(op: str, version: int, operands: list[Any], outputs: int, **attributes: Any) -> Any:
    names = [f"x{index}" if value is not None else None for index, value in enumerate(operands)]
    given = {
        key: Inline(value) if isinstance(value, np.ndarray) else value for key, value in attributes.items()
    }
    results = tuple(Value(f"y{index}") for index in range(outputs))
    node = Node(op, tuple(names), results, {key: value for key, value in given.items() if value is not None})
    graph = Graph("main", tuple(Value(name) for name in names if name), results, (node,), ())
    domain = split(op)[0]
    opsets: dict[str, int] = {"": 21, domain: version}
    inputs = {name: value for name, value in zip(names, operands, strict=True) if name}
    return Program({"main": graph}, "main", opsets=opsets), inputs


def error_of(program: Program, inputs: dict[str, Any]) -> NncdbgError | None:
    """Return the error of a program that cannot run; None if it runs."""
    try:
        debugger = nncdbg.Debugger(program, inputs, allocator="plain", statistics=False)
    except NncdbgError as error:
        return error
    stop = debugger.run()
    if stop.reason == "end":
        return None
    assert isinstance(stop.error, NncdbgError)
    return stop.error


ROWS: list[tuple[str, int, list[Any], dict[str, Any], str]] = [
    ("Add", 18, [F, F[:, :3].copy()], {}, "sizes 4 and 3 do not broadcast"),
    ("Gather", 18, [F, np.array([3])], {}, "index outside an axis of size 3"),
    ("Gather", 18, [F, F], {}, "%x1 is f32[3,4], but indices is one of i32, i64"),
    ("Slice", 18, [F, np.array(0), np.array(1)], {}, "Slice cannot compute"),
    ("Reshape", 18, [F, np.array([5, 2])], {}, "12 elements cannot have the shape [5,2]"),
    ("DepthToSpace", 13, [F], {"blocksize": 2}, "DepthToSpace"),
    ("ArgMax", 13, [F[:0]], {"axis": 0}, "ArgMax cannot compute: there is no extreme of no elements"),
]


@pytest.mark.parametrize(("op", "version", "operands", "attributes", "message"), ROWS)
def test_error_names_the_fact(
    op: str, version: int, operands: list[Any], attributes: dict[str, Any], message: str
) -> None:
    error = error_of(*program_of(op, version, operands, 1, **attributes))
    assert error is not None
    assert message in error.message
    assert error.hint


def wrong(x: Any) -> Iterator[Any]:
    """Operands of another rank, size or element type."""
    yield x[None]
    yield x.reshape(-1)[0] if x.size else x
    yield np.concatenate([x, x], axis=-1) if x.ndim else x[None]
    yield x[..., :0] if x.ndim else x[None][:0]
    yield np.full(x.shape, "a", object)
    yield x.astype(np.float32) if x.dtype.kind in "iub" else np.ones(x.shape, np.int64)
    yield np.ones(x.shape, bool)
    yield np.full(x.shape, 99, x.dtype) if x.dtype.kind in "iu" else x[:1] if x.ndim else x


ONE_PER_OP = {entry[0]: samples[0] for entry, samples in by_entry(1).items()}


@pytest.mark.parametrize("number", range(4))
def test_no_op_shows_only_a_raw_text(number: int) -> None:
    """Each op runs with two of its operands replaced, by one of eight kinds in turn."""
    shown = []
    for position, sample in enumerate(list(ONE_PER_OP.values())[number::4]):
        for index in range(min(2, len(sample.operands))):
            error = _with_wrong_operand(sample, index, position + index)
            if error is not None and (RAW.search(error.message.partition("its kernel reports")[0])):
                shown.append((sample.op.name, index, error.message))
            assert error is None or error.message
    assert not shown


def _with_wrong_operand(sample: Sample, index: int, kind: int) -> NncdbgError | None:
    operands = list(sample.operands)
    if not isinstance(operands[index], np.ndarray):
        return None
    operands[index] = np.asarray(list(wrong(operands[index]))[kind % 8])
    made = program_of(sample.op.name, sample.version, operands, sample.outputs, **sample.attributes)
    return error_of(*made)
