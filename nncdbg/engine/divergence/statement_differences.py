"""What differs between two paired statements: attributes, constant operands, and narrower float types.

In a narrower type, the cause is an overflow, underflow, rounding or accumulation. `diff` with sides of two
float types and `bisect` use these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from nncdbg.comparison.report import Difference, ValueSite
from nncdbg.comparison.tolerance import Tolerance, excess
from nncdbg.dtypes import FROM_ONNX, NUMPY, largest, name_of
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.diagnosis.explaining import cause_of
from nncdbg.engine.diagnosis.widened import is_finite_in
from nncdbg.engine.divergence.casting import WIDTHS, cast_array
from nncdbg.engine.divergence.recomputation import terms_of
from nncdbg.engine.divergence.sides import Fixed, ProgramInput, Written
from nncdbg.engine.ops.causes import Birth
from nncdbg.engine.ops.schema import Schema, complete, schema, version_of, versions_of
from nncdbg.expression import spelled
from nncdbg.ir.records import Inline
from nncdbg.stats import summarize
from nncdbg.text.counting import counted

SiteOf = Callable[[], ValueSite]

_TYPES = frozenset({"to", "dtype", "output_datatype"})
"""Attributes that hold the number of an element type."""

_SHOWN = 60
"""Maximum length of a formatted attribute value, in characters."""


def declared_differences(
    a: Written, b: Written, site_a: SiteOf, site_b: SiteOf, same_form: Callable[[], bool] = lambda: False
) -> list[Difference]:
    """Return the attributes (with defaults) and constants that differ between two statements of one op.

    `same_form` tests whether the integers of both sides, such as the axes -1 and 2, have the same effect.
    """
    attributes, parameters = _attributes(a, b), _parameters(a, b)
    integers = [_is_integral(x) and _is_integral(y) for _, x, y in (*attributes, *parameters)]
    if integers and all(integers) and same_form():
        return []
    found = []
    for name, x, y in attributes:
        text = f"{a.node.op} {name} {_shown(name, x)} / {_shown(name, y)}{_changed_default(name, a, b)}"
        found.append(Difference(site_a(), site_b(), "attribute", name, text))
    for name, x, y in parameters:
        words, factor = _apart(x, y)
        text = f"{name} of {a.node.op} differs: {words}"
        found.append(Difference(site_a(), site_b(), "parameter", name, text, factor))
    return found


def kernel_difference(a: Written, b: Written) -> str:
    """Return the verdict on two statements of one op without other differences.

    It names the attributes that the newer version of the op has, and the older one has not.
    """
    text = f"{a.node.op} computes a different result from the same operands"
    old, new = _by_version(a, b)
    before, after = (schema(each.node.op, version_of(each.node.op, each.code.opsets)) for each in (old, new))
    if before is None or after is None:
        return text
    values = attributes_of(new)
    for name in values.keys() & after.attributes.keys() - before.attributes.keys():
        way = "here" if name in new.node.attributes else "by default"
        since = _first(new, partial(_has_attribute, name))
        text += f"; opset {since} added {name}, {_shown(name, values[name])} {way}"
    return text


def _has_attribute(name: str, signature: Schema) -> bool:
    return name in signature.attributes


def _changed_default(name: str, a: Written, b: Written) -> str:
    """Return in which opset the default of an attribute changed, if both statements have the default."""
    if name in a.node.attributes or name in b.node.attributes:
        return ""
    old, new = _by_version(a, b)
    before, after = (attributes_of(each)[name] for each in (old, new))
    since = _first(new, lambda each: each.attributes.get(name) == after)
    return (
        f": the default of {name} changed from {_shown(name, before)} to {_shown(name, after)} "
        f"in opset {since}"
    )


def _by_version(a: Written, b: Written) -> tuple[Written, Written]:
    """Return two statements of one op in the order of their versions."""
    old, new = sorted((a, b), key=lambda each: version_of(each.node.op, each.code.opsets))
    return old, new


def _first(written: Written, holds: Callable[[Schema], bool]) -> int:
    """Return the first version of an op from which on its signature has held up to that of a statement."""
    op, newest = written.node.op, version_of(written.node.op, written.code.opsets)
    versions = [each for each in versions_of(op) if each <= newest]
    signatures = [(each, schema(op, each)) for each in reversed(versions)]
    return [each for each, _ in takewhile(lambda pair: pair[1] is not None and holds(pair[1]), signatures)][
        -1
    ]


def _is_integral(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_integral, value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iub"
    return value is None or isinstance(value, int)


def attributes_of(written: Written) -> Mapping[str, Any]:
    """Return a statement's attributes with the op schema's defaults; None for one without a default."""
    node = written.node
    return complete(node.op, version_of(node.op, written.code.opsets), node.attributes)


def _attributes(a: Written, b: Written) -> list[tuple[str, Any, Any]]:
    if a.operands is None or b.operands is None:
        return []
    mine, other = attributes_of(a), attributes_of(b)
    versions = {version_of(each.node.op, each.code.opsets) for each in (a, b)}
    # Some attributes became operands in later opsets, so an attribute of only one version is ignored.
    names = mine.keys() & other.keys() if len(versions) > 1 else mine.keys() | other.keys()
    pairs = [(name, mine.get(name), other.get(name)) for name in sorted(names)]
    return [(name, x, y) for name, x, y in pairs if _comparable(x) != _comparable(y)]


def _comparable(value: Any) -> Any:
    if isinstance(value, Inline):
        return (str(value.array.dtype), value.array.shape, value.array.tobytes())
    if isinstance(value, (list, tuple)):
        return tuple(map(_comparable, value))
    return np.float32(value) if isinstance(value, float) else value


def shown_statement(written: Written) -> str:
    """Return an op with its attributes and constant numbers: `Softmax axis=1`, `Mul with 1.001`."""
    node = written.node
    words = [f"{name}={_shown(name, value)}" for name, value in node.attributes.items()]
    contents = [content for _, content in _constants(written) if content.size == 1]
    numbers = [f"{content.item():.6g}" for content in contents if content.dtype.kind in "fiu"]
    words += [f"with {', '.join(numbers)}"] if numbers else []
    text = " ".join([node.op, *words])
    return text if len(text) <= _SHOWN else node.op


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "not given"
    if name in _TYPES and value in FROM_ONNX:
        return FROM_ONNX[value]
    if isinstance(value, Inline):
        value = value.array.tolist()
    if isinstance(value, (list, tuple)):
        value = list(value)
    # Floats of ONNX have 32 bits.
    text = str(np.float32(value) if isinstance(value, float) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def constant_operand(code: Code, pc: int, index: int) -> Any:
    """Return the array of an operand that is a constant of the statement's own block, otherwise None."""
    if index >= len(code.operands[pc]):
        return None
    content = code.template[code.operands[pc][index]]
    return content if isinstance(content, np.ndarray) else None


