"""Origins inside a composite op: the micro program runs again, with tracking.

It runs on NumPy, on a separate machine, over the operands of that moment; the program's state is not
touched. Only values that lead to the bad result count: an infinity that ends in a finite number, such
as exp(90) in 1 / (1 + exp(90)), is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code, walk
from nncdbg.engine.diagnosis.explaining import cause_of, explained, legal, narrowed
from nncdbg.engine.diagnosis.finding_records import NONE, Origins, Register
from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.execution.loaded import Loaded, MicroPrograms
from nncdbg.engine.observers.statement_checks import is_random
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.causes import Birth, Cause
from nncdbg.engine.ops.causes.evidence import at, flat, overflow_hint, shown, spot
from nncdbg.engine.ops.schema import for_rules, version_of
from nncdbg.errors import NncdbgError
from nncdbg.stats.inspection import holds
from nncdbg.text.torch_names import is_torch

MOST_WORK = 1 << 22
"""Maximum multiplications, or elements of operands, of a micro program: about a second at most."""

MOST_BIRTHS = 64
"""Maximum number of origins in one micro program that are kept, with their operands."""

DEEPEST = 8
"""Maximum nesting of micro programs."""

KINDS = ("inf", "nan")
_GIVEN: Origins = frozenset({-1})
"""The origin of the op's operands and of intentional infinities."""

FROM_INFINITIES = frozenset(
    {
        "infinity minus infinity",
        "infinity divided by infinity",
        "zero times infinity",
        "outside of the domain",
        "fully masked row",
    }
)
"""Causes of a NaN that result from an infinity."""


@dataclass(frozen=True, slots=True, eq=False)
class Within:
    """A statement of a micro program, and the NaN or Inf that originates there."""

    code: Code
    pc: int
    birth: Birth


def diagnose(birth: Birth, code: Code, pc: int, loaded: Loaded) -> tuple[Cause, Within | None]:
    """Return why the statement at `pc` produced NaN or Inf, and where inside of its op.

    The cause by the rule of the op itself (a masked row, a variance of 0) is more specific than that of
    the micro op. If neither finds a cause and the micro program gives a finite number, the kernel is
    suspect.
    """
    own = explained(birth)
    if is_torch(birth.op):
        return own or cause_of(birth), None  # Micro programs run on NumPy here.
    inside = Microscope(loaded).look(birth, code, pc)
    if isinstance(inside, Within):
        return own or _of_micro(birth, inside.birth), inside
    if own is None and inside is not None:
        own = _suspect(birth, inside)
    return own or cause_of(birth), None


def diagnose_overflow(birth: Birth, finding: Finding, loaded: Loaded) -> tuple[Cause, Within | None] | None:
    """Return the overflow of a sum of squares inside an op with a finite or NaN result; None without one."""
    code, pc = finding.binding.code, finding.binding.pc
    declared = lookup(birth.op, birth.opset)
    squares = declared.squares if declared is not None else None
    wrong = finding.elements is not None
    if squares is None or not (wrong or (birth.kind == "nan" and squares.may_overflow(birth.inputs))):
        return None
    inside = Microscope(loaded).overflow(birth, code, pc)
    if inside is not None:
        hint = overflow_hint(inside.birth.output.dtype)
        return Cause("overflow", cause_of(inside.birth).evidence, hint), inside
    if not wrong:
        return None
    evidence = f"{birth.op} sums squares that are too large for its computation type"
    return Cause("overflow", evidence, overflow_hint(birth.output.dtype)), None


def _of_micro(birth: Birth, inner: Birth) -> Cause:
    cause = cause_of(inner)
    if cause.name == "cast out of range":
        # Micro programs over narrow floats compute in f32 and round once: this cast is not in the program.
        return Cause(
            "overflow", f"the result of {birth.op}: {cause.evidence}", overflow_hint(birth.output.dtype)
        )
    return cause_of(birth) if cause.name == "unknown" else cause


