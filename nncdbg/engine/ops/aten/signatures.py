"""Signatures of PyTorch's operators, from its dispatcher, and the encoding of their arguments in text.

Operands are the tensors among the arguments, in the order of the schema; the tensors of a list follow
one another, and the attribute ``n_NAME`` holds their number.  All other arguments are attributes, and so is
a number that is given for a tensor:

    %y = aten.add.Tensor(%a, %b, alpha=2)
    %z = aten.mul.Tensor(%y, other=0.5)
    %y = aten.cat.default(%a, %b, %c, n_tensors=3, dim=1)
    %e = aten.empty.memory_format(size=[2,3], dtype="f32", device="cpu")

A number that a statement computes is an operand after the tensors, and "?" in the attribute:

    %n = aten.sym_size.int(%x, dim=0)
    %y = aten.reshape.default(%x, %n, size=["?",2,-1])

An operator that draws random numbers takes the state of its generator as the last operand and gives the
next state as its last result, if it has the attribute ``random``, the generator's device:

    %y, %random.1 = aten.bernoulli.p(%x, %random, p=0.5, random="cpu")
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import torch

from nncdbg.dtypes import register_dtypes
from nncdbg.engine.ops.aten.internals import (
    OpOverload,
    all_operator_names,
    is_higher_order,
    random_tag,
    reshaping_tag,
    schema_of,
)
from nncdbg.engine.ops.aten.operators import allocates_only, facts_of
from nncdbg.engine.ops.schema import REQUIRED, Formal, Schema
from nncdbg.errors import GraphError
from nncdbg.text.torch_names import DOMAINS, OPERAND, OWN, text_name

RANDOM = "random"
"""The attribute of a random statement: the device of the generator with the state in the last operand."""

COUNT = "n_"
"""Prefix of the attribute with the number of tensors of a list."""

DTYPES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2: "f8e5m2",
    torch.float8_e5m2fnuz: "f8e5m2fnuz",
    torch.float8_e8m0fnu: "f8e8m0fnu",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
"""The dtypes of tensors that a program can hold."""

TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}

# A tensor in a slot has torch's dtype.
register_dtypes(DTYPES)

HOST_VIEWS: dict[torch.dtype, tuple[torch.dtype, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: (torch.uint8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: (torch.uint8, ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: (torch.uint8, ml_dtypes.float8_e8m0fnu),
}
"""For dtypes that `Tensor.numpy` does not convert: a torch dtype of the same size, and NumPy's dtype."""

FROM_HOST: dict[Any, tuple[Any, torch.dtype]] = {
    np.dtype(numpy_dtype): (np.dtype(str(same_size).removeprefix("torch.")), dtype)
    for dtype, (same_size, numpy_dtype) in HOST_VIEWS.items()
}
"""NumPy's dtype to the NumPy dtype to view it as, and torch's dtype."""


