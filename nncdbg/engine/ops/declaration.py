"""Op declarations: one declaration per op contains all facts about it.

A *primitive* has a kernel over the array namespace `xp` (NumPy or CuPy) and a rule for the
types of its outputs.  A *composite* has a formula in graph text; stepping into the op pushes
a frame of that formula, and the formula is the slow oracle for the kernel.  Signatures,
attribute defaults and documentation come from the ONNX schema (`schema.py`).

    @op("Gemm", since=7, infer=gemm_types, formula=gemm_formula)
    def gemm(xp, a, b, c=None, *, alpha, beta, transA, transB): ...

    elementwise("Add", ufunc="add", since=7)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

from nncdbg.dtypes import NUMPY, name_of
from nncdbg.engine.ops.influence import EVERYTHING, Content, Influence
from nncdbg.engine.ops.types import Infer
from nncdbg.engine.ops.valid_integers import IntegerRule
from nncdbg.errors import UsageError
from nncdbg.ir.records import TensorType

if TYPE_CHECKING:
    from nncdbg.engine.ops.causes import Birth, Cause, Maker
    from nncdbg.engine.ops.contracts import FindBrokenContract, FindIntegerFault
    from nncdbg.engine.ops.gradient import Applied, Emit
    from nncdbg.engine.ops.optimizers.statement import Optimizer
    from nncdbg.engine.ops.remarks import FindRemark, Squares
    from nncdbg.ir.records import Array, Operand

Kernel: TypeAlias = Callable[..., Any]
"""`kernel(xp, *inputs, **attributes)`: returns an array, or a tuple of arrays for several outputs.

Inputs come in the order of the schema, None where not given; attributes come as keywords with the schema's
defaults filled in.  A kernel never writes to its inputs, keeps NaN as NaN, and may return a view of an input.
With `accepts_out` it takes `out=`, an array of the inferred (or measured) shape and dtype, and must write
every element of it and return it.
"""

Measure: TypeAlias = Callable[..., Sequence[int]]
"""`measure(*inputs) -> sizes` of the single output."""

Terms: TypeAlias = Callable[[Sequence[Sequence[int]], Sequence[int]], int]
"""`terms(operand_shapes, result_shape)`: the number of terms added per element of the result."""

Formula: TypeAlias = Callable[[Mapping[str, Any], Sequence[TensorType | None]], str]
"""`formula(attributes, input_types) -> graph text` of one graph; its inputs are the given inputs.

The text is empty for a statement that is a primitive with these operands.
"""

Vjp: TypeAlias = "Callable[[Emit, Applied], Sequence[Operand] | None]"
"""`vjp(emit, applied) -> cotangents` of the operands in order, from those of the outputs.

It emits statements (`emit("Mul", ...)`) and returns the names of their values; None, or a shorter sequence,
for operands without a derivative.  A cotangent has the shape and element type of its operand.  Raises
UnsupportedOp with the reason if the derivative of the statement cannot be written.  None for a statement in
a form that the rule leaves to the op's formula.
"""

CauseRule: TypeAlias = "Callable[[Birth], Cause | None]"
"""`rule(birth) -> cause` of a NaN or Inf in a result; None if the operands do not explain it."""

HintRule: TypeAlias = "Callable[[Birth, Cause], str]"
"""`rule(birth, cause) -> hint`; empty where the hint of the cause is the right one."""

ZerosRule: TypeAlias = "Callable[[Sequence[tuple[str, Array]], Array], Cause]"
"""`rule(operands, result) -> cause` of a result of only zeros.

