"""The support for every op, from the declarations and ONNX's schemas, as `nncdbg ops` prints it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from nncdbg import extensions
from nncdbg.engine.differentiation.differentiability import differentiability
from nncdbg.engine.ops import declared, lookup, names
from nncdbg.engine.ops.schema import (
    REQUIRED,
    Formal,
    Schema,
    is_flat,
    label,
    listed_domains,
    newest_opset,
    op_signature,
    schema,
    schema_names,
    split,
    version_of,
)
from nncdbg.errors import NncdbgError, UsageError


@dataclass(frozen=True, slots=True)
class OpSupport:
    """Support for an op. `since` are the declared opset versions; ONNX's newest if none is declared."""

    name: str
    since: tuple[int, ...]
    kernel: bool
    in_place: bool
    """The kernel writes into a given buffer."""
    formula: bool
    """The op has a micro program of nncdbg."""
    function: bool
    """ONNX defines the op by a function body."""
    gradient: bool
    """The op has a gradient rule; without one, its formula or function body is differentiated."""
    random: bool
    reference: bool
    """The op runs through `onnx.reference`."""
    block: bool
    """The op contains graphs, and is printed as `if`, `while` or a call."""
    torch: bool = False
    """The op is one of PyTorch's, and runs with `--backend torch`."""

    def support(self) -> list[str]:
        marks = {
            "kernel": self.kernel,
            "in place": self.in_place,
            "formula": self.formula,
            "function": self.function,
            "gradient": self.gradient,
            "random": self.random,
            "reference": self.reference,
            "block": self.block,
            "--backend torch": self.torch,
        }
        return [word for word, there in marks.items() if there] or ["not runnable"]


@dataclass(frozen=True, slots=True)
class OpDescription:
    """The details of an op; `document` are those of its schema as JSON has them."""

    support: OpSupport
    signature: str
    gradient: str
    attributes: tuple[str, ...]
    doc: str
    document: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self.support), **self.document}


def supported_ops(name: str | None, failed: Callable[[NncdbgError], None]) -> list[OpSupport] | OpDescription:
    """Return the support for all ops, or for those of a domain of PyTorch; for another name, that op.

    `failed` gets the error of each extension that cannot be loaded.  Raises UsageError for an unknown op, and
    for a domain without torch.
    """
    if name is None:
        return [_declared(each) for each in _all_names(failed)]
    if is_flat(name):
        return [_of_torch(each) for each in _torch_names(name)]
    return _described(name, failed)


def _described(name: str, failed: Callable[[NncdbgError], None]) -> OpDescription:
    """Return the details of an op.  Raises UsageError for an unknown name, with a similar one."""
    domain = split(name)[0]
    flat = is_flat(domain)
    listed = _torch_names(domain) if flat else _all_names(failed)
    version = version_of(name, {})
    if name not in listed and schema(name, version) is None:
        near = difflib.get_close_matches(name, listed, 1)
        raise UsageError(
            f'there is no op "{name}"',
            hint=f"did you mean {near[0]}?"
            if near
            else f"list all ops with `nncdbg ops{' ' + domain * flat}`",
        )
    entry = _of_torch(name) if flat else _declared(name)
    signature = op_signature(name, version)
    return OpDescription(
        entry,
        f"{name}(...)" if signature is None else label(replace(signature, attributes=())),
        differentiability(name).description,
        () if signature is None else tuple(attribute.text() for attribute in signature.attributes),
        "" if signature is None else signature.doc or "",
        _fields(schema(name, version)),
    )


def _all_names(failed: Callable[[NncdbgError], None]) -> list[str]:
    """Return every op that is declared here or in a known domain, sorted."""
    for domain in extensions.names(extensions.OPS):
        try:
            extensions.find(extensions.OPS, domain)
        except NncdbgError as error:
            failed(error)
    return sorted({*names(), *schema_names(listed_domains())})


def _torch_names(domain: str) -> list[str]:
    """Return the names of PyTorch's operators in a domain.  Raises UsageError without torch."""
    from nncdbg.text.torch_names import installed

    if not installed():
        raise UsageError(
            f"the ops of {domain} need the package torch, which is not installed",
            hint="pip install nncdbg[torch]",
        )
    return sorted(schema_names([domain]))


def _of_torch(name: str) -> OpSupport:
    """Return the support for an operator of PyTorch."""
    from nncdbg.engine.ops.aten.signatures import RANDOM

    found = schema(name, 1)
    random = found is not None and RANDOM in found.attributes
    return OpSupport(name, (1,), False, False, False, False, False, random, False, False, torch=True)


def _declared(name: str) -> OpSupport:
    """Return the support for the newest version of an op."""
    versions = declared(name)
    newest = versions[-1] if versions else None
    theirs = schema(name, newest_opset())
    return OpSupport(
        name=name,
        since=tuple(op.since for op in versions) or ((theirs.since,) if theirs else ()),
        kernel=newest is not None and (newest.kernel is not None or newest.ufunc is not None),
        in_place=newest is not None and newest.accepts_out,
        formula=newest is not None and newest.formula is not None,
        function=theirs is not None and theirs.function,
        gradient=newest is not None and newest.vjp is not None,
        random=newest is not None and newest.random,
        reference=newest is None and _by_reference(name),
        block=theirs is not None
        and "." not in name
        and any(kind.startswith("GRAPH") for kind in theirs.kinds.values()),
    )


def _by_reference(name: str) -> bool:
    found = lookup(name, version_of(name, {}))
    return found is not None and found.reference


def _fields(signature: Schema | None) -> dict[str, Any]:
    if signature is None:
        return {"inputs": None, "outputs": None, "attributes": None, "doc": None}
    return {
        "inputs": [_parameter_fields(parameter) for parameter in signature.inputs],
        "outputs": [_parameter_fields(parameter) for parameter in signature.outputs],
        "attributes": {
            name: {"required": default is REQUIRED, "default": _json_default(default)}
            for name, default in signature.attributes.items()
        },
        "doc": signature.doc,
    }


def _parameter_fields(parameter: Formal) -> dict[str, Any]:
    names = ("optional", "variadic", "tensor", "only_float")
    fields = {"name": parameter.name, "type": parameter.kind}
    return {**fields, **{name: getattr(parameter, name) for name in names}}


def _json_default(default: Any) -> Any:
    if default is REQUIRED or default is None:
        return None
    if isinstance(default, tuple):
        return list(default)
    return default if isinstance(default, (bool, int, float, str)) else str(default)
