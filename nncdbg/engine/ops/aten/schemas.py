"""The schema provider for PyTorch's operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nncdbg.engine.ops.schema import REQUIRED, Parameter, Schema
from nncdbg.text.torch_names import NUMBER, OPERAND, OWN, READ, RECORDED, VIEW, WRITE, installed

if TYPE_CHECKING:
    from nncdbg.engine.ops.aten.signatures import Argument, Signature

_ATTRIBUTE_KINDS = {"int": "INT", "float": "FLOAT", "str": "STRING", "bool": "INT", "List[str]": "STRINGS"}
"""Types of arguments whose values are checked; others accept several forms."""

_LAYOUT = {"size": REQUIRED, "stride": REQUIRED, "offset": 0}


class TorchSchemas:
    """The schemas of the installed torch; none without torch."""

    @property
    def source(self) -> str:
        from importlib.metadata import version

        return f"torch {version('torch')}" if installed() else "torch"

    def schema(self, name: str, version: int) -> Schema | None:
        if name in OWN:
            return _OWN_SCHEMAS[name]
        if not installed():
            return None
        from nncdbg.engine.ops.aten.signatures import signature

        found = signature(name)
        return None if found is None else _schema(found)

    def versions(self, name: str) -> tuple[int, ...]:
        return (1,) if self.schema(name, 1) is not None else ()

    def names(self, domain: str) -> Iterable[str]:
        if domain == "torch":
            return OWN
        if not installed():
            return ()
        from nncdbg.engine.ops.aten.signatures import operator_names

        return operator_names(domain)

    def newest(self, domain: str) -> int | None:
        return None


def _schema(found: Signature) -> Schema:
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
        doc=_documentation(found),
        operand_mark=OPERAND,
    )


def _add_attributes(argument: Argument, attributes: dict[str, Any], kinds: dict[str, str]) -> None:
    from nncdbg.engine.ops.aten.signatures import COUNT, ArgumentKind

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


def _operands(found: Signature) -> tuple[Parameter, ...]:
    """Return the formal operands; all from the first list on are one variadic operand."""
    from nncdbg.engine.ops.aten.signatures import ArgumentKind

    formal: list[Parameter] = []
    arguments = list(found.tensor_arguments)
    for index, argument in enumerate(arguments):
        if argument.kind is ArgumentKind.TENSORS:
            names = ", ".join(each.name for each in arguments[index:])
            return (*formal, Parameter(names, "Tensor", variadic=True))
        # A number may be given as an attribute instead.
        formal.append(Parameter(argument.name, "Tensor", optional=True))
    if found.random:
        formal.append(Parameter("random_state", "tensor(uint8)", optional=True))
    return tuple(formal)


def _results(found: Signature) -> tuple[Parameter, ...]:
    """Return the formal results: fresh ones, then the new values of what the operator writes to."""
    from nncdbg.engine.ops.aten.signatures import ArgumentKind

    several = any(type.startswith("List[") for type in found.results)
    written = [each for each in found.arguments if each.written]
    if several or found.random or written or any(each.kind is ArgumentKind.TENSORS for each in written):
        return (Parameter("results", "Tensor", variadic=True),)
    if len(found.results) == 1:
        return (Parameter("result", "Tensor"),)
    return tuple(Parameter(f"result{index}", "Tensor", True) for index in range(len(found.results)))


def _documentation(found: Signature) -> str:
    from nncdbg.engine.ops.aten.signatures import documentation

    return documentation(found.overload)


_OWN_SCHEMAS = {
    VIEW: Schema(
        VIEW,
        (Parameter("base", "Tensor"),),
        (Parameter("view", "Tensor"),),
        {**_LAYOUT, "dtype": None},
        doc="A view of the memory of `base`: sizes and strides in elements of `dtype`, by default that of "
        "`base`, from the element `offset` on.",
    ),
    WRITE: Schema(
        WRITE,
        (Parameter("base", "Tensor"), Parameter("part", "Tensor")),
        (Parameter("result", "Tensor"),),
        {**_LAYOUT, "dtype": None},
        doc="A copy of `base` with `part` written to the view that these sizes and strides describe.",
    ),
    READ: Schema(
        READ,
        (Parameter("tensor", "Tensor"),),
        (Parameter("number", "Tensor"),),
        {"value": REQUIRED},
        doc="The number that Python read from a tensor of one element, as `item()` does.  `value` is the "
        "recorded number; with another one Python might have taken another path.",
    ),
    NUMBER: Schema(
        NUMBER,
        (Parameter("numbers", "Tensor", variadic=True),),
        (Parameter("result", "Tensor"),),
        {"function": REQUIRED},
        doc="A function of numbers, as Python computes it: of the module `operator`, such as `floordiv` and "
        "`ge`, of `math`, or `sym_max` and others of torch.  The result is an i64, f64 or bool.",
    ),
    RECORDED: Schema(
        RECORDED,
        (Parameter("result", "T"), Parameter("sent", "Tensor", variadic=True)),
        (Parameter("result", "T"),),
        {"op": REQUIRED, "reason": None},
        doc="The recorded result of an operator that is not run again, such as a collective.  `sent` is what "
        "this rank gave to a collective.",
    ),
}
