"""The JSON of a `.pt2` file as the records of torch's schema.

Each value has the type that the schema declares, and each text is checked by what torch does with it: names
become Python code in `torch.fx`, targets become functions, sizes become `sympy` expressions.  Fields that
nncdbg does not use, such as guards and descriptions of trees, are dropped: torch would run or import them.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache
from typing import Any

import msgspec
import torch
from torch._export.serde import schema
from torch._export.serde.serialize import _SYM_OPS
from torch._export.serde.union import _Union

from nncdbg.engine.errors import LoadError
from nncdbg.engine.frontends.exported.size_expressions import SizeExpressions
from nncdbg.engine.ops.aten.arrays import function_name
from nncdbg.engine.ops.aten.internals import OpOverload
from nncdbg.engine.ops.aten.signatures import signature_of

_METADATA = ("stack_trace", "nn_module_stack")
"""The metadata of a node that nncdbg reads."""

_MODULE_PATH = re.compile(r"[\w.\-/:+ ]*")
_RANGE = re.compile(r"(?!.*\d{7})[\w *+\-/(),]+")
"""A size; torch counts up to the number of a symbol."""

_BRANCHES = ("cond", "while_loop", "scan", "map_impl", "wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Higher-order operators that nncdbg converts, or that decomposition removes."""


def program_record(data: bytes, member: str) -> Any:
    """Return a `schema.ExportedProgram`.  Raises LoadError for other data."""
    return _decoded(schema.ExportedProgram, data, member)


def payload_records(data: bytes, member: str) -> dict[str, Any]:
    """Return the `schema.PayloadMeta` of each weight or constant.  Raises LoadError for other data."""
    payloads: dict[str, Any] = _decoded(schema.PayloadConfig, data, member).config
    return payloads


def _decoded(kind: type, data: bytes, member: str) -> Any:
    try:
        return _Records().read(kind, msgspec.json.decode(data), "")
    except RecursionError:
        reason, place = "it is nested too deeply", ""
    except msgspec.DecodeError as error:
        reason, place = str(error), ""
    except _Unfit as error:
        reason, place = error.reason, error.place
    where = f" at {place.removeprefix('.')[-120:]}" if place else ""
    raise LoadError(
        f"the member {member} is not an exported program of PyTorch{where}: {reason}",
        hint="save the program again with torch.export.save",
    )


class _Unfit(Exception):
    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place, self.reason = place, reason