class ArgumentKind(Enum):
    """What an argument accepts."""

    TENSOR = auto()
    TENSORS = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Argument:
    """One formal argument."""

    name: str
    type: str
    """The type in TorchScript: ``Tensor``, ``List[int]``, ``Optional[ScalarType]``."""
    kind: ArgumentKind
    required: bool
    default: Any
    keyword_only: bool
    written: bool
    """True if the operator writes to its tensors."""

    @property
    def optional(self) -> bool:
        return self.type.startswith("Optional[")

    def is_default(self, value: Any) -> bool:
        return type(value) is type(self.default) and bool(value == self.default)


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of one overload."""

    name: str
    overload: Any
    """The `torch._ops.OpOverload`."""
    arguments: tuple[Argument, ...]
    results: tuple[str, ...]
    """The types of the results in TorchScript."""
    writes: tuple[str, ...]
    """The arguments that the operator writes to."""
    in_place: bool
    """True if the only result is the only argument that it writes to."""
    moves_only: bool
    """True if all results hold only elements of one argument, unchanged, most often in the same memory."""
    written: tuple[int, ...]
    """The positions of these arguments."""
    plain_write: bool
    """True if the operator writes to its first argument only, and keeps its sizes and strides."""
    random: bool
    """True if the operator draws numbers from a generator."""
    views: bool
    """True if a result is a view of an argument."""
    allocates: bool
    """True if the operator allocates memory without writing it."""
    unrepeatable: str = ""
    """Why a program cannot run the operator again, such as a process group among the arguments."""

    @property
    def tensor_arguments(self) -> tuple[Argument, ...]:
        return tuple(each for each in self.arguments if each.kind is not ArgumentKind.OTHER)


def name_of(overload: Any) -> str:
    """Return the name of an overload in program text."""
    return text_name(*str(overload).split(".", 2))


@cache
def signature(name: str) -> Signature | None:
    """Return the signature of an operator by its name in program text; None for an unknown one."""
    if name in OWN:
        return None
    parts = name.split(".")
    if parts[0] == "torch":
        parts = parts[1:]
    if len(parts) != 3:
        return None
    namespace, operator, overload = parts
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    except (AttributeError, RuntimeError):
        return None
    return signature_of(found) if isinstance(found, OpOverload) else None


def overloads(name: str) -> frozenset[Any]:
    """Return all overloads of an operator of PyTorch, by the name in program text of one of them."""
    namespace, operator, *_ = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), operator)
    return frozenset(getattr(packet, each) for each in packet.overloads())


@cache
def signature_of(overload: Any) -> Signature:
    """Return the signature of an overload; that of an operator of higher order has no arguments."""
    if is_higher_order(overload):
        name = text_name(overload.namespace, overload.name(), "")
        return Signature(name, overload, (), ("Tensor",), (), False, False, (), False, False, False, False)
    schema, name = schema_of(overload), name_of(overload)
    arguments = tuple(_argument(formal, name) for formal in schema.arguments)
    aliases = [result.alias_info for result in schema.returns]
    written = tuple(position for position, each in enumerate(arguments) if each.written)
    return Signature(
        name,
        overload,
        arguments,
        tuple(str(result.real_type) for result in schema.returns),
        tuple(each.name for each in arguments if each.written),
        len(written) == 1 and [each is not None and each.is_write for each in aliases] == [True],
        _moves_only(overload, arguments),
        written,
        written == (0,) and arguments[0].kind is ArgumentKind.TENSOR and reshaping_tag not in overload.tags,
        random_tag in overload.tags,
        any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns),
        allocates_only(name),
        _unrepeatable(overload, arguments),
    )


def _moves_only(overload: Any, arguments: Sequence[Argument]) -> bool:
    schema = schema_of(overload)
    stated = facts_of(name_of(overload)).moves_only if overload.namespace == "aten" else None
    if stated is not None:
        return stated
    aliases = [result.alias_info for result in schema.returns]
    return (
        bool(aliases)
        and all(each is not None and not each.is_write for each in aliases)
        and not any("ScalarType" in argument.type for argument in arguments)
    )


def _unrepeatable(overload: Any, arguments: Sequence[Argument]) -> str:
    if overload.namespace in _COMMUNICATION:
        return EXCHANGES
    if any(each.name == "filename" for each in arguments):
        return "it opens a file"
    foreign = next((each.name for each in arguments if _FOREIGN.match(each.type)), "")
    return f"its argument {foreign} is no tensor, number or text" if foreign else ""


EXCHANGES = "it exchanges data with other processes"
"""Why a collective cannot run again."""

_COMMUNICATION = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem")
"""Libraries of operators that exchange data with other processes."""


def is_collective(operator: str) -> bool:
    """Return whether an operator, named as in program text, exchanges data with other processes."""
    found = signature(operator)
    return found is not None and found.unrepeatable == EXCHANGES


_FOREIGN = re.compile(r"(List\[|Optional\[)*(__torch__|Any|Storage|Stream)")
"""Types of arguments that are neither tensors nor numbers, text or properties of tensors."""


def _written_undeclared(operator: str) -> tuple[str, ...]:
    """Return the names of the arguments that an operator writes to although its schema does not say so."""
    facts = facts_of(operator)
    if not operator.startswith("torch.c10d."):
        return facts.written if operator.startswith("aten.") and operator.endswith(".default") else ()
    return () if facts.only_sends else _RECEIVING


_RECEIVING = ("tensors", "output_tensors", "output_tensor", "output", "outputs", "output_lists")
"""The names of the argument that collectives of c10d write to."""


def _argument(formal: Any, operator: str) -> Argument:
    type = str(formal.real_type)
    plain = type.removeprefix("Optional[").removesuffix("]") if type.startswith("Optional[") else type
    kind = ArgumentKind.OTHER
    if plain == "Tensor":
        kind = ArgumentKind.TENSOR
    elif plain.startswith("List[") and "Tensor" in plain:
        kind = ArgumentKind.TENSORS
    alias = formal.alias_info
    return Argument(
        formal.name,
        type,
        kind,
        not formal.has_default_value(),
        formal.default_value if formal.has_default_value() else None,
        formal.kwarg_only,
        (alias is not None and alias.is_write) or formal.name in _written_undeclared(operator),
    )


class NotEncodable(Exception):
    """An argument that program text cannot hold, such as a process group."""


def encode(value: Any) -> Any:
    """Return an argument as an attribute.  Raises NotEncodable."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return DTYPES.get(value, str(value))
    if isinstance(value, (torch.memory_format, torch.layout)):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(encode, value))
    if value is None:
        return _NONE
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise NotEncodable("a symbolic size")
    raise NotEncodable(type(value).__name__)