`operands` are the names and values of the non-empty float operands.
"""

LegalRule: TypeAlias = "Callable[[Birth, Sequence[Maker]], bool]"
"""`rule(birth, makers)`: True if the infinities in a result are legal by definition; see `Op.legal`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that hold for every kernel and every version of an op."""

    content: Content = Content.COMPUTED
    """What its results contain; by default `Content` of its influence."""
    sources: tuple[int, ...] | None = (0,)
    """For an op that moves elements: the operands from which the results take elements; None: all."""
    host_operands: tuple[int, ...] = ()
    """Operands that are shapes, axes or counts: a device kernel needs them on the host."""
    arithmetic: bool = False
    """The op computes with two broadcast operands; a result larger than both is suspicious."""
    reduces: bool = False
    """The op reduces over `axes`, an attribute or operand 1."""
    saturates: bool = False
    """Out-of-range values saturate to the nearest value in range."""
    keeps_finite: bool = False
    """Finite operands give finite results."""
    harmless_number: Callable[[float], bool] | None = None
    """Whether a number as the second argument gives a NaN or Inf only where the first argument has it."""
    host_read: bool = False
    """A program on the host read the operand, one number; the attribute `value` is the recorded number."""
    screens: bool = False
    """The op tests gradients for NaN and Inf, so that the optimizer's step is skipped if there are any."""
    optimizer: Optimizer | None = None
    """The operands of an optimizer, which computes the new parameter, first, from it and its gradient."""
    rectifies: bool = False
    """The op is an activation that is exactly 0 on one side, so that a unit can be dead."""
    limits: tuple[int, ...] = ()
    """The operands that limit the results; a result at such a limit does not depend on the others."""
    bounds: tuple[float, float] | None = None
    """The limits of the results of an activation."""
    shares: Callable[[Array], Array] | None = None
    """`shares(result)`: numbers that sum to 1 along `axis`, for an op that normalizes along it."""
    unit_axis: int | None = None
    """For a layer: the axis of the result along which its units (channels, neurons) lie."""
    training_operand: int | None = None
    """The operand without which a random op draws no numbers."""
    exact_infinity: Callable[[Sequence[Array]], bool] | bool = False
    """Whether an Inf from finite operands is exact, as in Log(0), rather than an overflow.

    A function decides by the operands.
    """
    cause: CauseRule | str | None = None
    """The cause of a NaN or Inf: a function, or its name in `ops/causes/`: ``"layers.softmax"``."""
    hint: HintRule | str | None = None
    """The usual fix of a cause in the terms of the op's library; a function or a name, as for `cause`."""
    zeros: ZerosRule | str | None = None
    """The cause of a result of only zeros; a function or a name, as for `cause`."""
    no_gradient: str = ""
    """Why an op of floats has no gradient."""
    contract: FindBrokenContract | None = None
    """Finds operands that the definition of the op does not allow (`ops/contracts.py`)."""
    remark: FindRemark | None = None
    """Says what is remarkable about a right result (`ops/remarks.py`)."""
    legal: LegalRule | str | None = None
    """Which infinities are legal by definition and never reported; a function or a name."""

    @property
    def optimizes(self) -> bool:
        """True for an optimizer."""
        return self.optimizer is not None


