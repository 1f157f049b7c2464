"""`nncdbg ops`: the support for every op, from the declarations and ONNX's schemas."""

from __future__ import annotations

import difflib
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from nncdbg import extensions
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.escaping import printable
from nncdbg.opening.command_line import ArgumentParser

if TYPE_CHECKING:
    from nncdbg.engine.ops.schema import Parameter, Schema


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


def main(arguments: Sequence[str]) -> int:
    """Print the table of all ops or of a domain, or the details of one op.

    Raises UsageError for an unknown name.
    """
    from nncdbg.engine.ops.schema import is_flat

    options = _options(arguments)
    if options.name is None:
        table = [known(name) for name in all_names()]
    elif is_flat(options.name):
        table = [known_to_torch(name) for name in torch_names(options.name)]
    else:
        _print_one(options.name, as_json=options.json)
        return 0
    if options.json:
        print(json.dumps([asdict(entry) for entry in table]))
        return 0
    width = max(len(entry.name) for entry in table)
    for entry in table:
        versions = ",".join(map(str, entry.since))
        print(f"{entry.name:<{width}}  {versions:<12}  {', '.join(entry.support())}")
    return 0


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser("nncdbg ops", "List all ops with their implementations, or describe one.")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="an op (Conv, aten.add.Tensor), or a domain: aten"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    return parser.parse_args(arguments)


def all_names() -> list[str]:
    """Return every op that is declared here or in a known domain, sorted."""
    from nncdbg.engine.ops import names
    from nncdbg.engine.ops.schema import listed_domains, schema_names

    for domain in extensions.names(extensions.OPS):
        try:
            extensions.find(extensions.OPS, domain)
        except NncdbgError as error:
            print(printable(f"warning: {error}"), file=sys.stderr)
    return sorted({*names(), *schema_names(listed_domains())})


def torch_names(domain: str) -> list[str]:
    """Return the names of PyTorch's operators in a domain.  Raises UsageError without torch."""
    from nncdbg.engine.ops.schema import schema_names
    from nncdbg.text.torch_names import installed

    if not installed():
        raise UsageError(
            f"the ops of {domain} need the package torch, which is not installed",
            hint="pip install nncdbg[torch]",
        )
    return sorted(schema_names([domain]))


def known_to_torch(name: str) -> OpSupport:
    """Return the support for an operator of PyTorch."""
    from nncdbg.engine.ops.aten.signatures import RANDOM
    from nncdbg.engine.ops.schema import schema

    found = schema(name, 1)
    random = found is not None and RANDOM in found.attributes
    return OpSupport(name, (1,), False, False, False, False, False, random, False, False, torch=True)


def known(name: str) -> OpSupport:
    """Return the support for the newest version of an op."""
    from nncdbg.engine.ops import declared

    versions = declared(name)
    newest = versions[-1] if versions else None
    theirs = _schema_of(name)
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
    from nncdbg.engine.ops import lookup
    from nncdbg.engine.ops.schema import version_of

    found = lookup(name, version_of(name, {}))
    return found is not None and found.reference


def _schema_of(name: str) -> Schema | None:
    from nncdbg.engine.ops.schema import newest_opset, schema

    return schema(name, newest_opset())


def _print_one(name: str, *, as_json: bool) -> None:
    from nncdbg.engine.differentiation.differentiability import differentiability
    from nncdbg.engine.ops.schema import is_flat, label, op_signature, schema, split, version_of

    domain = split(name)[0]
    flat = is_flat(domain)
    names = torch_names(domain) if flat else all_names()
    if name not in names and schema(name, version_of(name, {})) is None:
        near = difflib.get_close_matches(name, names, 1)
        raise UsageError(
            f'there is no op "{name}"',
            hint=f"did you mean {near[0]}?"
            if near
            else f"list all ops with `nncdbg ops{' ' + domain * flat}`",
        )
    version = version_of(name, {})
    entry = known_to_torch(name) if flat else known(name)
    if as_json:
        print(json.dumps({**asdict(entry), **_fields(schema(name, version))}))
        return
    found = op_signature(name, version)
    print(label(replace(found, attributes=())) if found is not None else f"{name}(...)")
    print(f"  {', '.join(entry.support())}; since {', '.join(map(str, entry.since))}")
    print(f"  gradient: {differentiability(name).description}")
    if found is None:
        return
    for attribute in found.attributes:
        print(f"  {attribute.text()}")
    if found.doc:
        print(f"\n{found.doc}")


def _fields(signature: Schema | None) -> dict[str, Any]:
    from nncdbg.engine.ops.schema import REQUIRED

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


def _parameter_fields(parameter: Parameter) -> dict[str, Any]:
    names = ("name", "type", "optional", "variadic", "tensor", "only_float")
    return {name: getattr(parameter, name) for name in names}


def _json_default(default: Any) -> Any:
    from nncdbg.engine.ops.schema import REQUIRED

    if default is REQUIRED or default is None:
        return None
    if isinstance(default, tuple):
        return list(default)
    return default if isinstance(default, (bool, int, float, str)) else str(default)
