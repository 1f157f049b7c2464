"""Requests of our own for views of tensors: samples, histograms, statistics; and marks.

A sample costs what is sent, however large the tensor is.  Statistics and histograms are passes over
all elements: they say how long they took, and can be cancelled.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from nncdbg.dap_server.presentation.glance import is_tensor, type_text
from nncdbg.dap_server.presentation.places import values_from
from nncdbg.dap_server.registry import LIVE, STILL, State, request
from nncdbg.engine import dtypes
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.expression import evaluate, evaluate_index, parse, parse_index, resolve_name
from nncdbg.stats.piecewise import histogram_by_pieces, summarize_by_pieces

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.graph import Array
    from nncdbg.engine.values import Values

MAX_ELEMENTS = 1 << 18
"""Elements of the largest sample."""

MAX_BINS = 1 << 12


class AxisRange(msgspec.Struct, frozen=True, kw_only=True):
    """A Python slice of one axis."""

    start: int | None = None
    stop: int | None = None
    step: int | None = None


class SliceArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tensor by `name` or `expression`, and what of it: `index` is text (``0, :, 2:5``)."""

    name: str | None = None
    expression: str | None = None
    frame_id: int | None = None
    index: str | None = None
    axes: list[AxisRange] | None = None
    max_elements: int = 1 << 14


class SliceBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`data` are the elements in C order, every `stride[i]`-th along axis i; `shape` is that of `data`.

    Numbers are JSON numbers, and ``"NaN"``, ``"Infinity"``, ``"-Infinity"``; complex ones pairs of
    them.  `source_shape` is the shape after indexing and before sampling.
    """

    type: str
    dtype: str
    source_shape: list[int]
    stride: list[int]
    shape: list[int]
    data: list[Any]


class HistogramArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    expression: str
    bins: int = 32
    range: tuple[float, float] | None = None
    frame_id: int | None = None


class StatisticsArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    expressions: list[str]
    frame_id: int | None = None


class MarksArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    action: Literal["list", "set", "goto", "delete"] = "list"
    name: str | None = None


@request("nncdbg/slice", when=STILL, arguments=SliceArguments, reads=True)
def slice_(session: Session, arguments: SliceArguments) -> SliceBody:
    if not 1 <= arguments.max_elements <= MAX_ELEMENTS:
        raise UsageError(
            f"a sample of {arguments.max_elements} elements", hint=f"ask for 1 to {MAX_ELEMENTS}"
        )
    scope = values_from(session, arguments.frame_id)
    whole = _named(scope, arguments)
    chosen = _part(scope, whole, arguments)
    stride = sampling(chosen.shape, arguments.max_elements)
    sample = np.asarray(scope.to_host(chosen[tuple(slice(None, None, each) for each in stride)]))
    return SliceBody(
        type=type_text(whole),
        dtype=dtypes.name_of(chosen.dtype),
        source_shape=list(chosen.shape),
        stride=stride,
        shape=list(sample.shape),
        data=json_numbers(sample),
    )


def _named(scope: Values, arguments: SliceArguments) -> Any:
    """The tensor, where it stands."""
    if (arguments.name is None) == (arguments.expression is None):
        raise UsageError("a slice is of one tensor", hint="give either `name` or `expression`")
    if arguments.name is not None:
        content = scope.content(resolve_name(arguments.name, scope.has, scope.names))
        return content if is_tensor(content) else _tensor(content, arguments.name)
    assert arguments.expression is not None
    return tensor_of(scope, arguments.expression)


def tensor_of(scope: Values, text: str) -> Array:
    """The tensor that an expression gives; UsageError if it gives something else."""
    return _tensor(evaluate(parse(text, scope.has, scope.names), scope), text)


def _tensor(content: Any, text: str) -> Array:
    if not isinstance(content, (np.ndarray, np.generic, bool, int, float)):
        raise UsageError(f"`{text}` is no tensor", hint="name a tensor, or an element of a sequence")
    return np.asarray(content)


def _part(scope: Values, whole: Any, arguments: SliceArguments) -> Any:
    index: tuple[Any, ...] = ()
    if arguments.index is not None and arguments.axes is not None:
        raise UsageError("both `index` and `axes` say what to take", hint="give one of them")
    if arguments.index is not None:
        index = evaluate_index(parse_index(arguments.index, scope.has, scope.names), scope)
    elif arguments.axes is not None:
        index = tuple(slice(axis.start, axis.stop, axis.step) for axis in arguments.axes)
    try:
        # One element of a tensor of strings is a str, no array.
        return np.asarray(whole[index], whole.dtype) if isinstance(whole, np.ndarray) else whole[index]
    except (IndexError, ValueError, TypeError) as error:
        raise UsageError(f"the index does not fit {type_text(whole)}: {error}") from None


def sampling(shape: tuple[int, ...], most: int) -> list[int]:
    """A step for each axis, a power of two, so that at most `most` elements are left; long axes first."""
    steps = [1] * len(shape)
    if 0 in shape:
        return steps

    def left(axis: int) -> int:
        return -(-shape[axis] // steps[axis])

    while math.prod(map(left, range(len(shape)))) > most:
        steps[max(range(len(shape)), key=left)] *= 2
    return steps


def json_numbers(array: Array) -> list[Any]:
    """The elements in C order as JSON can tell them."""
    flat = array.reshape(-1)
    if flat.dtype.kind == "c":
        return [list(map(json_number, (each.real, each.imag))) for each in flat.tolist()]
    if flat.dtype.kind in "OUST":
        return list(map(str, flat.tolist()))
    if flat.dtype.kind == "V":
        # Integers narrower than a byte, or floats narrower than f32.
        flat = flat.astype(np.int8 if dtypes.name_of(flat.dtype) in dtypes.INTEGERS else np.float32)
    listed: list[Any] = flat.tolist()
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return list(map(json_number, listed))
    return listed


def json_number(number: float) -> float | str:
    """A number, or its name where JSON has none."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