@dataclass(frozen=True, slots=True)
class Op(Facts):
    """One op from one opset version on."""

    name: str
    """The name in program text: ``Conv``, ``nncdbg.Empty``."""
    kernel: Kernel | None = None
    """None for an op that cannot run, and for a composite that runs its formula."""
    since: int = 1
    infer: Infer | None = None
    formula: Formula | None = None
    vjp: Vjp | None = None
    """The gradient rule; a composite without one is differentiated through its formula."""
    influence: Influence = EVERYTHING
    """Which elements of the operands influence which elements of the results.

    See `nncdbg.engine.ops.influence`.
    """
    accepts_out: bool = False
    measure: Measure | None = None
    """For an op that `accepts_out` with result sizes that depend on input values, not only on types."""
    terms: Terms | None = None
    """For an op that adds many terms: their number; the tolerance for its rounding errors grows with it."""
    commutative: bool = False
    """True if the order of the operands does not matter."""
    jumps: bool = False
    """True if a float result may jump after a small change of an operand, as in Round."""
    view: bool = False
    """True if the kernel returns a view of its first input; running it gives the sizes at no cost."""
    ufunc: str | None = None
    """The name of the function in `xp` that *is* the kernel, called with inputs and `out` by position."""
    random: bool = False
    """True if the kernel takes `rng`, a `numpy.random.Generator` keyed by (seed, statement, iteration).

    An attribute `seed` of the statement replaces its place in the key.
    """
    opset_version: bool = False
    """True if the kernel takes `opset`, the version that the program imports."""
    outputs_count: bool = False
    """True if kernel and inference take `outputs_count`, the number of outputs of the statement."""
    results: tuple[str, ...] = ("output",)
    """The names of the results in the signature of an op of nncdbg's domain; ``states...`` is variadic."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The types of operands and results in that signature, as in ONNX's schemas; ``T`` for the others."""
    integers: IntegerRule | None = None
    """The integers that operands accept, for operands that are indices, sizes, axes or counts."""
    reference: bool = False
    """True if the kernel is that of `onnx.reference`: exact, slow, and on NumPy only."""
    integer_fault: FindIntegerFault | None = None
    """Finds results that an integer type cannot represent (`ops/contracts.py`)."""
    squares: Squares | None = None
    """For an op that adds squares: an overflow leaves finite, wrong results (`ops/remarks.py`)."""
    doc: str = ""

    def arguments(self, attributes: Mapping[str, Any], version: int, outputs: int) -> Mapping[str, Any]:
        """Return the keywords of the kernel: the attributes, plus `opset` and `outputs_count` if needed."""
        extra: dict[str, Any] = {"opset": version} if self.opset_version else {}
        if self.outputs_count:
            extra["outputs_count"] = outputs
        return {**attributes, **extra}

    @property
    def pointwise(self) -> bool:
        """True if each element of a result depends only on the elements at the same index."""
        return self.influence.pointwise

    def gives_exact_infinity(self, operands: Sequence[Any]) -> bool:
        """Return True if an Inf from these operands without Inf is exact, rather than an overflow."""
        exact = self.exact_infinity
        return exact(operands) if callable(exact) else exact

    def draws(self, given: Sequence[Any]) -> bool:
        """Return True if a statement draws random numbers; an omitted operand is None or missing."""
        optional = self.training_operand
        return self.random and (optional is None or (len(given) > optional and given[optional] is not None))

    @property
    def foreign(self) -> bool:
        """True if the kernel is defined outside nncdbg: by an op library or onnx.reference."""
        # Code that was entered interactively or run by exec may have no module.
        return self.kernel is not None and (self.kernel.__module__ or "").partition(".")[0] != "nncdbg"

    def bind(self, xp: ModuleType, attributes: Mapping[str, Any], *, out: bool = False) -> Callable[..., Any]:
        """Return the kernel as a function of its inputs; with `out`, of its inputs and then the buffer.

        `out` requires an op that `accepts_out`.
        """
        if self.ufunc is not None:
            function: Callable[..., Any] = getattr(xp, self.ufunc)
            return function
        kernel = self.kernel
        assert kernel is not None
        if out:
            assert self.accepts_out

            def run_into(*arguments: Any) -> Any:
                return kernel(xp, *arguments[:-1], out=arguments[-1], **attributes)

            return run_into

        def run(*inputs: Any) -> Any:
            return kernel(xp, *inputs, **attributes)

        return run


_DECLARED: dict[str, list[Op]] = {}
_COLLECTORS: list[list[Op]] = []
_revision = 0


def revision() -> int:
    """Return a number that changes with each declaration: code compiled before may be outdated."""
    return _revision


def _changed() -> None:
    global _revision
    _revision += 1


def declare(declared: Op) -> Op:
    """Add an op to the table.  Raises UsageError if its (name, since) already exists."""
    versions = _DECLARED.setdefault(declared.name, [])
    if any(other.since == declared.since for other in versions):
        raise UsageError(
            f"op {declared.name} is declared twice with since={declared.since}",
            hint="use another name, or another `since`",
        )
    versions.append(declared)
    versions.sort(key=lambda entry: entry.since)
    _changed()
    for collector in _COLLECTORS:
        collector.append(declared)
    return declared


