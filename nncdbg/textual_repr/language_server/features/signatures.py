"""Signatures of callees: ops from their schemas, graphs from their headers."""

from __future__ import annotations

from collections.abc import Mapping

from nncdbg.engine.inference.types import common_type
from nncdbg.engine.ops.schema import Formal, OpSignature, op_signature, version_of
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.text.types import print_type
from nncdbg.ir.records import TensorType, Type
from nncdbg.textual_repr.language_server.analysis.analysis import Analysis


def signature(analysis: Analysis, name: str) -> OpSignature | None:
    """Return the signature of an op, or of ``@graph``, in a text; None if it is unknown."""
    if name.startswith("@"):
        return _graph_signature(analysis, name[1:])
    return op_signature(name, version_of(name, analysis.opsets))


def _graph_signature(analysis: Analysis, name: str) -> OpSignature | None:
    chunk = analysis.graphs.get(name)
    if chunk is None or chunk.signature is None:
        return None
    formals = [
        tuple(
            Formal(f"%{name_text(v.name)}", print_type(v.type) if v.type else "", type=v.type) for v in values
        )
        for values in (chunk.signature.inputs, chunk.signature.outputs)
    ]
    comment = "\n".join(chunk.block.comment) if chunk.block is not None else ""
    return OpSignature(f"@{name}", formals[0], formals[1], (), comment)


def fits(formal: Formal, given: Type | None, bound: Mapping[str, str]) -> bool | None:
    """Return whether a value of this type matches a formal; None if this is unknown.

    `bound` maps type variables to the element types determined by other operands.
    """
    if given is None:
        return None
    if formal.type is not None:
        return common_type(formal.type, given) is not None
    if not isinstance(given, TensorType):
        return formal.dtypes == frozenset() or None
    if formal.dtypes is not None and given.dtype not in formal.dtypes:
        return False
    wanted = bound.get(formal.kind)
    if wanted is not None:
        return given.dtype == wanted
    return True if formal.dtypes is not None else None