@request("nncdbg/histogram", when=STILL, arguments=HistogramArguments, reads=True)
def histogram(session: Session, arguments: HistogramArguments) -> dict[str, Any]:
    if not 1 <= arguments.bins <= MAX_BINS:
        raise UsageError(f"a histogram of {arguments.bins} bins", hint=f"ask for 1 to {MAX_BINS}")
    array = tensor_of(values_from(session, arguments.frame_id), arguments.expression)
    start = time.perf_counter()
    found = histogram_by_pieces(array, arguments.bins, arguments.range, session.check_cancelled)
    return {"type": type_text(array), **found.as_dict(), "seconds": time.perf_counter() - start}


@request("nncdbg/stats", when=STILL, arguments=StatisticsArguments, reads=True)
def statistics(session: Session, arguments: StatisticsArguments) -> dict[str, Any]:
    """One entry for each expression; what cannot be evaluated has `error` instead of `stats`."""
    scope = values_from(session, arguments.frame_id)
    return {"statistics": [_statistics(session, scope, text) for text in arguments.expressions]}


def _statistics(session: Session, scope: Values, text: str) -> dict[str, Any]:
    session.check_cancelled()
    start = time.perf_counter()
    try:
        array = tensor_of(scope, text)
    except NncdbgError as error:
        return {"expression": text, "error": error.message}
    summary = summarize_by_pieces(array, session.check_cancelled).as_dict()
    seconds = time.perf_counter() - start
    return {"expression": text, "type": type_text(array), "stats": summary, "seconds": seconds}


@request("nncdbg/marks", when=LIVE, arguments=MarksArguments)
def marks(session: Session, arguments: MarksArguments) -> dict[str, Any]:
    """Named moments: the marks there are after `set` and `delete`; `goto` moves the program."""
    debugger = session.program.debugger
    if arguments.action != "list":
        name = _mark_name(arguments.name)
        if arguments.action == "set":
            debugger.mark(name)
        elif arguments.action == "delete":
            debugger.forget_mark(name)
        else:
            _go_to(session, name)
    return {"marks": [_mark(session, name) for name in debugger.timeline.marks]}


def _mark_name(name: str | None) -> str:
    if not name:
        raise UsageError("a mark has a name", hint="give `name`")
    return name


def _go_to(session: Session, name: str) -> None:
    if session.state is not State.STOPPED:
        raise UsageError(session.state.value)
    debugger = session.program.debugger
    mark = debugger.known_mark(name)
    session.program.move(session, lambda: debugger.go_to(mark), unasked=True)


def _mark(session: Session, name: str) -> dict[str, Any]:
    timeline = session.program.debugger.timeline
    mark = timeline.marks[name]
    here = mark.branch == timeline.branch and mark.tick == timeline.tick
    return {"name": name, "statements": mark.tick, "branch": mark.branch, "here": here}