@contextmanager
def declared_together() -> Iterator[list[Op]]:
    """Collect the declarations in the block; all are undone if it raises."""
    found: list[Op] = []
    _COLLECTORS.append(found)
    try:
        yield found
    except BaseException:
        for entry in found:
            _DECLARED[entry.name].remove(entry)
            if not _DECLARED[entry.name]:
                del _DECLARED[entry.name]
        _changed()
        raise
    finally:
        _COLLECTORS.remove(found)


Declared = TypeVar("Declared", bound=Kernel)
Fields = ParamSpec("Fields")
DESCRIBED: dict[str, Mapping[str, Any]] = {}


def facts_of(name: str) -> Mapping[str, Any]:
    """Return the facts from another version of an op or from `describe`; empty if there are none."""
    if name not in _DECLARED:
        return DESCRIBED.get(name, {})
    return {each.name: getattr(_DECLARED[name][0], each.name) for each in dataclass_fields(Facts)}


def describe(name: str, **fields: Any) -> None:
    """Declare fields of an op without a kernel here, which runs through `onnx.reference`."""
    DESCRIBED[name] = fields


def _declaring(fields_of: Callable[Fields, Op]) -> Callable[Fields, Callable[[Declared], Declared]]:
    def op(*name: Fields.args, **fields: Fields.kwargs) -> Callable[[Declared], Declared]:
        """Declare the decorated function as the kernel of an op; its docstring documents the op.

        `fields` are those of `nncdbg.Op`; ``infer`` gives the types of the results.  The `Facts` of the first
        declared version hold for all.  Raises UsageError if the op is declared already.
        """

        def enter(kernel: Declared) -> Declared:
            stated = fields_of(*name, **fields)
            given: Any = {"content": stated.influence.content, **facts_of(stated.name), **fields}
            declare(replace(stated, kernel=kernel, doc=kernel.__doc__ or "", **given))
            return kernel

        return enter

    return op


op = _declaring(Op)


def composite(name: str, **fields: Any) -> Callable[[Formula], Formula]:
    """Declare `name` with the decorated formula, which its kernel runs; its docstring documents the op."""

    def enter(formula: Formula) -> Formula:
        declare(Op(name=name, kernel=None, formula=formula, doc=formula.__doc__ or "", **fields))
        return formula

    return enter


def other_version(name: str, since: int, **fields: Any) -> Callable[[Declared], Declared]:
    """Declare the decorated kernel of a version that differs from the oldest one only in `fields`."""

    def enter(kernel: Declared) -> Declared:
        declare(replace(_DECLARED[name][0], since=since, kernel=kernel, doc=kernel.__doc__ or "", **fields))
        return kernel

    return enter


def declared(name: str) -> Sequence[Op]:
    """Return all versions of the op `name`, oldest first; empty if there are none."""
    return tuple(_DECLARED.get(name, ()))


def names() -> list[str]:
    """Return the names of all declared ops, sorted."""
    return sorted(_DECLARED)


def measure_of(op: Op, attributes: Mapping[str, Any]) -> Measure | None:
    """Return the function that computes sizes of the result from input values.

    None if the types give the sizes, or if nothing does.
    """
    if not op.view:
        return op.measure
    kernel = op.bind(np, attributes)

    def sizes(*inputs: Any) -> tuple[int, ...]:
        shape: tuple[int, ...] = kernel(*inputs).shape
        return shape

    return sizes


def result_of(
    op: Op, attributes: Mapping[str, Any], inputs: Sequence[Any]
) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Return (shape, dtype) of the first output for these inputs; None if only the kernel gives them."""
    assert op.infer is not None
    types = [None if x is None else TensorType(name_of(x.dtype), tuple(x.shape)) for x in inputs]
    result = op.infer(attributes, types)[0]
    if result is None or result.dtype == "str":
        return None
    measure = measure_of(op, attributes)
    if measure is not None:
        return tuple(measure(*inputs)), NUMPY[result.dtype]
    if not result.concrete:
        return None
    return tuple(int(size) for size in result.shape or ()), NUMPY[result.dtype]
