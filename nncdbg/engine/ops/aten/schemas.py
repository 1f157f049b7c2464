"""The schema provider for PyTorch's operators."""

from __future__ import annotations

from collections.abc import Iterable

from nncdbg.engine.ops.schema import REQUIRED, Formal, Schema, Schemas
from nncdbg.text.torch_names import NUMBER, OWN, READ, RECORDED, VIEW, WRITE, installed

_LAYOUT = {"size": REQUIRED, "stride": REQUIRED, "offset": 0}


class TorchSchemas(Schemas):
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
        from nncdbg.engine.ops.aten.signatures import schema

        return schema(name)

    def versions(self, name: str) -> tuple[int, ...]:
        return (1,) if self.schema(name, 1) is not None else ()

    def names(self, domain: str) -> Iterable[str]:
        if domain == "torch":
            return OWN
        if not installed():
            return ()
        from nncdbg.engine.ops.aten.signatures import operator_names

        return operator_names(domain)


_OWN_SCHEMAS = {
    VIEW: Schema(
        VIEW,
        (Formal("base", "Tensor"),),
        (Formal("view", "Tensor"),),
        {**_LAYOUT, "dtype": None},
        doc="A view of the memory of `base`: sizes and strides in elements of `dtype`, by default that of "
        "`base`, from the element `offset` on.",
    ),
    WRITE: Schema(
        WRITE,
        (Formal("base", "Tensor"), Formal("part", "Tensor")),
        (Formal("result", "Tensor"),),
        {**_LAYOUT, "dtype": None},
        doc="A copy of `base` with `part` written to the view that these sizes and strides describe.",
    ),
    READ: Schema(
        READ,
        (Formal("tensor", "Tensor"),),
        (Formal("number", "Tensor"),),
        {"value": REQUIRED},
        doc="The number that Python read from a tensor of one element, as `item()` does.  `value` is the "
        "recorded number; with another one Python might have taken another path.",
    ),
    NUMBER: Schema(
        NUMBER,
        (Formal("numbers", "Tensor", variadic=True),),
        (Formal("result", "Tensor"),),
        {"function": REQUIRED},
        doc="A function of numbers, as Python computes it: of the module `operator`, such as `floordiv` and "
        "`ge`, of `math`, or `sym_max` and others of torch.  The result is an i64, f64 or bool.",
    ),
    RECORDED: Schema(
        RECORDED,
        (Formal("result", "T"), Formal("sent", "Tensor", variadic=True)),
        (Formal("result", "T"),),
        {"op": REQUIRED, "reason": None},
        doc="The recorded result of an operator that is not run again, such as a collective.  `sent` is what "
        "this rank gave to a collective.",
    ),
}
