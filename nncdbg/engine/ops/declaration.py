"""How an op is declared: once, with everything that is known of it.

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
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from nncdbg.engine.errors import UsageError
from nncdbg.engine.graph import TensorType
from nncdbg.engine.ops.influence import EVERYTHING, Content, Influence
from nncdbg.engine.ops.types import Infer
from nncdbg.engine.ops.valid_integers import IntegerRule

if TYPE_CHECKING:
    from nncdbg.engine.graph import Array, Operand
    from nncdbg.engine.ops.causes import Birth, Cause, Maker
    from nncdbg.engine.ops.gradient import Applied, Emit
    from nncdbg.engine.ops.integer_faults import FindIntegerFault
    from nncdbg.engine.ops.squares import Squares

Kernel: TypeAlias = Callable[..., Any]
"""`kernel(xp, *inputs, **attributes)`: an array, or a tuple of arrays for several outputs.

Inputs come in the order of the schema, None where not given; attributes come as keywords with
the schema's defaults filled in.  A kernel never writes to its inputs, keeps NaN as NaN, and
may return a view of an input.  With `accepts_out` it takes `out=`, an array of the inferred
(or measured) shape and dtype, and must write every element of it and return it.
"""

Measure: TypeAlias = Callable[..., Sequence[int]]
"""`measure(*inputs) -> sizes` of the one output."""

Terms: TypeAlias = Callable[[Sequence[Sequence[int]], Sequence[int]], int]
"""`terms(operand_shapes, result_shape)`: how many numbers are added up per element of the result."""

Formula: TypeAlias = Callable[[Mapping[str, Any], Sequence[TensorType | None]], str]
"""`formula(attributes, input_types) -> graph text` of one graph, whose inputs are the inputs given."""

Vjp: TypeAlias = "Callable[[Emit, Applied], Sequence[Operand]]"
"""`vjp(emit, applied) -> cotangents` of the operands in order, from those of the outputs.