def operand_name(written: Written, index: int) -> str:
    """Return `%name`, or the op schema's operand name for an unnamed constant."""
    operands = written.node.inputs
    if index < len(operands) and isinstance(operands[index], str):
        return spelled(str(operands[index]))
    known = schema(written.node.op, version_of(written.node.op, written.code.opsets))
    return known.inputs[index].name if known is not None and index < len(known.inputs) else f"operand {index}"


def _parameters(a: Written, b: Written) -> list[tuple[str, Any, Any]]:
    if a.operands is None or b.operands is None:
        return []
    pairs = zip(_constants(a), _constants(b), strict=False)
    return [(operand_name(a, i), x, y) for (i, x), (_, y) in pairs if _apart(x, y)[0]]


def _constants(written: Written) -> list[tuple[int, Any]]:
    """Return (index, array) of each constant operand in order: `Add(%x, 1)` pairs with `Add(1, %x)`."""
    contents = [
        (index, constant_operand(written.code, written.pc, index))
        for index in range(len(written.node.inputs))
    ]
    return [(index, content) for index, content in contents if content is not None]


def _apart(x: Any, y: Any) -> tuple[str, float | None]:
    """Return how two constants differ; an empty text if they are equal."""
    if x is y:
        return "", None
    if x.shape != y.shape:
        return f"shape {list(x.shape)} / {list(y.shape)}", None
    if x.dtype.hasobject or y.dtype.hasobject:
        return ("other text", None) if bool(np.any(x != y)) else ("", None)
    found = excess(x, y, Tolerance())
    if found.where is None:
        return "", None
    if x.size == 1:
        words = f"{x.item():.6g} / {y.item():.6g}"
    elif x.size <= 8 and x.dtype.kind in "iub":
        words = f"{x.tolist()} / {y.tolist()}"
    else:
        with np.errstate(all="ignore"):
            most = float(np.max(np.abs(x.astype(np.complex128) - y.astype(np.complex128))))
        count = int(np.count_nonzero(x != y))
        words = f"max {most:.3g}, {count} of {counted(x.size, 'element')}"
    if x.dtype != y.dtype:
        words += f", {name_of(x.dtype)} / {name_of(y.dtype)}"
    return words, found.factor


