"""The ops by family.  Importing this package declares all of them, from one explicit list."""

from __future__ import annotations

from nncdbg import extensions
from nncdbg.engine.ops import (  # noqa: F401
    activation,
    cast,
    convolution,
    cotangent,
    creation,
    early,
    elementwise,
    feature_models,
    images,
    indexing,
    matrix,
    normalization,
    pooling,
    recurrent,
    reduce,
    resize,
    sequence,
    shape,
    signal,
    softmax,
    state,
    trees,
    windows,
)
from nncdbg.engine.ops.aten.operators import torch_operator
from nncdbg.engine.ops.aten.schemas import TorchSchemas
from nncdbg.engine.ops.declaration import Op, declared, names
from nncdbg.engine.ops.microsoft import (  # noqa: F401
    attention,
    grouped_attention,
    layers,
    quantized,
    quantized_products,
    tensors,
)
from nncdbg.engine.ops.microsoft import convolution as fused_convolution  # noqa: F401
from nncdbg.engine.ops.onnx_schemas import DOMAINS, MicrosoftSchemas, OnnxSchemas
from nncdbg.engine.ops.optimizers import updates  # noqa: F401
from nncdbg.engine.ops.schema import register_schemas, split
from nncdbg.engine.ops.schema import schema as schema_of
from nncdbg.ir.records import DEFAULT_DOMAIN
from nncdbg.text.torch_names import DOMAINS as TORCH_DOMAINS
from nncdbg.text.torch_names import installed

register_schemas(OnnxSchemas())
register_schemas(OnnxSchemas(), DEFAULT_DOMAIN, "ai.onnx.ml")
register_schemas(MicrosoftSchemas(), DEFAULT_DOMAIN, *DOMAINS)
register_schemas(TorchSchemas(), *TORCH_DOMAINS, flat=True)

__all__ = ["Op", "declared", "lookup", "names"]


def lookup(name: str, version: int) -> Op | None:
    """Return the op in opset `version` of its domain, or None.

    An op without a declaration for that version runs through `onnx.reference`, if available there.
    """
    domain = split(name)[0]
    if domain and not declared(name):
        extensions.find(extensions.OPS, domain)
    found = [entry for entry in declared(name) if entry.since <= version]
    if domain in TORCH_DOMAINS:
        known = schema_of(name, version) is not None
        own = found[-1] if found else torch_operator(name) if known else None
        if not installed():
            return own
        from nncdbg.engine.ops.aten.decompositions import with_formula

        return with_formula(name, own)
    if found:
        return found[-1]
    from nncdbg.engine.ops.reference import reference_op

    return reference_op(name, version)