It emits statements (`emit("Mul", ...)`) and names their values; None, or nothing at the end, for an
operand that no derivative goes back to.  A cotangent has the shape and element type of its operand.
Raises UnsupportedOp with the reason where the statement has no derivative that could be written.
"""

CauseRule: TypeAlias = "Callable[[Birth], Cause | None]"
"""`rule(birth) -> cause` of a NaN or Inf in a result; None if the operands do not explain it."""

ZerosRule: TypeAlias = "Callable[[Sequence[tuple[str, Array]], Array], Cause]"
"""`rule(operands, result) -> cause` of a result of zeros only; `operands` are the names and values of the
float operands that are not empty."""

LegalRule: TypeAlias = "Callable[[Birth, Sequence[Maker]], bool]"
"""`rule(birth, makers)`: whether the infinities in a result are legal by definition; see `Op.legal`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What holds for every kernel and every version of an op."""

    content: Content = Content.COMPUTED
    """What its results hold, by default that of its row of influence; see `Content`."""
    sources: tuple[int, ...] | None = (0,)
    """For an op that moves elements: the operands whose elements the results hold; None: all."""
    host_operands: tuple[int, ...] = ()
    """Operands that are shapes, axes or counts: a device kernel needs them on the host."""
    arithmetic: bool = False
    """It computes with two broadcast operands; a result larger than both is suspicious."""
    reduces: bool = False
    """A reduction over `axes`, an attribute or operand 1."""
    saturates: bool = False
    """Values out of range become the nearest value in range."""
    rectifies: bool = False
    """An activation that is exactly 0 on one side, so that a unit can be dead."""
    bounds: tuple[float, float] | None = None
    """The limits of the results of an activation."""
    shares: Callable[[Array], Array] | None = None
    """`shares(result)`: numbers that sum to 1 along `axis`, for an op that normalizes along it."""
    unit_axis: int | None = None
    """For a layer: the axis of the result along which its units (channels, neurons) lie."""
    training_operand: int | None = None
    """The operand without which a random op draws no numbers."""
    exact_infinity: Callable[[Sequence[Array]], bool] | bool = False
    """Whether an Inf of finite operands is exact, as that of Log(0), and no overflow; a function decides by
    the operands."""
    cause: CauseRule | str | None = None
    """The cause of a NaN or Inf: a function, or the name of one in `ops/causes/`: ``"softmax.softmax"``."""
    zeros: ZerosRule | str | None = None
    """The cause of a result of zeros only; a function or a name, as for `cause`."""
    legal: LegalRule | str | None = None
    """Which infinities are legal by definition and so never reported; a function or a name."""


@dataclass(frozen=True, slots=True)
class Op(Facts):
    """One op from one opset version on."""

    name: str
    """As in program text: ``Conv``, ``nncdbg.Empty``."""
    kernel: Kernel | None = None
    """None for an op that cannot run, and for a composite that runs its formula."""
    since: int = 1
    infer: Infer | None = None
    formula: Formula | None = None
    vjp: Vjp | None = None
    """The gradient rule; a composite without one is differentiated through its formula."""
    influence: Influence = EVERYTHING
    """Which elements of its operands influence which of its results (`nncdbg.engine.ops.influence`)."""
    accepts_out: bool = False
    measure: Measure | None = None
    """For an op that `accepts_out` whose sizes follow from what its inputs hold, not from their types."""
    terms: Terms | None = None
    """For an op that adds up many numbers: how many; a tolerance for its rounding errors grows with them."""
    commutative: bool = False
    """The order of the operands does not matter."""
    jumps: bool = False
    """A float result may jump where an operand changes a little, as that of Round does."""
    view: bool = False
    """The kernel gives a view of its first input, so that running it tells the result's sizes for nothing."""
    ufunc: str | None = None
    """The name in `xp` of the function that *is* the kernel, called with inputs and `out` by position."""
    random: bool = False
    """The kernel takes `rng`, a `numpy.random.Generator` keyed by (seed, statement, iteration)."""
    opset_version: bool = False
    """The kernel takes `opset`, the version that the program imports."""
    outputs_count: bool = False
    """Kernel and inference take `outputs_count`, the number of outputs the statement asks for."""
    integers: IntegerRule | None = None
    """Which integers its operands accept, for operands that are indices, sizes, axes or counts."""
    reference: bool = False
    """The kernel is that of `onnx.reference`: exact, slow, and on NumPy only."""
    integer_fault: FindIntegerFault | None = None
    """Finds results that an integer type cannot represent (`ops/integer_faults.py`)."""
    squares: Squares | None = None
    """For an op that adds up squares: an overflow leaves finite, wrong results (`ops/squares.py`)."""
    doc: str = ""

    def arguments(self, attributes: Mapping[str, Any], version: int, outputs: int) -> Mapping[str, Any]:
        """The keywords of the kernel: the attributes, and `opset` and `outputs_count` where it takes them."""
        extra: dict[str, Any] = {"opset": version} if self.opset_version else {}
        if self.outputs_count:
            extra["outputs_count"] = outputs
        return {**attributes, **extra}

    @property
    def pointwise(self) -> bool:
        """Whether each element of a result depends on the elements in the same place only."""
        return self.influence.pointwise

    def draws(self, given: Sequence[Any]) -> bool:
        """Whether a statement draws random numbers; an operand that is not given is None or missing."""
        optional = self.training_operand
        return self.random and (optional is None or (len(given) > optional and given[optional] is not None))

    @property
    def foreign(self) -> bool:
        """Whether the kernel comes from outside of nncdbg: an op library, onnx.reference."""
        # Code that was typed in or executed from a text may have no module.
        return self.kernel is not None and (self.kernel.__module__ or "").partition(".")[0] != "nncdbg"

    def bind(self, xp: ModuleType, attributes: Mapping[str, Any], *, out: bool = False) -> Callable[..., Any]:
        """The kernel as a function of its inputs alone; with `out`, of its inputs and then the buffer.

        `out` needs an op that `accepts_out`.
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
    """Return a number that is another one after each declaration: code compiled before may be outdated."""
    return _revision


def _changed() -> None:
    global _revision
    _revision += 1


def declare(declared: Op) -> Op:
    """Enter an op into the table.  Raises UsageError if its (name, since) is there already."""
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
    """Collects what is declared inside; all of it is taken back if an exception leaves."""
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
    """The facts that another version of an op or `describe` declares; empty if there is none."""
    if name not in _DECLARED:
        return DESCRIBED.get(name, {})
    return {each.name: getattr(_DECLARED[name][0], each.name) for each in dataclass_fields(Facts)}


def describe(name: str, **fields: Any) -> None:
    """Declare fields of an op that has no kernel here and runs through `onnx.reference`."""
    DESCRIBED[name] = fields


def _declaring(
    fields_of: Callable[Fields, Op],
) -> Callable[Fields, Callable[[Declared], Declared]]:
    def op(*name: Fields.args, **fields: Fields.kwargs) -> Callable[[Declared], Declared]:
        """Declare the decorated function as the kernel of an op; its docstring documents the op.

        `fields` are those of `nncdbg.Op`; ``infer`` gives the types of the results.  The `Facts` of the
        version that is declared first hold for all.  Raises UsageError if the op is declared already.
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
    """Declare `name` by the decorated formula, which its kernel runs; its docstring documents the op."""

    def enter(formula: Formula) -> Formula:
        declare(Op(name=name, kernel=None, formula=formula, doc=formula.__doc__ or "", **fields))
        return formula

    return enter


def declared(name: str) -> Sequence[Op]:
    """All versions of the op `name`, oldest first; empty if there is none."""
    return tuple(_DECLARED.get(name, ()))


def names() -> list[str]:
    """Every op that is declared, sorted."""
    return sorted(_DECLARED)