class _Records:
    """Reads the records of one file."""

    def __init__(self) -> None:
        self._sizes = SizeExpressions()

    def read(self, kind: Any, data: Any, place: str, field: tuple[str, str] = ("", "")) -> Any:
        """Return the data as a value of the type `kind` of the field `(record, name)`.  Raises _Unfit."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return None if data is None else self.read(arguments[0], data, place, field)
        if origin is list:
            _check(isinstance(data, list), place, "a list is expected")
            return [self.read(arguments[0], each, f"{place}[{at}]", field) for at, each in enumerate(data)]
        if origin is dict:
            _check(isinstance(data, dict), place, "an object is expected")
            if field == ("Node", "metadata"):
                data = {key: data[key] for key in _METADATA if key in data}
            return {
                self._text(key, place, (field[0], f"{field[1]} key")): self.read(
                    arguments[1], each, f"{place}.{key}", field
                )
                for key, each in data.items()
            }
        if kind is str:
            _check(isinstance(data, str), place, "a text is expected")
            return self._text(data, place, field)
        if kind is float:
            return self._float(data, place)
        if issubclass(kind, IntEnum):
            _check(type(data) is int and data in kind._value2member_map_, place, "unknown number")
            return kind(data)
        if not hasattr(kind, "__dataclass_fields__"):
            _check(type(data) is kind, place, f"a value of type {kind.__name__} is expected")
            return data
        _check(isinstance(data, dict), place, "an object is expected")
        return self._union(kind, data, place) if issubclass(kind, _Union) else self._record(kind, data, place)

    def _union(self, kind: Any, data: dict[str, Any], place: str) -> Any:
        hints = _hints(kind)
        name = next(iter(data), "")
        _check(len(data) == 1 and name in hints, place, f"unknown kind {name[:40]!r} of {kind.__name__}")
        return kind.create(
            **{name: self.read(hints[name], data[name], f"{place}.{name}", (kind.__name__, name))}
        )

    def _record(self, kind: Any, data: dict[str, Any], place: str) -> Any:
        hints, record = _hints(kind), kind.__name__
        given = {**data, **{name: value() for (owner, name), value in _DROPPED.items() if owner == record}}
        missing = [name for name in _required(kind) if name not in given]
        _check(not missing, place, f"the field {', '.join(missing)} is missing")
        return kind(
            **{
                name: self.read(hint, given[name], f"{place}.{name}", (record, name))
                for name, hint in hints.items()
                if name in given
            }
        )

    def _float(self, data: Any, place: str) -> float:
        if isinstance(data, str) and data in ("Infinity", "-Infinity", "NaN"):
            return float(data)
        _check(type(data) in (int, float) and math.isfinite(data), place, "a number is expected")
        return float(data)

    def _text(self, text: str, place: str, field: tuple[str, str]) -> Any:
        if field == ("SymExpr", "expr_str"):
            try:
                return self._sizes.parse(text)
            except ValueError as error:
                raise _Unfit(place, str(error)) from None
        rule, what = _RULES.get(field, _NAME)
        _check(rule(text), place, f"{text[:60]!r} is not {what}")
        return text


def _check(fits: bool, place: str, reason: str) -> None:
    if not fits:
        raise _Unfit(place, reason)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, globalns=vars(schema))


@cache
def _required(kind: Any) -> tuple[str, ...]:
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return tuple(each.name for each in fields if each.default is missing and each.default_factory is missing)


@cache
def _is_target(text: str) -> bool:
    """Return whether a text names an operator that nncdbg may call, resolved as torch resolves it."""
    library, *path = text.split(".")
    if text.startswith("torch.ops.higher_order."):
        return path[2:] in ([name] for name in _BRANCHES)
    if text.startswith("torch.ops."):
        if len(path) != 4 or not all(part.isidentifier() for part in path):
            return False
        try:
            found = getattr(getattr(getattr(torch.ops, path[1]), path[2]), path[3])
        except (AttributeError, RuntimeError):
            return False
        return isinstance(found, OpOverload) and not signature_of(found).unrepeatable
    found = getattr(_LIBRARIES.get(library), path[0], None) if len(path) == 1 else None
    return found is operator.getitem or (
        callable(found) and (found in _SYM_OPS or function_name(found) is not None)
    )


_LIBRARIES: Mapping[str, Any] = {"_operator": operator, "math": math, "torch": torch}

_Rule = tuple[Callable[[str], Any], str]
_NAME: _Rule = (str.isidentifier, "a name")
_ANY: _Rule = (lambda text: True, "")
_PATH: _Rule = (_MODULE_PATH.fullmatch, "the name of a module or tensor")
_TARGET: _Rule = (_is_target, "an operator that nncdbg can open; import the library that registers it")
_OPTIONAL_NAME: _Rule = (lambda text: not text or text.isidentifier(), "a name")
_RULES: Mapping[tuple[str, str], _Rule] = {
    ("Node", "target"): _TARGET,
    ("Argument", "as_operator"): _TARGET,
    ("Argument", "as_string"): _ANY,
    ("Argument", "as_strings"): _ANY,
    ("Argument", "as_string_to_argument key"): _ANY,
    ("ConstantValue", "as_string"): _ANY,
    ("Node", "metadata"): _ANY,
    ("ExportedProgram", "torch_version"): _ANY,
    ("ExportedProgram", "verifiers"): _OPTIONAL_NAME,
    ("NamedArgument", "name"): _OPTIONAL_NAME,
    ("InputToParameterSpec", "parameter_name"): _PATH,
    ("InputToBufferSpec", "buffer_name"): _PATH,
    ("InputToTensorConstantSpec", "tensor_constant_name"): _PATH,
    ("BufferMutationSpec", "buffer_name"): _PATH,
    ("ParameterMutationSpec", "parameter_name"): _PATH,
    ("GradientToParameterSpec", "parameter_name"): _PATH,
    ("PayloadConfig", "config key"): _PATH,
    ("ExportedProgram", "range_constraints key"): (_RANGE.fullmatch, "a size"),
}
"""Record and field to the rule for its text; a text without a rule must be a Python name."""

_DROPPED: Mapping[tuple[str, str], Callable[[], Any]] = {
    ("GraphModule", "module_call_graph"): list,
    ("GraphModule", "metadata"): dict,
    ("GraphModule", "treespec_namedtuple_fields"): dict,
    ("ExportedProgram", "guards_code"): list,
}
"""Fields that are read as empty."""