def _suspect(birth: Birth, result: Finite) -> Cause:
    index = spot(birth)
    given, expected = shown(float(birth.output[index])), shown(result.number)
    evidence = f"the kernel of {birth.op} computed {given}{at(index)}, and its micro program {expected}"
    hint = f"run the model with another backend, and report the bug in the kernel of {birth.op}"
    return Cause("kernel", evidence, hint)


@dataclass(frozen=True, slots=True)
class Finite:
    """A finite result of the micro program where the kernel gave none."""

    number: float


class Microscope:
    """Runs micro programs of one program's statements."""

    def __init__(self, loaded: Loaded) -> None:
        self._micro_programs = MicroPrograms(loaded.program, loaded.listing, self._follow)
        self._followed = _Followed()

    def look(self, birth: Birth, code: Code, pc: int, depth: int = DEEPEST) -> Within | Finite | None:
        """Return the statement of origin, or `Finite` if the micro program gives a finite number.

        Return None without a micro program, or if it is too large to run.
        """
        birth = _small(birth)
        if _work(birth) > MOST_WORK:
            return None
        try:
            results = self._run(birth, code, pc)
        except NncdbgError:
            return None  # There is no micro program for these operands: the op is treated as a whole.
        if results is None or birth.index >= len(results):
            return None
        result = results[birth.index]
        if not isinstance(result, (np.ndarray, np.generic)) or result.shape != birth.output.shape:
            return None
        if not holds(result, birth.kind):
            number = float(np.asarray(result)[spot(birth)])
            return Finite(number) if math.isfinite(number) else None
        found = self._followed.root(result, birth.kind)
        if found is None or depth == 0:
            return found
        inner = self.look(found.birth, found.code, found.pc, depth - 1)
        return inner if isinstance(inner, Within) else found

    def overflow(self, birth: Birth, code: Code, pc: int, depth: int = DEEPEST) -> Within | None:
        """Return the first statement that rounded a finite number to Inf; None without one."""
        try:
            if self._run(birth, code, pc) is None:
                return None
        except NncdbgError:
            return None
        followed = self._followed
        for born in followed.births:
            if born.birth.kind == "inf" and cause_of(born.birth).is_overflow:
                return born
        for binding, inputs, results in followed.squares if depth else ():
            inner = _birth(binding, inputs, results[0], 0, "inf")
            found = self.overflow(inner, binding.code, binding.pc, depth - 1)
            if found is not None:
                return found
        return None

    def _run(self, birth: Birth, code: Code, pc: int) -> Sequence[Any] | None:
        """Return the results of the micro program; None without one, or if it draws random numbers."""
        formula = self._micro_programs.of(code, pc, birth.inputs)
        if formula is None or is_random(formula):
            return None
        self._followed = _Followed()
        self._followed.enter([value for value in birth.inputs if value is not None])
        for block in walk(formula):
            self._followed.enter(block.template)
        return self._micro_programs.run(formula, birth.inputs)

    def _follow(self, binding: Binding, execute: Execute) -> Execute:
        def followed(*inputs: Any) -> Any:
            results = execute(*inputs)
            self._followed.after(binding, inputs, results if binding.several else (results,))
            return results

        return followed