NarrowCause: TypeAlias = "tuple[str, str]"
"""The kind (overflow, not a number, underflow, cast, accumulation or rounding), and the evidence."""

Run: TypeAlias = "Callable[[Sequence[Any]], bool]"
"""Tests whether A's statement gives other results than it did, on other operands."""


def float_name(content: Any) -> str:
    """Return the float type of a tensor that casts of programs change; empty for other values."""
    name = name_of(content.dtype) if isinstance(content, np.ndarray) and not content.dtype.hasobject else ""
    return name if name in WIDTHS else ""


def is_narrower(name: str, other: str) -> bool:
    """Return whether a float type has fewer numbers than another one."""
    if not name or not other or name == other:
        return False
    one, two = (ml_dtypes.finfo(NUMPY[each]) for each in (name, other))
    return bool(one.bits < two.bits or (one.bits == two.bits and one.nmant < two.nmant))


def overflow_of(name: str, content: Any, dtype: str) -> str:
    """Return `%W reaches 1e5, and the largest f16 is 65504`; empty if the finite elements fit."""
    if not float_name(content) or not content.size:
        return ""
    found = summarize(content)
    reach = max((abs(edge) for edge in (found.min, found.max) if edge is not None), default=0.0)
    most = largest(dtype)
    with np.errstate(all="ignore"):
        fits = reach <= most or np.isfinite(np.asarray(reach, np.float64).astype(NUMPY[dtype]))
    return "" if fits else f"{name} reaches {reach:.6g}, and the largest {dtype} is {most:.6g}"


def cause_of_types(
    one: Written, two: Written, operands: tuple[Sequence[Any], Sequence[Any]], found: Any, run: Run
) -> NarrowCause | None:
    """Return why two sides with different float types have different results in a statement; None if unknown.

    `operands` are those of A and of B, on the host; `found` are the results of A's statement on B's operands,
    None if they are unknown or equal to B's; `run` executes A's statement.
    """
    a_is_wide = any(is_narrower(float_name(y), float_name(x)) for x, y in zip(*operands, strict=True))
    names = [operand_words(one.node.inputs, index) for index in range(len(operands[0]))]
    wide, narrow = operands if a_is_wide else operands[::-1]
    fixed = [isinstance(source, (Fixed, ProgramInput)) for source in one.sources] or [False] * len(names)
    cast = [
        index for index, pair in enumerate(zip(wide, narrow, strict=True)) if fixed[index] and _is_cast(*pair)
    ]
    for index in cast:
        words = overflow_of(names[index], wide[index], float_name(narrow[index]))
        if words:
            return "overflow", words
    for index, (mine, theirs) in enumerate(zip(found or (), two.contents, strict=False)):
        pair = (mine, theirs) if a_is_wide else (theirs, mine)
        cause = _cause_of_result(one, index, narrow, *pair)
        if cause is not None:
            return cause
    for index in cast if a_is_wide else ():
        changed = run([narrow[i] if i == index else each for i, each in enumerate(wide)])
        if changed:
            return _of_rounding("cast", names[index], wide[index], narrow[index])
    return None


def _is_cast(wide: Any, narrow: Any) -> bool:
    """Return whether `narrow` is `wide`, cast to a narrower type, and has other elements."""
    dtype = float_name(narrow)
    if not is_narrower(dtype, float_name(wide)) or wide.shape != narrow.shape:
        return False
    same = np.array_equal(
        cast_array(wide, dtype).astype(np.float64), narrow.astype(np.float64), equal_nan=True
    )
    return bool(same and np.any(wide.astype(np.float64) != narrow.astype(np.float64)))


