"""Custom requests for views of tensors: samples, histograms, statistics; and marks.

The cost of a sample depends on its own size, not the tensor's.  A reduction by blocks is a pass over all
elements, done only if there are few enough.  Statistics, histograms and comparisons are such passes too: they
report their duration, and can be cancelled.
"""

from __future__ import annotations

import base64
import math
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from nncdbg import dtypes
from nncdbg.commands.changing import known_branch
from nncdbg.commands.comparing import other_branch
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.variables.places import values_from
from nncdbg.dap_server.variables.value_text import Glance, is_tensor, type_text
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.expression import (
    evaluate,
    evaluate_index,
    parse,
    parse_index,
    resolve_name,
    spelled,
    split_target,
)
from nncdbg.expression.nodes import Name
from nncdbg.presentation.elements import count_of, json_number
from nncdbg.stats import compare
from nncdbg.stats.blocks import (
    BlockReduction,
    Reduction,
    check_same_shape,
    difference,
    next_nonfinite,
    reduce_blocks,
)
from nncdbg.stats.histograms import histogram_by_pieces

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.values.values import Values
    from nncdbg.ir.records import Array
    from nncdbg.stats.histograms import Histogram


def sampling(shape: tuple[int, ...], most: int) -> list[int]:
    """A power-of-two step for each axis, so that at most `most` elements remain; long axes first."""
    steps = [1] * len(shape)
    if 0 in shape:
        return steps

    def left(axis: int) -> int:
        return -(-shape[axis] // steps[axis])

    while math.prod(map(left, range(len(shape)))) > most:
        steps[max(range(len(shape)), key=left)] *= 2
    return steps


def packed(array: Array) -> tuple[str, str]:
    """(`f32`, bytes in base64): the elements in C order, little-endian.

    Elements of one to eight bytes keep their type; narrower ones and narrow floats become `i8` and `f32`,
    bools `u8`, complex ones pairs.  Raises UsageError for strings.
    """
    kind = array.dtype.kind
    if kind in "OUST":
        raise UsageError("strings cannot be sent as bytes", hint="request `json`")
    if kind == "V":
        array = _widened(array)
    elif kind == "f" and array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    elif kind == "b":
        array = array.view(np.uint8)
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    if kind == "c":
        little = little.reshape(-1).view(f"<f{array.dtype.itemsize // 2}")
    return dtypes.name_of(little.dtype), base64.b64encode(little.data).decode("ascii")


def json_numbers(array: Array) -> list[Any]:
    """The elements in C order as JSON values."""
    flat = array.reshape(-1)
    if flat.dtype.kind == "c":
        return [list(map(json_number, (each.real, each.imag))) for each in flat.tolist()]
    if flat.dtype.kind in "OUST":
        return list(map(str, flat.tolist()))
    if flat.dtype.kind == "V":
        flat = _widened(flat)
    listed: list[Any] = flat.tolist()
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return list(map(json_number, listed))
    return listed


def _widened(array: Array) -> Array:
    """Convert integers narrower than a byte, and floats that only `ml_dtypes` has, to NumPy's own types."""
    return array.astype(np.int8 if dtypes.name_of(array.dtype) in dtypes.INTEGERS else np.float32)


MAX_ELEMENTS = 1 << 18
"""Elements of the largest sample."""

MAX_REDUCED = 1 << 25
"""Elements up to which a tensor is reduced block by block: about 50 ms.  A larger one is sampled."""

MAX_BINS = 1 << 12


class AxisRange(msgspec.Struct, frozen=True, kw_only=True):
    """A Python slice of one axis."""

    start: int | None = None
    stop: int | None = None
    step: int | None = None


class Against(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The tensor to compare with: an `expression`, or the same tensor on a `branch`.

    ``"other"`` is the branch that this one comes from, else the latest other one.
    """

    expression: str | None = None
    branch: int | Literal["other"] | None = None


class SliceArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`name` or `expression` selects a tensor.

    `index` (text, `0, :, 2:5`) or `axes` (`[{start, stop, step}]`) selects a part of it.  `maxElements` is at
    most 262144.  `known` is the `version` in an earlier response.
    """

    name: str | None = None
    expression: str | None = None
    frame_id: int | None = None
    index: str | None = None
    axes: list[AxisRange] | None = None
    max_elements: int = 1 << 14
    reduce: Reduction | Literal["stride"] = "stride"
    encoding: Literal["json", "base64"] = "json"
    against: Against | None = None
    part: Literal["there", "difference"] = "difference"
    known: int | None = None


class SliceBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`data` holds the elements in C order; `shape` is that of `data`; `stride` is the extent of a cell.

    With `reduce` "stride" a cell is every `stride[i]`-th element along axis i; otherwise a block of that many
    elements, reduced (see `nncdbg.stats.blocks`), with `flags` (base64, a byte for each block) and the counts
    of non-finite elements.  `source_shape` is the shape after indexing and before the reduction.

    Numbers are JSON numbers, and ``"NaN"``, ``"Infinity"``, ``"-Infinity"``; complex ones pairs of them.  If
    base64 was requested, `elements` names the type of the bytes, see `packed`.

    `version` identifies the tensor's current content, if it can be identified.  If it equals `known`, the
    answer is `unchanged`, and contains only the type.
    """

    type: str
    dtype: str
    source_shape: list[int]
    stride: list[int]
    shape: list[int]
    reduce: str
    data: list[Any] | str
    elements: str | msgspec.UnsetType = msgspec.UNSET
    flags: str | msgspec.UnsetType = msgspec.UNSET
    nan: int | msgspec.UnsetType = msgspec.UNSET
    posinf: int | msgspec.UnsetType = msgspec.UNSET
    neginf: int | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET
    unchanged: bool | msgspec.UnsetType = msgspec.UNSET


class CompareArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    expression: str
    against: Against
    frame_id: int | None = None


class HistogramArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`bins` is at most 4096.  `range` is `[low, high]`."""

    expression: str
    bins: int = 32
    range: tuple[float, float] | None = None
    frame_id: int | None = None


class NonfiniteArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`start` is a position in C order."""

    expression: str
    start: int = 0
    frame_id: int | None = None


class StatisticsArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    expressions: list[str]
    frame_id: int | None = None


@request("nncdbg/slice", when=LIVE, values=True, arguments=SliceArguments, reads=True, title="Reading values")
def slice_(session: Session, arguments: SliceArguments) -> SliceBody:
    """Return a sample: `data` contains every `stride[i]`-th element along axis i, in C order.

    If `version` equals `known`, the response is `unchanged` and has no data.
    """
    if not 1 <= arguments.max_elements <= MAX_ELEMENTS:
        raise UsageError(
            f"a sample cannot have {arguments.max_elements} elements",
            hint=f"request 1 to {MAX_ELEMENTS} elements",
        )
    scope = values_from(session, arguments.frame_id)
    whole = _named(scope, arguments)
    version = session.program.shown.answers.version(whole) if arguments.against is None else None
    if version is None:
        return _slice(session, arguments, scope, whole)
    if version == arguments.known:
        return _unchanged(whole, version)
    return msgspec.structs.replace(_slice(session, arguments, scope, whole), version=version)


def _unchanged(whole: Array, version: int) -> SliceBody:
    dtype, shape = dtypes.name_of(whole.dtype), list(whole.shape)
    return SliceBody(
        type=type_text(whole),
        dtype=dtype,
        source_shape=shape,
        stride=[],
        shape=[],
        reduce="stride",
        data="",
        version=version,
        unchanged=True,
    )


def _slice(session: Session, arguments: SliceArguments, scope: Values, whole: Any) -> SliceBody:
    minus = None
    if arguments.against is not None:
        there = _against(session, scope, _text(arguments), arguments.against)
        if arguments.part == "there":
            whole = there
        else:
            check_same_shape(whole, there)
            minus = _part(scope, there, arguments)
    chosen = _part(scope, whole, arguments)
    steps = sampling(chosen.shape, arguments.max_elements)
    if arguments.reduce != "stride" and max(steps, default=1) > 1 and count_of(chosen) <= MAX_REDUCED:
        reduction = arguments.reduce

        def reduced() -> SliceBody:
            here = np.asarray(scope.to_host(chosen))
            other = None if minus is None else np.asarray(scope.to_host(minus))
            blocks = reduce_blocks(here, steps, reduction, session.queue.check_cancelled, other)
            return _body(arguments, whole, chosen, steps, blocks.data, blocks)

        if arguments.against is not None:
            return reduced()
        question = msgspec.json.encode(msgspec.structs.replace(arguments, frame_id=None, known=None))
        return session.program.shown.answers.once(whole, question, reduced)
    cells = _sample(scope, chosen, steps)
    if minus is not None:
        cells = difference(cells, _sample(scope, minus, steps))
    return _body(arguments, whole, chosen, steps, cells)


def _sample(scope: Values, chosen: Any, steps: list[int]) -> Array:
    return np.asarray(scope.to_host(chosen[tuple(slice(None, None, step) for step in steps)]))


def _body(
    arguments: SliceArguments,
    whole: Any,
    chosen: Any,
    steps: list[int],
    cells: Array,
    blocks: BlockReduction | None = None,
) -> SliceBody:
    more: dict[str, Any] = {}
    if blocks is not None:
        more = {"nan": blocks.nan, "posinf": blocks.posinf, "neginf": blocks.neginf}
        more["flags"] = packed(blocks.flags)[1]
    data: list[Any] | str
    if arguments.encoding == "base64":
        more["elements"], data = packed(cells)
    else:
        data = json_numbers(cells)
    return SliceBody(
        type=type_text(whole),
        dtype=dtypes.name_of(chosen.dtype),
        source_shape=list(chosen.shape),
        stride=steps,
        shape=list(cells.shape),
        reduce="stride" if blocks is None else arguments.reduce,
        data=data,
        **more,
    )


def _text(arguments: SliceArguments) -> str:
    """The tensor as an expression."""
    if arguments.name is not None:
        return spelled(arguments.name.removeprefix("%"))
    assert arguments.expression is not None
    return arguments.expression


def _against(session: Session, scope: Values, text: str, against: Against) -> Array:
    """The tensor to compare `text` with.  Raises UsageError if it is not one, or on no branch."""
    if against.expression is not None and against.branch is None:
        return tensor_of(scope, against.expression)
    if against.branch is None or against.expression is not None:
        raise UsageError(
            "a comparison needs exactly one other tensor", hint="use either `expression` or `branch`"
        )
    target = session.program.target
    name, index = split_target(text, scope.has, scope.names, scope.aliases)
    if index is not None:
        raise UsageError(
            f"cannot compare `{text}` across branches: `{text}` is only part of a value",
            hint="compare the whole value",
        )
    branch = other_branch(target) if against.branch == "other" else known_branch(target, against.branch)
    return _tensor(target.on_branch(name, branch), text)


def _named(scope: Values, arguments: SliceArguments) -> Any:
    """The tensor, on its device."""
    if (arguments.name is None) == (arguments.expression is None):
        raise UsageError("a slice needs exactly one tensor", hint="use either `name` or `expression`")
    if arguments.name is not None:
        return _named_tensor(scope, resolve_name(arguments.name, scope.has, scope.names), arguments.name)
    assert arguments.expression is not None
    return tensor_on_device(scope, arguments.expression)


def tensor_on_device(scope: Values, text: str) -> Any:
    """The tensor result of an expression; a tensor given by name stays on its device."""
    expression = parse(text, scope.has, scope.names)
    if isinstance(expression.root, Name):
        return _named_tensor(scope, expression.root.name, text)
    return _tensor(evaluate(expression, scope), text)


def _named_tensor(scope: Values, name: str, text: str) -> Any:
    content = scope.content(name)
    return content if is_tensor(content) else _tensor(content, text)


def tensor_of(scope: Values, text: str) -> Array:
    """The tensor result of an expression; UsageError for another result."""
    return _tensor(evaluate(scope.read(text), scope), text)


def _tensor(content: Any, text: str) -> Array:
    if not isinstance(content, (np.ndarray, np.generic, bool, int, float)):
        raise UsageError(f"`{text}` is not a tensor", hint="use a tensor or an element of a sequence")
    return np.asarray(content)


def _part(scope: Values, whole: Any, arguments: SliceArguments) -> Any:
    index: tuple[Any, ...] = ()
    if arguments.index is not None and arguments.axes is not None:
        raise UsageError("`index` and `axes` cannot be combined", hint="use only one of `index` and `axes`")
    if arguments.index is not None:
        index = evaluate_index(parse_index(arguments.index, scope.has, scope.names), scope)
    elif arguments.axes is not None:
        index = tuple(slice(axis.start, axis.stop, axis.step) for axis in arguments.axes)
    try:
        # One element of a tensor of strings is a str, not an array.
        return np.asarray(whole[index], whole.dtype) if isinstance(whole, np.ndarray) else whole[index]
    except (IndexError, ValueError, TypeError) as error:
        raise UsageError(f"the index is invalid for {type_text(whole)}: {error}") from None


@request(
    "nncdbg/histogram",
    when=LIVE,
    values=True,
    arguments=HistogramArguments,
    reads=True,
    title="Computing a histogram",
)
def histogram(session: Session, arguments: HistogramArguments) -> dict[str, Any]:
    """Count the elements by bins: `type`, `edges`, `counts`, `nan`, `posinf`, `neginf`, `seconds`."""
    if not 1 <= arguments.bins <= MAX_BINS:
        raise UsageError(
            f"a histogram cannot have {arguments.bins} bins", hint=f"request 1 to {MAX_BINS} bins"
        )
    scope = values_from(session, arguments.frame_id)
    content = tensor_on_device(scope, arguments.expression)
    start = time.perf_counter()

    def counted() -> Histogram:
        array = np.asarray(scope.to_host(content))
        return histogram_by_pieces(array, arguments.bins, arguments.range, session.queue.check_cancelled)

    question = "histogram", arguments.bins, arguments.range
    found = session.program.shown.answers.once(content, question, counted)
    return {"type": type_text(content), **found.as_dict(), "seconds": time.perf_counter() - start}


@request(
    "nncdbg/stats",
    when=LIVE,
    values=True,
    arguments=StatisticsArguments,
    reads=True,
    title="Computing statistics",
)
def statistics(session: Session, arguments: StatisticsArguments) -> dict[str, Any]:
    """Return `statistics`: the `expression`, `type`, `stats` and `seconds` of each expression.

    If an expression fails, its item has `expression` and `error`.
    """
    scope = values_from(session, arguments.frame_id)
    return {"statistics": [_statistics(session, scope, text) for text in arguments.expressions]}


def _statistics(session: Session, scope: Values, text: str) -> dict[str, Any]:
    session.queue.check_cancelled()
    start = time.perf_counter()
    try:
        content = tensor_on_device(scope, text)
    except NncdbgError as error:
        return {"expression": text, "error": error.message}
    shown = session.program.shown
    summary = shown.noted(content) or Glance(shown, False, session.queue.check_cancelled).full_summary(
        content
    )
    seconds = time.perf_counter() - start
    return {"expression": text, "type": type_text(content), "stats": summary.as_dict(), "seconds": seconds}


@request("nncdbg/nonfinite", when=LIVE, values=True, arguments=NonfiniteArguments, reads=True)
def nonfinite(session: Session, arguments: NonfiniteArguments) -> dict[str, Any]:
    """Return the `index` of the next NaN or infinity, starting at `start`.

    At the end of the tensor, the search continues at 0.  `index` is null if all elements are finite.
    """
    scope = values_from(session, arguments.frame_id)
    array = np.asarray(scope.to_host(tensor_on_device(scope, arguments.expression)))
    if not 0 <= arguments.start < max(1, array.size):
        raise UsageError(
            f"no element at position {arguments.start}: {type_text(array)} has {array.size} elements",
            hint="count from 0",
        )
    found = next_nonfinite(array, arguments.start, session.queue.check_cancelled)
    if found is None:
        return {"index": None}
    return {"index": [int(each) for each in np.unravel_index(found, array.shape)]}


@request("nncdbg/compare", when=LIVE, values=True, arguments=CompareArguments, reads=True)
def comparison(session: Session, arguments: CompareArguments) -> dict[str, Any]:
    """Compare a tensor with another one over all elements.

    Fields: `types`, `max_abs`, `max_rel`, `mean_abs`, `cosine`, `max_ulp`, `mismatched`, `nan_mismatch`,
    `inf_mismatch`, `count`, `worst`, `seconds`.
    """
    scope = values_from(session, arguments.frame_id)
    start = time.perf_counter()
    here = tensor_of(scope, arguments.expression)
    there = _against(session, scope, arguments.expression, arguments.against)
    found = compare(here, there, session.queue.check_cancelled).as_dict()
    return {"types": [type_text(here), type_text(there)], **found, "seconds": time.perf_counter() - start}