@dataclass(slots=True)
class _Followed:
    """The bad values in one run of a micro program, and the statements where they originate."""

    births: list[Within] = field(default_factory=list)
    parents: list[Origins] = field(default_factory=list)
    """For each NaN origin, the origins of the infinities among its operands."""
    squares: list[tuple[Binding, Sequence[Any], Sequence[Any]]] = field(default_factory=list)
    """Statements of ops in which a sum of squares may overflow, with operands and results."""
    _bad: Register = field(default_factory=Register)
    _makers: Register = field(default_factory=Register)
    _made: list[tuple[str, list[tuple[int, ...]]]] = field(default_factory=list)
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def enter(self, given: Sequence[Any]) -> None:
        """Record operands and constants: bad values in them do not originate here."""
        for value in flat(given):
            for kind in KINDS:
                self._bad.mark(value, kind, _GIVEN)

    def after(self, binding: Binding, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Record the bad results of a statement that has run."""
        shapes = [value.shape for value in inputs if isinstance(value, np.ndarray)]
        if any(0 in shape for shape in shapes):
            self._made.append((binding.node.op, shapes))
            for result in results:
                self._makers.mark(result, "made", frozenset({len(self._made) - 1}))
        squares = binding.op.squares
        if squares is not None and squares.may_overflow(inputs):
            self.squares.append((binding, inputs, results))
        for index, result in enumerate(results):
            for kind in KINDS:
                if holds(result, kind):
                    self._note(binding, inputs, result, index, kind)

    def _note(self, binding: Binding, inputs: Sequence[Any], result: Any, index: int, kind: str) -> None:
        if self._bad.origins(result, kind) - _GIVEN:
            return  # The operand is passed on unchanged.
        origins = self._origins(inputs, kind)
        if not origins:
            origins = self._born(binding, inputs, result, index, kind)
        self._bad.mark(result, kind, origins)

    def _origins(self, values: Sequence[Any], kind: str) -> Origins:
        """Return the origins of the bad elements of some values; empty if there are none."""
        return NONE.union(*(self._origins_of(value, kind) for value in values if holds(value, kind)))

    def _origins_of(self, value: Any, kind: str) -> Origins:
        known = self._bad.origins(value, kind)
        if known:
            return known
        # Only the machine makes such a value: the stacked items that a loop collected.
        every = frozenset(number for number, each in enumerate(self.births) if each.birth.kind == kind)
        return every or _GIVEN

    def _born(self, binding: Binding, inputs: Sequence[Any], result: Any, index: int, kind: str) -> Origins:
        key = (id(binding.code), binding.pc, index, kind)
        number = self._known.get(key)
        if number is not None:
            return frozenset({number})
        birth = _birth(binding, inputs, result, index, kind)
        if legal(birth, [self._maker(value) for value in inputs]) or len(self.births) == MOST_BIRTHS:
            return _GIVEN
        number = self._known[key] = len(self.births)
        self.births.append(Within(binding.code, binding.pc, birth))
        self.parents.append(self._origins(inputs, "inf") if kind == "nan" else NONE)
        return frozenset({number})

    def _maker(self, value: Any) -> tuple[str, list[tuple[int, ...]]] | None:
        numbers = self._makers.origins(value, "made")
        return self._made[max(numbers)] if numbers else None

    def root(self, result: Any, kind: str) -> Within | None:
        """Return where the bad values of a result originate; None if they come from the op's operands."""
        origins = self._origins_of(result, kind) - _GIVEN
        if not origins:
            return None
        number = min(origins)
        while self.births[number].birth.kind == "nan":
            earlier = self.parents[number] - _GIVEN
            if not earlier or cause_of(self.births[number].birth).name not in FROM_INFINITIES:
                break
            number = min(earlier)
        return self.births[number]


def _birth(binding: Binding, inputs: Sequence[Any], result: Any, index: int, kind: str) -> Birth:
    code, node = binding.code, binding.node
    opset = version_of(node.op, code.opsets)
    names = [code.names[slot] for slot in code.operands[binding.pc]]
    attributes = for_rules(node.op, opset, node.attributes)
    return Birth(kind, node.op, opset, attributes, names, list(inputs), np.array(result), index)


def _small(birth: Birth) -> Birth:
    """Return the birth; for a pointwise op over many elements, only the first bad one."""
    return narrowed(birth, spot(birth))[0] if birth.output.size > MOST_WORK >> 4 else birth


def _work(birth: Birth) -> int:
    """Estimate the work of a micro program: elements, and multiplications if all products are formed."""
    arrays = [birth.output, *(value for value in flat(birth.inputs) if isinstance(value, np.ndarray))]
    size = sum(array.size for array in arrays)
    op = lookup(birth.op, birth.opset)
    if op is None or op.terms is None:
        return size
    return size + birth.output.size * op.terms([np.shape(each) for each in birth.inputs], birth.output.shape)