_NONE = "none"
"""An argument that is None although its default is not."""


def decode(value: Any, argument: Argument) -> Any:
    """Return an attribute as the argument of the operator.

    Raises GraphError for a text that names no dtype, device, layout or memory format.
    """
    type = argument.type.removeprefix("Optional[")
    if argument.kind is ArgumentKind.TENSOR:
        return complex(value) if isinstance(value, str) else value
    if isinstance(value, str) and not type.startswith(("str", "List[str")):
        return None if value == _NONE and argument.optional else _decode_text(value, type, argument.name)
    if isinstance(value, tuple):
        complexes = type.startswith(("List[complex", "List[number"))
        return [complex(each) if complexes and isinstance(each, str) else each for each in value]
    return value


def _decode_text(value: str, type: str, name: str) -> Any:
    try:
        if type.startswith("ScalarType"):
            return TORCH_DTYPES[value] if value in TORCH_DTYPES else _constant(value, torch.dtype)
        if type.startswith("Layout"):
            return _constant(value, torch.layout)
        if type.startswith("MemoryFormat"):
            return _constant(value, torch.memory_format)
        if type.startswith("Device"):
            return torch.device(value)
        if type.startswith(("number", "complex")):
            return complex(value)
    except (ValueError, RuntimeError) as error:
        raise GraphError(f'{name}="{value}" is not a {type.rstrip("]")}: {error}', attribute=name) from None
    return value


def _constant(value: str, kind: type) -> Any:
    found = getattr(torch, value.removeprefix("torch."), None)
    if not isinstance(found, kind):
        raise ValueError(f"torch has no {kind.__name__} of that name")
    return found


def flat_results(results: Any) -> list[Any]:
    """Return all results of an operator in order: those of a list follow one another."""
    if not isinstance(results, (list, tuple)):
        return [results]
    return [each for result in results for each in flat_results(result)]


