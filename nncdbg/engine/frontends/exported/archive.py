"""The archive of an exported program: a zip file of JSON, raw tensors and restricted pickles.

No byte of the file reaches an unrestricted unpickler, `eval` or `sympify`: torch's loader falls back to all
three.  Compiled code in the archive is never extracted.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import math
import operator
import os
import re
import types
import typing
import zipfile
import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import sympy  # type: ignore[import-untyped]
import torch
from torch._export.serde import schema
from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE, _SYM_OPS, ExportedProgramDeserializer
from torch._export.serde.union import _Union
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions

from nncdbg.engine.ops.aten.arrays import function_name
from nncdbg.engine.ops.aten.internals import OpOverload
from nncdbg.engine.ops.aten.signatures import signature_of
from nncdbg.errors import LoadError

# -- sizes -----------------------------------------------------------------------------------------

_OF_TORCH = (
    *("FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt"),
    *("CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv", "TruncToInt"),
    *("IsNonOverlappingAndDenseIndicator", "TruncToFloat", "RoundToInt", "RoundDecimal", "ToFloat"),
    "Identity",
)
_OF_SYMPY = (
    *("Integer", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Abs", "And", "Or", "Not", "Eq", "Ne", "Lt"),
    *("Le", "Gt", "Ge", "Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan"),
    *("GreaterThan", "floor", "ceiling"),
)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(sympy, name) for name in _OF_SYMPY},
    **{name: getattr(functions, name) for name in _OF_TORCH if hasattr(functions, name)},
}
_CONSTANTS: Mapping[str, Any] = {"true": sympy.true, "false": sympy.false, "oo": sympy.oo}
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: functions.FloorDiv,
    ast.Mod: functions.PythonMod,
    ast.Pow: sympy.Pow,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: sympy.Eq,
    ast.NotEq: sympy.Ne,
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
}
_ASSUMPTIONS = frozenset(
    ("integer", "positive", "negative", "nonnegative", "nonpositive", "zero", "nonzero", "real", "finite")
)

_LONGEST, _DEEPEST, _LARGEST, _HIGHEST_POWER = 50_000, 100, 2**64, 64


class SizeExpressions:
    """Parses the symbolic sizes of one file; equal names are one symbol."""

    def __init__(self) -> None:
        self._parsed: dict[str, Any] = {}
        self._symbols: dict[str, Any] = {}

    def parse(self, text: str) -> Any:
        """Return the `sympy.Basic` that `text` describes.

        Raises ValueError for text outside of the grammar, and for expressions that are too long or nested
        too deeply.
        """
        if text not in self._parsed:
            if len(text) > _LONGEST:
                raise ValueError(f"a size of {len(text)} characters; the limit is {_LONGEST}")
            try:
                tree = ast.parse(text, mode="eval")
            except (SyntaxError, RecursionError, MemoryError):
                raise ValueError("the size is not an expression") from None
            self._parsed[text] = self._value(tree.body, 0)
        return self._parsed[text]

    def _value(self, node: ast.expr, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"the size is nested more than {_DEEPEST} levels deep")
        match node:
            case ast.Constant(value=bool() | int() | float() as number) if abs(number) < _LARGEST:
                return sympy.sympify(number)
            case ast.Name(id=name):
                return _CONSTANTS[name] if name in _CONSTANTS else self._symbol(name, {"integer": True})
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, depth + 1)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._applied(_BINARY[type(op)], [left, right], depth)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                return self._applied(_COMPARISONS[type(op)], [left, right], depth)
            case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name)]):
                return self._symbol(name, dict(map(_assumption, node.keywords)))
            case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str() as digits)]):
                if not math.isfinite(float(digits)):
                    raise ValueError("a size is not finite")
                return sympy.Float(float(digits))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
                return self._applied(_FUNCTIONS[name], arguments, depth)
        raise ValueError(f"a size may not contain {ast.unparse(node)[:40]!r}")

    def _applied(self, function: Callable[..., Any], arguments: list[ast.expr], depth: int) -> Any:
        values = [self._value(each, depth + 1) for each in arguments]
        if function in _POWERS and not (values[1:] and abs(values[-1]) <= _HIGHEST_POWER):
            raise ValueError(f"a size has a power above {_HIGHEST_POWER}")
        try:
            result = function(*values)
        except (TypeError, ArithmeticError, AttributeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"the size cannot be computed: {error}") from None
        if not isinstance(result, sympy.Basic) or (result.is_Number and abs(result) >= _LARGEST):
            raise ValueError("a size is too large")
        return result

    def _symbol(self, name: str, assumptions: dict[str, bool]) -> Any:
        if not name.isidentifier():
            raise ValueError(f"{name[:40]!r} is not the name of a size")
        return self._symbols.setdefault(name, sympy.Symbol(name, **assumptions))


_POWERS = (sympy.Pow, functions.PowByNatural, functions.FloatPow, functions.LShift)


def _assumption(given: ast.keyword) -> tuple[str, bool]:
    match given:
        case ast.keyword(arg=str() as name, value=ast.Constant(value=bool() as value)) if (
            name in _ASSUMPTIONS
        ):
            return name, value
    raise ValueError(f"a size may not contain {ast.unparse(given)[:40]!r}")


# -- records ---------------------------------------------------------------------------------------
# The JSON of a `.pt2` file as the records of torch's schema.
#
# Each value has the type that the schema declares, and each text is checked by what torch does with it: names
# become Python code in `torch.fx`, targets become functions, sizes become `sympy` expressions.  Fields that
# nncdbg does not use, such as guards and descriptions of trees, are dropped: torch would run or import them.

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
        if not issubclass(kind, _Union):
            return self._record(kind, data, place)
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


# -- archive ---------------------------------------------------------------------------------------

_OLD = "serialized_exported_program.json"
"""The program in the layout of torch 2.7 and before."""

_VERSIONS = (b"0",)
"""Versions of the layout of the archive."""

_LARGEST_VIEW = 2**24
"""A weight may have more elements than its bytes, by strides of 0, up to this number."""


def read(path: Path) -> tuple[Any, tuple[str, ...]]:
    """Return the `torch.export.ExportedProgram` in a `.pt2` file, and notes about what was not read.

    Raises LoadError if the file is not such an archive, or if reading a member would run code.
    """
    try:
        with zipfile.ZipFile(path) as file:
            archive = _Archive(file, path)
            return archive.old_program() if _OLD in archive.members else archive.program()
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError) as error:
        raise LoadError(
            f"{path} is not an archive of torch.export.save: {error}",
            hint="save one with torch.export.save(program, path)",
        ) from None


class _Archive:
    def __init__(self, file: zipfile.ZipFile, path: Path) -> None:
        self._file, self._path = file, path
        names = file.namelist()
        self._root = "" if _OLD in names or not names else f"{names[0].partition('/')[0]}/"
        self.members = {name.removeprefix(self._root) for name in names}
        size = os.path.getsize(path)
        for each in file.infolist():
            # Stored members are not larger than the file: none expands to fill the memory.
            if each.compress_type != zipfile.ZIP_STORED or each.file_size > size:
                self._refuse(each.filename, "it is compressed; torch.export.save stores members as they are")

    def program(self) -> tuple[Any, tuple[str, ...]]:
        """Return the program in the layout of torch 2.8 and later."""
        if "archive_format" not in self.members or self._bytes("archive_format") != b"pt2":
            raise LoadError(
                f"{self._path} is not an archive of torch.export.save: there is no member archive_format",
                hint="save one with torch.export.save(program, path)",
            )
        version = self._bytes("archive_version")
        if version not in _VERSIONS:
            self._refuse("archive_version", f"the version {version[:20]!r} of the archive is not known")
        name = self._model()
        weights = self._payloads(name, "weights", "weight_")
        constants = self._payloads(name, "constants", "tensor_")
        member = f"models/{name}.json"
        record = program_record(self._bytes(member), member)
        inputs, notes = self._inputs(f"data/sample_inputs/{name}.pt")
        return self._made(record, weights, constants, inputs), notes

    def old_program(self) -> tuple[Any, tuple[str, ...]]:
        """Return the program in the layout of torch 2.7 and before."""
        record = program_record(self._bytes(_OLD), _OLD)
        weights, constants = (self._tensors(f"serialized_{name}.pt") for name in ("state_dict", "constants"))
        inputs, notes = self._inputs("serialized_example_inputs.pt")
        return self._made(record, weights, constants, inputs), notes

    def _model(self) -> str:
        names = [
            each.removeprefix("models/").removesuffix(".json")
            for each in sorted(self.members)
            if each.startswith("models/") and each.endswith(".json")
        ]
        if "model" in names or len(names) == 1:
            return "model" if "model" in names else names[0]
        if names:
            self._refuse(f"models/{names[0]}.json", f"the archive has {len(names)} models, none named model")
        raise LoadError(
            f"{self._path} contains no graph, only compiled code or other files",
            hint="save the program with torch.export.save(program, path)",
        )

    def _made(
        self, record: Any, weights: Mapping[str, Any], constants: Mapping[str, Any], inputs: Any
    ) -> Any:
        """Return the program that torch makes of checked records and of tensors."""
        major, known = record.schema_version.major, schema.SCHEMA_VERSION[0]
        if major != known:
            raise LoadError(
                f"{self._path} has version {major} of torch's schema; "
                f"torch {torch.__version__} reads version {known}",
                hint="save the program again with torch.export.save, with this version of torch",
            )
        signature = record.graph_module.signature
        names = [
            _argument_name(each.value) or f"input{number}"
            for number, each in enumerate(signature.input_specs)
            if each.type in ("user_input", "constant_input")
        ]
        record.graph_module.module_call_graph = [
            schema.ModuleCallEntry("", _flat_call(names, len(signature.output_specs)))
        ]
        return ExportedProgramDeserializer().deserialize(record, dict(weights), dict(constants), inputs)

    # -- tensors -------------------------------------------------------------------------------

    def _payloads(self, model: str, folder: str, prefix: str) -> dict[str, Any]:
        """Return the weights or the constants of a model by name; tensors of one member share its memory."""
        old = f"data/{folder}/{model}.pt"
        if old in self.members:
            return self._tensors(old)
        config = f"data/{folder}/{model}_{folder}_config.json"
        payloads = _decoded(schema.PayloadConfig, self._bytes(config), config).config
        storages: dict[str, torch.Tensor] = {}
        found: dict[str, Any] = {}
        for name, payload in payloads.items():
            member = f"data/{folder}/{payload.path_name}"
            if not payload.path_name.startswith(prefix):
                self._refuse(member, f"{name} is an object of Python or C++, not a tensor")
            if payload.use_pickle:
                found[name] = self._unpickled(member)
            elif payload.tensor_meta is None:
                self._refuse(member, f"the shape of {name} is missing")
            else:
                if member not in storages:
                    storages[member] = _as_tensor(self._bytes(member))
                found[name] = self._view(member, name, storages[member], payload.tensor_meta)
            if payload.is_param:
                learned = found[name].is_floating_point() or found[name].is_complex()
                found[name] = torch.nn.Parameter(found[name], requires_grad=learned)
        return found

    def _view(self, member: str, name: str, storage: torch.Tensor, meta: Any) -> torch.Tensor:
        """Return the tensor of these sizes and strides in the bytes of a member."""
        numbers = [*meta.sizes, *meta.strides, meta.storage_offset]
        dtype = _SERIALIZE_TO_TORCH_DTYPE.get(meta.dtype)
        if dtype is None or any(each.type != "as_int" or each.as_int < 0 for each in numbers):
            self._refuse(member, f"{name} has no constant sizes or no known dtype")
        sizes = [each.as_int for each in meta.sizes]
        elements = math.prod(sizes)
        if elements == 0:
            return torch.empty(sizes, dtype=dtype)
        if elements > max(storage.numel() // dtype.itemsize, _LARGEST_VIEW):
            self._refuse(member, f"{name} has {elements} elements, but only {storage.numel()} bytes")
        strides = [each.as_int for each in meta.strides]
        try:
            return storage.view(dtype).as_strided(sizes, strides, meta.storage_offset.as_int)
        except (RuntimeError, OverflowError):
            self._refuse(member, f"{name} does not fit into its {storage.numel()} bytes")

    def _tensors(self, member: str) -> dict[str, Any]:
        """Return the tensors by name in a member that `torch.save` wrote."""
        found = self._unpickled(member) if self._bytes(member) else {}
        tensors = isinstance(found, dict) and all(isinstance(each, torch.Tensor) for each in found.values())
        if not tensors:
            self._refuse(member, "it contains other objects than tensors")
        return dict(found)

    def _inputs(self, member: str) -> tuple[Any, tuple[str, ...]]:
        """Return the arguments with which the program was exported, in one tuple; None if there are none."""
        if member not in self.members or not self._bytes(member):
            return None, ()
        try:
            leaves = pytree.tree_leaves(self._unpickled(member))
        except LoadError as error:
            return None, (f"the saved inputs are not used: {error.message}",)
        return (tuple(leaves), {}), ()

    def _unpickled(self, member: str) -> Any:
        data = self._bytes(member)
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as inner:
                if any(each.compress_type != zipfile.ZIP_STORED for each in inner.infolist()):
                    self._refuse(member, "it contains compressed data")
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except LoadError:
            raise
        except Exception:  # noqa: BLE001  the unpickler raises many types, and recommends weights_only=False
            self._refuse(
                member, "it contains more than tensors and numbers, and nncdbg runs no code in files"
            )

    def _bytes(self, member: str) -> bytes:
        if member not in self.members:
            raise LoadError(
                f"{self._path} is not complete: the member {member} is missing",
                hint="save the program again with torch.export.save(program, path)",
            )
        return self._file.read(f"{self._root}{member}")

    def _refuse(self, member: str, reason: str) -> NoReturn:
        raise LoadError(
            f"nncdbg does not read the member {member} of {self._path}: {reason}",
            hint="save the program again with torch.export.save(program, path), with tensors as inputs",
        )


def _argument_name(specification: Any) -> str:
    """Return the name of an input of the user; "" if it has none."""
    if isinstance(specification, schema.InputToConstantInputSpec):
        return str(specification.name)
    given = specification.arg.value
    name = getattr(given, "name", None) or getattr(given, "value", None)
    return name if isinstance(name, str) else ""


def _flat_call(names: list[str], results: int) -> Any:
    """Return a call with one argument for each input, and a tuple of results."""
    taken = pytree.tree_flatten((tuple(names), {}))[1]
    given = pytree.tree_flatten(tuple(range(results)))[1]
    specifications = (pytree.treespec_dumps(taken), pytree.treespec_dumps(given))
    return schema.ModuleCallSignature([], [], *specifications, forward_arg_names=names)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