def _cause_of_result(
    one: Written, index: int, operands: Sequence[Any], wide: Any, narrow: Any
) -> NarrowCause | None:
    """Return why a statement gives `narrow` where the wide type gives `wide`, from the same operands."""
    dtype = float_name(narrow)
    if not is_narrower(dtype, float_name(wide)) or wide.shape != narrow.shape:
        return None
    name = spelled(one.names[index])
    lost = np.isfinite(wide) & ~np.isfinite(narrow)
    if lost.any():
        return cause_of_overflow(one.code, one.pc, name, operands, np.where(lost, wide, 0), narrow, index)
    terms = terms_of(one.code, one.pc, operands, [narrow])
    if not _explains(terms, wide, narrow):
        return None
    if terms == 1:
        return _of_rounding("rounding", name, wide, narrow)
    return _of_rounding("accumulation", f"the sum of {terms} numbers, {name},", wide, narrow)


def cause_of_overflow(
    code: Code, pc: int, name: str, operands: Sequence[Any], wide: Any, narrow: Any, index: int
) -> NarrowCause:
    """Return why a result is not finite in a narrow type, computed from narrow operands."""
    words = overflow_of(name, wide, float_name(narrow))
    return ("overflow", words) if words else cause_of_bad(code, pc, operands, narrow, index)


def bad_on_one_side(x: Any, y: Any) -> Any:
    """Return the elements of `y` that are NaN or Inf where `x` has a number; empty for other values."""
    if not (float_name(x) and float_name(y)) or x.shape != y.shape:
        return np.zeros(0, bool)
    return is_finite_in(x) & ~is_finite_in(y)


def cause_of_bad(code: Code, pc: int, operands: Sequence[Any], result: Any, index: int) -> NarrowCause:
    """Return why a result with NaN or Inf, computed from these operands, is not finite."""
    node, kind = code.nodes[pc], "nan" if np.isnan(result).any() else "inf"
    opset = version_of(node.op, code.opsets)
    names = [code.names[slot] for slot in code.operands[pc]]
    attributes = complete(node.op, opset, node.attributes)
    cause = cause_of(Birth(kind, node.op, opset, attributes, names, operands, result, index))
    return "overflow" if kind == "inf" else "not a number", f"{cause.name}: {cause.evidence}"


def _explains(terms: int, wide: Any, narrow: Any) -> bool:
    """Return whether rounding each of `terms` additions explains the error; a larger one is the kernel's."""
    known = ml_dtypes.finfo(narrow.dtype)
    exact, found = wide.astype(np.float64), narrow.astype(np.float64)
    finite = np.isfinite(exact) & np.isfinite(found)
    error = np.abs(exact - found).max(initial=0.0, where=finite)
    size = np.abs(exact).max(initial=0.0, where=finite)
    return bool(error <= terms * float(known.eps) * size + float(known.smallest_normal))


def _of_rounding(kind: str, name: str, wide: Any, narrow: Any) -> NarrowCause:
    """Return the elements that underflow to 0 in the narrow type; without one, the largest relative error."""
    dtype = float_name(narrow)
    exact, found = wide.astype(np.float64), narrow.astype(np.float64)
    lost = int(np.count_nonzero((exact != 0) & (found == 0)))
    if lost:
        least = float(ml_dtypes.finfo(NUMPY[dtype]).smallest_subnormal)
        count = f"{lost} of {counted(exact.size, 'element')}"
        return "underflow", f"{count} of {name} underflow to 0; the smallest {dtype} is {least:.3g}"
    with np.errstate(all="ignore"):
        relative = np.abs(exact - found) / np.maximum(np.abs(exact), np.abs(found))
    most = float(np.max(relative, initial=0.0, where=np.isfinite(relative)))
    return kind, f"{name} has a relative error of up to {most:.2g} in {dtype}"


def operand_words(names: Sequence[Any], index: int) -> str:
    """Return `%name` of an operand, or its number for an unnamed one."""
    known = names[index] if index < len(names) else None
    return spelled(known) if isinstance(known, str) and known else f"operand {index + 1}"