def written_tensors(found: Signature, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that a call writes to, in the order of the signature."""
    written: list[Any] = []
    for position in found.written:
        name = found.arguments[position].name
        value = args[position] if position < len(args) else keywords.get(name)
        written += [each for each in flat_results(value) if each is not None]
    return written


@cache
def operator_names(domain: str) -> tuple[str, ...]:
    """Return the names of all operators of a library, such as ``aten``, in program text; sorted."""
    prefix = f"{domain}::"
    names = (name.partition(prefix) for name in all_operator_names())
    found = {rest for before, mark, rest in names if mark and not before}
    return tuple(sorted(f"{domain}.{_with_overload(each)}" for each in found))


def registered_names() -> set[str]:
    """Return the names of all operators that are registered now, in program text."""
    split = (name.partition("::") for name in all_operator_names())
    return {
        ".".join((*(() if library in DOMAINS else ("torch",)), library, _with_overload(rest)))
        for library, _, rest in split
    }


def _with_overload(name: str) -> str:
    return name if "." in name else f"{name}.default"


def documentation(overload: Any) -> str:
    """Return torch's documentation of the function with the operator's name, and the operator's schema."""
    schema = str(schema_of(overload))
    name = schema_of(overload).name.partition("::")[2].strip("_")
    for place in (torch, torch.nn.functional, torch.special, torch.linalg, torch.Tensor):
        found = getattr(place, name, None)
        if found is not None and (text := inspect.getdoc(found)):
            return f"{schema}\n\n{text}"
    return schema


_ATTRIBUTE_KINDS = {"int": "INT", "float": "FLOAT", "str": "STRING", "bool": "INT", "List[str]": "STRINGS"}
"""Types of arguments whose values are checked; others accept several forms."""


def schema(name: str) -> Schema | None:
    """Return the schema of an operator by its name in program text; None for an unknown one."""
    found = signature(name)
    if found is None:
        return None
    attributes: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for argument in found.arguments:
        _add_attributes(argument, attributes, kinds)
    if found.random:
        attributes["random"] = None
        kinds["random"] = "STRING"
    return Schema(
        name=found.name,
        inputs=_operands(found),
        outputs=_results(found),
        attributes=attributes,
        kinds=kinds,
        doc=documentation(found.overload),
        operand_mark=OPERAND,
    )


def _add_attributes(argument: Argument, attributes: dict[str, Any], kinds: dict[str, str]) -> None:
    if argument.kind is ArgumentKind.TENSOR:
        attributes[argument.name] = None
        return
    if argument.kind is ArgumentKind.TENSORS:
        attributes[COUNT + argument.name] = None
        kinds[COUNT + argument.name] = "INT"
        return
    # Defaults stay torch's own: the kernel is called without the argument.
    attributes[argument.name] = REQUIRED if argument.required and not argument.optional else None
    kinds[argument.name] = _ATTRIBUTE_KINDS.get(argument.type, "")


def _operands(found: Signature) -> tuple[Formal, ...]:
    """Return the formal operands; all from the first list on are one variadic operand."""
    formal: list[Formal] = []
    arguments = list(found.tensor_arguments)
    for index, argument in enumerate(arguments):
        if argument.kind is ArgumentKind.TENSORS:
            names = ", ".join(each.name for each in arguments[index:])
            return (*formal, Formal(names, "Tensor", variadic=True))
        # A number may be given as an attribute instead.
        formal.append(Formal(argument.name, "Tensor", optional=True))
    if found.random:
        formal.append(Formal("random_state", "tensor(uint8)", optional=True))
    return tuple(formal)


def _results(found: Signature) -> tuple[Formal, ...]:
    """Return the formal results: fresh ones, then the new values of what the operator writes to."""
    several = any(type.startswith("List[") for type in found.results)
    written = [each for each in found.arguments if each.written]
    if several or found.random or written or any(each.kind is ArgumentKind.TENSORS for each in written):
        return (Formal("results", "Tensor", variadic=True),)
    if len(found.results) == 1:
        return (Formal("result", "Tensor"),)
    return tuple(Formal(f"result{index}", "Tensor", True) for index in range(len(found.results)))
