"""The debugger as its users see it: one facade with the verbs of a debugger.

Terminal, protocol server and scripts only translate into these calls.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path as FilePath
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from nncdbg.engine.backends import Backend
from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.backends.fallback import Fallback
from nncdbg.engine.compilation.code import UNSET, Code, Path, Statement
from nncdbg.engine.compilation.linking import Allocation, Binding, Execute, Linker
from nncdbg.engine.compilation.supplied import SuppliedResults
from nncdbg.engine.errors import NncdbgError, UnsupportedOp, UsageError
from nncdbg.engine.escaping import printable
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.launch import Loaded, generator_of
from nncdbg.engine.execution.limit import Limit
from nncdbg.engine.execution.machine import Machine, Running
from nncdbg.engine.expression import (
    Expression,
    check_condition,
    evaluate,
    evaluate_index,
    parse_index,
    split_definition,
)
from nncdbg.engine.findings import Finding
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.graph import Array
from nncdbg.engine.inputs.binding import Note, bind
from nncdbg.engine.inputs.consumers import Consumers
from nncdbg.engine.memory.budget import parse_bytes
from nncdbg.engine.observers.instrumentation import Instrumentation, allocation_on
from nncdbg.engine.process.collector import collector_paused
from nncdbg.engine.stopping.breakpoints import Breakpoint, Place
from nncdbg.engine.stopping.control import Control, Journey, LogMessage, Stop
from nncdbg.engine.stopping.judging import Judge
from nncdbg.engine.stopping.placement import Placement
from nncdbg.engine.stopping.search import candidates, constant_names
from nncdbg.engine.stopping.setting import Stopping
from nncdbg.engine.stopping.traps import Traps
from nncdbg.engine.text.listing import Listing
from nncdbg.engine.time.deviations import Edit, edits_of
from nncdbg.engine.time.timeline import Branch, Mark, Timeline
from nncdbg.engine.time.visits import last_visit, left_micro_program
from nncdbg.engine.values.current import Current
from nncdbg.engine.values.editing import change, edited, late_words
from nncdbg.engine.values.new_values import from_text, whole_result
from nncdbg.engine.values.short_names import ProgramNames, ShortNames
from nncdbg.engine.values.tensor import Tensor
from nncdbg.engine.values.values import Outputs, Values, type_of
from nncdbg.representation import RichOutput
from nncdbg.stats import Summary, summarize

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.diagnosing import Diagnosis
    from nncdbg.engine.diagnosis.trail import Trail
    from nncdbg.engine.ops import Op
    from nncdbg.engine.ops.causes import Cause
    from nncdbg.engine.process.black_box import BlackBox


Verb: TypeAlias = "Callable[[], Stop]"
"""One way of moving a program, with all that it needs to know."""


class Debugger(RichOutput):
    """A program, stopped at its first statement.

    * `program`: a Program, the path of a file, or an `onnx.ModelProto`.
    * `inputs`: arrays, numbers, lists, or text such as ``"x.npy"`` and ``"zeros"``, by input name.  Inputs
      that are not given are drawn at random from `seed`; `notes` reports them.
    * `dims`: symbolic sizes by name.
    * `backend`: the kernels that run: ``"numpy"``, ``"onnxruntime"``, ``"cupy"``, or a Backend.  An op
      without a kernel there fails, or with `fallback` runs on NumPy (see `fallbacks`).
    * `allocator`: ``"debug"`` (the default), ``"arena"``, ``"poison"``, ``"plain"`` (the default
      on a device), or an Allocation.
    * `history`: the bytes that old values may take, a number or text such as ``"4GiB"``; by default a
      quarter of RAM.
    * `statistics`: log the summary of every result.
    * `check`: ``"micro"`` runs micro programs beside the kernels (see `micro`).
    * `max_ops`: stop after so many statements, and again after as many more.
    * `folder`: the folder of the files that `inputs` names; by default the current one.
    * `black_box`: records the statement that runs, in case a kernel ends the process.

    Raises GraphError, LoadError or UsageError for a program or inputs that cannot run.
    """

    supervisor: ClassVar[Callable[[Debugger, Verb], Stop] | None] = None
    """Moves every debugger by a verb of the user's code: for an editor, or for a prompt inside a script."""

    moving: ClassVar[dict[int, Debugger]] = {}
    """The debugger that each thread moves, by thread; the outermost, if a kernel moves another one."""

    notes: list[Note]

    def __init__(
        self,
        program: ProgramSource,
        inputs: Mapping[str, Any] | None = None,
        *,
        backend: str | Backend = "numpy",
        fallback: bool = False,
        allocator: str | Allocation | None = None,
        dims: Mapping[str, int] | None = None,
        seed: int = 0,
        history: int | str | None = None,
        statistics: bool = True,
        check: str | None = None,
        max_ops: int | None = None,
        folder: FilePath | None = None,
        black_box: BlackBox | None = None,
    ) -> None:
        program = load(program)
        self.program = program
        self.seed = seed
        self.listing: Listing = program.as_listing()
        self._names: dict[int, tuple[Any, ProgramNames]] = {}
        self.messages: list[str] = []
        """Messages of logpoints and about re-applied edits, oldest first, unless `said` takes them."""
        self.said: Callable[[LogMessage], None] = lambda message: self.messages.append(message.text)
        """Takes each message when it is made, on the thread that moves the program."""
        self._folder = folder
        self._bind(inputs, dims)
        self.backend = backend_of(backend)
        self.allocation = allocation_on(self.backend, allocator)
        self._running = Running()
        self._fallback = Fallback(self.backend) if fallback else None
        self._supplied = SuppliedResults(self.backend.to_device)
        linker = Linker(
            self.backend, self.allocation, generator_of(self._running, seed), self._fallback, self._supplied
        )
        self._loaded = Loaded(program, self.listing, linker)
        self._instrumentation = Instrumentation(linker, self._found, statistics)
        if check is not None:
            self._instrumentation.check(check, program, self.listing, lambda: self.timeline.replaying)
        self.log = self._instrumentation.log
        self.micro = self._instrumentation.micro
        self.catches = self._instrumentation.catches
        self.black_box = black_box
        if black_box is not None:
            self.notes = [*map(Note, black_box.begin(program, self.backend)), *self.notes]
            linker.record = lambda kernels, op, code, pc: black_box.cover(
                kernels, op, code, pc, self.line_in(code, pc), self._running
            )
        with collector_paused():
            self._entry = self._loaded.entry(list(self.inputs.values()))
        self._types = [*map(type_of, self.inputs.values())]
        self._limits = parse_bytes(history), max_ops
        self._program_names = frozenset(candidates(program, "value") | constant_names(program))
        self._begin()

    def _bind(self, inputs: Mapping[str, Any] | None, dims: Mapping[str, int] | None) -> None:
        consumers = Consumers(self.program, self.listing.line)
        bound = bind(self.program.graph, inputs, dims, self.seed, folder=self._folder, consumers=consumers)
        self.inputs = bound.arrays
        self.given = {name.removeprefix("%"): data for name, data in (inputs or {}).items()}
        """The inputs as they were given: texts, numbers, arrays."""
        self.dims = bound.dims
        self.notes = [*map(Note, self.program.notes), *bound.notes]

    def _begin(self) -> None:
        placed = [self.backend.to_device(array) for array in self.inputs.values()]
        self.machine = Machine(self._entry, placed, self._loaded.call, self._running)
        self._take_control(self._loaded.linker.codes, *self._limits)
        self._loaded.arrived = self._code_arrived
        self.selected = -1
        self.stop: Stop = self.here("entry")

    def begin_anew(self, inputs: Mapping[str, Any] | None, dims: Mapping[str, int] | None) -> bool:
        """Begin with other inputs and the code compiled before; False where that is for other types.

        For a run in which nothing was set, caught or measured.  Raises the errors of Debugger for its inputs.
        """
        self._bind(inputs, dims)
        if [*map(type_of, self.inputs.values())] != self._types:
            return False
        self.allocation.begin_again()
        self._begin()
        return True

    def release(self) -> None:
        """Drop every value; `begin_anew` gives inputs again."""
        self.inputs = {}
        self.given = {}
        self._instrumentation.unfollow()
        self._running.frames = []
        self._begin()

    def __repr__(self) -> str:
        stop = self.stop
        if stop.reason == "end":
            state = f"ended after {self.machine.tick} statements"
        else:
            op = stop.node.op if stop.node is not None else "return"
            state = f"stopped ({stop.reason}) at line {stop.line}: {op}"
        return printable(f"<Debugger {self.program.summary()}; {state}>")

    def _take_control(self, codes: Sequence[Code], history: int, max_ops: int | None) -> None:
        """Have the machine, which is at its first statement, stop where it should; `codes` are its blocks."""
        program = self.program
        self.timeline: Timeline = Timeline(self.machine, history, self.allocation)
        self.timeline.passed_edits = self._passed_edits
        self.allocation.begin(self.machine, self._house_keeping, self.line_in)
        self._innermost = Values(
            self.machine,
            self.timeline,
            self.line_of,
            self._program_names,
            self.names_in,
            self.listing.prefixes,
            to_host=self.backend.to_host,
            supplied=self._supplied_now,
        )
        self._judge = Judge(self._innermost, self.catches, self.listing_in, self.inputs)
        self.traps = Traps(codes)
        self.control = Control(
            self.machine,
            self.timeline,
            self.traps,
            self._judge.holds,
            lambda judged: self.said(self._judge.message(judged)),
            self._judge.settle,
            self._judge.describe,
        )
        self.control.limit = Limit(max_ops, self.machine) if max_ops is not None else None
        self._placement = Placement(program, self.listing, self.listing_in)
        self._stopping = Stopping(self._placement, self.traps, self._innermost)

    # -- stopping places -------------------------------------------------------------------

    def break_at(
        self,
        *,
        line: int | None = None,
        op: str | None = None,
        graph: str | None = None,
        value: str | None = None,
        source: tuple[str, int] | None = None,
        site: Place | None = None,
        when: str | None = None,
        hits: int | str | None = None,
        log: str | None = None,
        temporary: bool = False,
    ) -> Breakpoint:
        """Stop before a line, before each statement with an op, at a graph's start, or at a value.

        `source` is a file and line of the user's model: every statement that comes from there.
        `site` is one statement, such as (path or code of a block, number of the statement) or (listing
        of a micro program, line there).
        `when` is a condition, `hits` a hit count (``3``, ``">=3"``, ``"%3"``); with `log` the
        message is printed, with ``{expression}`` filled in, and the program goes on.  Raises
        UsageError for a place that does not exist, ExpressionError for a wrong condition.
        """
        asked = {"line": line, "op": op, "graph": graph, "value": value, "source": source, "site": site}
        return self._stopping.add(asked, when, hits, log, temporary)

    @contextmanager
    def breakpoints_together(self) -> Iterator[None]:
        """A context in which changes of breakpoints are collected; they take effect together at its end."""
        with self.traps.together():
            yield

    def origin(self, file: str) -> Mapping[int, Sequence[tuple[Path, int]]]:
        """Return the statements of each line of a source file of the model; empty for other files."""
        return self._placement.origin(file)

    def watch_value(self, value: str, when: str | None = None, hits: int | str | None = None) -> Breakpoint:
        """Stop after each statement that writes `value` (and makes `when` true)."""
        return self._stopping.add({"data": value}, when, hits)

    def watch_expression(
        self, expression: str, when: str | None = None, hits: int | str | None = None
    ) -> Breakpoint:
        """Stop after each statement that changes the result of an expression, such as ``"%h[0, 3]"``.

        The first result is a change, unless it is false.  Raises ExpressionError, and UsageError for an
        element outside of a value whose sizes are known.
        """
        return self._stopping.add({"watch": expression}, when, hits)

    def assert_true(
        self, expression: str, when: str | None = None, hits: int | str | None = None
    ) -> Breakpoint:
        """Stop after each statement that writes a value of an expression and makes it false.

        With ``$out`` it is evaluated after every statement.  Raises ExpressionError, UsageError.
        """
        return self._stopping.add({"assert": expression}, when, hits)

    def delete(self, number: int | None = None) -> None:
        """Delete one breakpoint, or all.  Raises UsageError for an unknown number."""
        self._stopping.delete(number)

    def enable(self, number: int, enabled: bool = True) -> None:
        """Switch a breakpoint on or off."""
        self._stopping.enable(number, enabled)

    def set_condition(self, number: int, when: str | None) -> Breakpoint:
        """Replace the condition of a breakpoint; None removes it.

        Raises UsageError for an unknown number, ExpressionError for a wrong condition.
        """
        return self._stopping.set_condition(number, when)

    def ignore(self, number: int, count: int) -> Breakpoint:
        """Let the next `count` hits of a breakpoint pass.  Raises UsageError for an unknown number."""
        return self._stopping.ignore(number, count)

    def breakpoint(self, number: int) -> Breakpoint:
        """The breakpoint with a number.  Raises UsageError if there is none."""
        return self._stopping.known(number)

    @property
    def breakpoints(self) -> list[Breakpoint]:
        """All breakpoints, in the order of their numbers."""
        return list(self.traps.breakpoints.values())

    def catch(self, *kinds: str, when: str | None = None) -> None:
        """Stop where a NaN (`nan`) or Inf (`inf`) originates, a value overflows, or memory is misused.

        Raises UsageError for an unknown kind, or one that cannot be found here (see `beyond`).
        """
        scope = self.values
        expression = check_condition(scope.read(when)) if when else None
        self._instrumentation.catch(kinds, expression)

    def beyond(self) -> dict[str, tuple[str, str]]:
        """Return the kinds of findings that cannot be found here, each with the reason and an alternative."""
        return self._instrumentation.beyond()

    def catch_only(self, conditions: Mapping[str, Expression | None]) -> None:
        """Catch exactly these kinds, each with its condition if it has one."""
        self._instrumentation.catch_only(conditions)

    def uncatch(self, *kinds: str) -> None:
        """Stop catching these kinds; without arguments, all."""
        self._instrumentation.uncatch(kinds or tuple(self.catches.conditions))

    def follow(self) -> Trail:
        """Have all that is not a number followed from here on: births, where they lead, where they end.

        It stops nothing; what is caught stops as before.
        """
        from nncdbg.engine.diagnosis.diagnosing import Diagnosing
        from nncdbg.engine.diagnosis.trail import Trail

        slots = self.machine.frames[0].slots[1 : 1 + len(self.inputs)]
        trail = Trail(
            self.machine,
            dict(zip(self.inputs, slots, strict=True)),
            self.backend.to_host,
            self.allocation.whole,
            Diagnosing(self._loaded, self.backend.to_host, self.backend.name),
            self._follow_soon,
            lambda: self.timeline.replaying,
        )
        self._instrumentation.follow(trail)
        if trail.start():
            self._instrumentation.begin_following()
        return trail

    def _follow_soon(self, first: Callable[[], None]) -> None:
        """Before the next statement do `first`, and have each one followed from there on."""

        def begin() -> None:
            first()
            self._instrumentation.begin_following()

        self.control.serve(begin)

    def measure(self, wrap: Callable[[Binding, Execute], Execute]) -> None:
        """Have results measured from here on: `wrap` makes of each instruction one that does so.

        It runs after the statistics of the results are logged, and must not change what runs.
        """
        self._instrumentation.measure(wrap)

    def diagnose(
        self, kind: str, statement: Statement, slots: list[Any], output: int = 0
    ) -> Diagnosis | None:
        """Why NaN or Inf (`kind`) originates at a statement, by the slots of its frame; None if it is legal.

        Operands and results must stand in the slots.
        """
        from nncdbg.engine.diagnosis.diagnosing import Diagnosing

        code, pc = statement.code, statement.pc
        result = code.results_of(pc, slots)[output]
        finding = Finding(kind, statement, "", code.operands_of(pc, slots), output, result=result)
        return Diagnosing(self._loaded, self.backend.to_host, self.backend.name)(finding, slots)

    def diagnose_zeros(self, statement: Statement, slots: list[Any], output: int = 0) -> Cause:
        """Return why a result of a statement is all zeros, by the slots of its frame."""
        from nncdbg.engine.diagnosis.explaining import cause_of_zeros

        op, _, operands, results = self._executed(statement, slots)
        names = [statement.code.names[slot] for slot in statement.code.operands[statement.pc]]
        return cause_of_zeros(op, names, operands, results[output])

    def suspicion(self, statement: Statement, slots: list[Any]) -> str:
        """Return what is suspicious about a statement that has run, such as its axis; or nothing."""
        from nncdbg.engine.diagnosis.suspicions import misaligned, suspicion

        op, attributes, operands, results = self._executed(statement, slots)
        if not results or op is None:
            return ""
        reductions = [
            self._reduction(statement.code, slot, slots) for slot in statement.code.operands[statement.pc]
        ]
        return suspicion(op, attributes, operands, results[0]) or misaligned(op, operands, reductions)

    def _reduction(self, code: Code, slot: int, slots: list[Any]) -> tuple[Any, Sequence[int]] | None:
        """Return the array and the axes that a slot was reduced from without `keepdims`, if it was."""
        from nncdbg.engine.diagnosis.suspicions import reduced_axes

        pc = code.definition[slot]
        if pc < 0:
            return None
        op, attributes, operands, _ = self._executed(Statement(code, pc), slots)
        axes = reduced_axes(op, attributes, operands) if op is not None else ()
        return (operands[0], axes) if axes else None

    def _executed(
        self, statement: Statement, slots: list[Any]
    ) -> tuple[Op | None, Mapping[str, Any], list[Any], list[Any]]:
        """Return the op, all attributes, the operands and the results of a statement that has run."""
        from nncdbg.engine.ops import lookup
        from nncdbg.engine.ops.schema import complete, version_of

        node = statement.code.nodes[statement.pc]
        version = version_of(node.op, statement.code.opsets)
        attributes = complete(node.op, version, node.attributes)
        return lookup(node.op, version), attributes, *self._operands_and_results(statement, slots)

    def _operands_and_results(self, statement: Statement, slots: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return what a statement read and wrote, on the host."""
        code, pc = statement.code, statement.pc
        to_host = self.backend.to_host
        return [*map(to_host, code.operands_of(pc, slots))], [*map(to_host, code.results_of(pc, slots))]

    # -- moving ----------------------------------------------------------------------------

    def _moved(self, verb: Verb) -> Stop:
        """Every way of moving comes here."""
        self.control.journey = None
        thread = get_ident()
        nested = thread in Debugger.moving
        if not nested:
            Debugger.moving[thread] = self
        try:
            stop = self._supervised(verb)
        finally:
            if not nested:
                del Debugger.moving[thread]
        self.selected = -1
        self.stop = stop
        return stop

    def _supervised(self, verb: Verb) -> Stop:
        supervisor = Debugger.supervisor
        if supervisor is not None:
            return supervisor(self, verb)
        stop = verb()
        # A kernel may have called `nncdbg.breakpoint`: then its prompt is due at this stop.
        supervisor = Debugger.supervisor
        return stop if supervisor is None else supervisor(self, lambda: stop)

    def proceed(self, journey: Journey) -> Stop:
        """Take up a way forward that a stop broke off (see `Control.journey`), from this place."""
        return self._moved(lambda: self.control.proceed(journey))

    def stop_here(self, numbers: Container[int]) -> Stop | None:
        """The stop that these breakpoints make before the next statement, in a program that has not run yet.

        `run` executes that statement, as it is the one that a user has seen and left behind.
        """
        stop = self.control.stop_here(numbers)
        return None if stop is None else self._moved(lambda: stop)

    def run(self, *, heed: bool = True) -> Stop:
        """Run until something stops the program; `Stop.reason` says what.

        Without `heed` neither breakpoints nor findings stop it.
        """
        self._not_ended()
        return self._moved(lambda: self.control.resume(heed=heed))

    def step_over(self) -> Stop:
        """Execute the next statement, with all it calls."""
        self._not_ended()
        return self._moved(self.control.step_over)

    def step_into(self, *, micro: bool = False) -> Stop:
        """Execute the next statement; enter its graph, branch or loop, and with `micro` its micro program."""
        self._not_ended()
        formula = self.micro_program() if micro else None
        return self._moved(lambda: self.control.step_into(formula))

    def micro_program(self) -> Code | None:
        """The micro program that `step_into` enters from here; None where the next statement has none.

        Raises GraphError for operands that the op cannot take.
        """
        return None if self.machine.ended else self._loaded.formula(self.machine.frames[-1])

    def step_out(self) -> Stop:
        """Run until the innermost frame is left."""
        self._not_ended()
        return self._moved(self.control.step_out)

    def run_to(self, *, line: int) -> Stop:
        """Run until the statement at `line`, or the next one after it, is next."""
        self._not_ended()
        place = self.listing.next_site(line)
        if place is None:
            raise UsageError(f"no statement at or after line {line}")
        site = place[1]

        def there(code: Code) -> bool:
            return code.formula is None and code.path == site.path

        return self._moved(lambda: self.control.run_to(lambda: self._sites(there, site.pc)))

    def move_to(self, there: Callable[[Code], bool], pc: int) -> Stop:
        """Run until statement `pc` of such a block is next; neither breakpoints nor findings stop it before.

        Raises UsageError, the program where it was, if it would end without coming there.
        """
        self._not_ended()
        before = self.machine.tick

        def run_there() -> Stop:
            stop = self.control.run_to(lambda: self._sites(there, pc), heed=False)
            if stop.reason == "end":
                self.control.go_to(before)
                raise UsageError(
                    "the program ends before it reaches this statement",
                    hint="choose an earlier statement; the program has not moved",
                )
            return stop

        return self._moved(run_there)

    def _sites(self, there: Callable[[Code], bool], pc: int) -> list[tuple[Code, int]]:
        return [(code, pc) for code in self.traps.codes if there(code)]

    def last_visit(self, there: Callable[[Code], bool], pc: int) -> int | None:
        """When statement `pc` of such a block was last about to run, for `go_to`.

        None if it was not, as far back as the past is kept.
        """
        return last_visit(self.machine, there, pc)

    def step_back(self, *, micro: bool = False) -> Stop:
        """Undo the last statement of this frame, with all it called.  UsageError at the start.

        With `micro`, if it was taken by its micro program, undo only the end of that.
        """
        return self._moved(lambda: self.control.step_back(into=micro and left_micro_program(self.machine)))

    def step_back_into(self) -> Stop:
        """Undo the last statement executed, wherever it was."""
        return self._moved(lambda: self.control.step_back(into=True))

    def reverse_step_out(self) -> Stop:
        """Go back to the statement that began the innermost frame."""
        return self._moved(self.control.reverse_step_out)

    def reverse_continue(self) -> Stop:
        """Go back to the previous breakpoint hit or caught finding, else to the start."""
        return self._moved(lambda: self.control.reverse_continue(self._judge.settle_before))

    def restart(self) -> Stop:
        """Go back to the first statement of this branch; breakpoints stay.

        Edits of the branch are applied again when the run reaches them.
        """
        return self._moved(lambda: self.control.go_to(0))

    def go_to(self, place: str | int | Mark) -> Stop:
        """Go to a mark, by name, or to the moment after so many statements."""
        if isinstance(place, str):
            place = self.known_mark(place)
        if isinstance(place, Mark):
            return self._moved(lambda: self.control.return_to(place))
        if place < 0:
            raise UsageError("the number of statements must be 0 or more")
        return self._moved(lambda: self.control.go_to(place))

    def pause(self) -> None:
        """Stop before the next statement; to be called from a signal handler or another thread."""
        self.control.pause()

    def forget_pause(self) -> None:
        """A pause that came when the program had stopped anyway is not to stop it again."""
        self.control.paused = False

    def between_statements(self, action: Callable[[], None]) -> None:
        """Have `action` done before the next statement of a run that is under way; from any thread.

        It may read everything, set breakpoints, and set values while the program is `settled`; it must
        not move the program.
        """
        self.control.serve(action)

    @property
    def settled(self) -> bool:
        """False while the program goes to another moment: then values can be neither read nor set."""
        return not (self.control.going_back or self.timeline.replaying)

    def here(self, reason: str) -> Stop:
        """A stop at the place where the program stands."""
        frame = self.machine.frames[-1]
        return self._judge.describe(reason, frame, frame.pc)

    def _not_ended(self) -> None:
        if self.machine.ended:
            raise UsageError("the program has ended", hint="step back, go to a mark, or restart")

    # -- values ----------------------------------------------------------------------------

    @property
    def values(self) -> Values:
        """Names and values as seen from the selected frame."""
        return self.values_at(len(self.machine.frames) - 1 - max(0, self.selected))

    def values_at(self, depth: int) -> Values:
        """Names and values as seen from the frame at `depth`, 0 for the outermost."""
        frame = self.machine.frames[depth]
        pc, done = self.statement_at(depth)
        current = Current.after(frame, pc) if done else Current.before(frame, pc)
        return replace(self._innermost, depth=depth, current=current)

    def statement_at(self, depth: int) -> tuple[int, bool]:
        """(pc, whether it has run) of the current statement of the frame at `depth`.

        That is the next one; or in the frame that the stop is about, the one just run that it is about.
        """
        frame, stop = self.machine.frames[depth], self.stop
        nodes = frame.code.nodes
        ran = stop.frame is frame and stop.node is not None and 0 < frame.pc <= len(nodes)
        if ran and nodes[frame.pc - 1] is stop.node:
            return frame.pc - 1, True
        return frame.pc, False

    @property
    def convenience(self) -> dict[str, Any]:
        """What was defined with `$x = EXPR`, by name without `$`; `_` is the value printed last."""
        return self._innermost.convenience

    def value(self, name: str) -> Array:
        """Return the array at this moment, read-only; `name` may be an unambiguous part of a long name.

        ``$out``, ``$in0`` and other variables of the prompt are names too.  Raises NotComputed before its
        statement has run, ExpressionError for an unknown or ambiguous name.
        """
        return self.values.named(name)[1]

    def __getitem__(self, name: str) -> Tensor:
        """The value at this moment with its name and statistics; errors are those of `value`."""
        name, array = self.values.named(name)
        return Tensor(array, name)

    def stats(self, name: str) -> Summary:
        """The statistics of a value, over its finite elements, with counts of the others."""
        return summarize(self.value(name))

    def evaluate(self, text: str) -> Any:
        """The value of an expression at this moment; `$x = EXPR` also defines a convenience name."""
        scope = self.values
        definition = split_definition(text)
        if definition is None:
            return evaluate(scope.read(text), scope)
        name, value = definition
        result = self.convenience[name] = evaluate(scope.read(value), scope)
        return result

    def set_value(self, name: str, value: Any, index: Any = None, *, scope: Values | None = None) -> Branch:
        """Change a value, or the part at `index`, and compute again what depends on it.

        `value` is an array, a number, a list, or text: ``"zeros"``, ``"normal[2,3]"``, ``"x.npy"``,
        ``"photo.png:/255"``.  `index` is a NumPy index, or text such as ``"0, 2:4"``; `scope` says from which
        frame the name is seen (the selected one, if None).  The run without the edit stays: the branch that
        is returned is the new one.

        The results of the next statement can be set where its op has no kernel (see `awaited`): the statement
        returns them from then on, in every iteration, and the branch is the current one.
        """
        scope = scope or self.values
        name = scope.resolve(name)
        if name in self.awaited:
            self._supply(name, value, index, scope)
            return self.timeline.branches[self.timeline.branch]
        if isinstance(value, str) and (now := type_of(scope.content(name))) and now.dtype != "str":
            value = from_text(name, now, value, self._folder, self._say)
        return change(scope, name, value, index, self.backend.to_device)

    def late_decisions(self) -> list[str]:
        """A sentence for each decision (`if`, `while`, `break`) that the latest edit came too late for."""
        edits = edits_of(self.timeline.edits)
        return late_words(edits[-1], self.line_in) if edits else []

    @property
    def awaited(self) -> tuple[str, ...]:
        """The results of the next statement, if its op has no kernel, so that they can be set."""
        if self.machine.ended:
            return ()
        frame = self.machine.frames[-1]
        code, pc = frame.code, frame.pc
        if not code.runs_kernel(pc):
            return ()
        refused = isinstance(self.stop.error, UnsupportedOp) and self.stop.node is code.nodes[pc]
        if not refused and not self._supplied.has(code, pc):
            return ()
        return tuple(value.name for value in code.nodes[pc].outputs if value.name)

    def _supply(self, name: str, value: Any, index: Any, scope: Values) -> None:
        frame = self.machine.frames[-1]
        code, pc = frame.code, frame.pc
        known = code.types.get(name)
        if isinstance(value, str):
            value = from_text(name, known, value, self._folder, self._say)
        if index is None:
            array = whole_result(name, known, value)
        else:
            if isinstance(index, str):
                index = evaluate_index(parse_index(index, scope.has, scope.names), scope)
            array = edited(name, scope.value(name), value, index)
        output = [each.name for each in code.nodes[pc].outputs].index(name)
        self._supplied.supply(code, pc, output, array)
        self._loaded.linker.link_statement(code, pc)

    def _supplied_now(self, frame: Frame, slot: int) -> Any:
        """A result that was given for the next statement of a frame; UNSET if there is none."""
        name = frame.code.names[slot]
        if frame.code.definition[slot] != frame.pc or not self._supplied.has(frame.code, frame.pc):
            return UNSET
        outputs = [each.name for each in frame.code.nodes[frame.pc].outputs]
        return self._supplied.result(frame.code, frame.pc, outputs.index(name))

    @property
    def outputs(self) -> Outputs | None:
        """The program's results by name; None until it has ended."""
        return self.values.outputs() if self.machine.ended else None

    # -- frames ----------------------------------------------------------------------------

    @property
    def frames(self) -> list[Frame]:
        """The stack, innermost first."""
        return list(reversed(self.machine.frames))

    def line_of(self, frame: Frame, pc: int) -> int | None:
        """The line of a statement of a frame, in the text that `listing_of` gives for it."""
        return self.line_in(frame.code, pc)

    def line_in(self, code: Code, pc: int) -> int | None:
        """The line of a statement of a block."""
        return self.listing_in(code).line(code.path, pc)

    def listing_of(self, frame: Frame) -> Listing:
        """The text that a frame's statements stand in: the program's, or a micro program's."""
        return self.listing_in(frame.code)

    def names_in(self, code: Code) -> ShortNames:
        """The names that are visible in a block, with their short forms."""
        return self.names_of(code).at(code.path)

    def names_of(self, code: Code) -> ProgramNames:
        """The names of the program that a block belongs to: the debugged one, or a micro program."""
        program = code.formula or self.program
        if id(program) not in self._names:
            self._names[id(program)] = program, ProgramNames(program)
        return self._names[id(program)][1]

    def listing_in(self, code: Code) -> Listing:
        """The text that a block's statements stand in."""
        return self._loaded.listing_of(code)

    def mark(self, name: str) -> Mark:
        """Name this moment, for `go_to`."""
        return self.timeline.mark(name)

    def known_mark(self, name: str) -> Mark:
        """The mark with a name.  Raises UsageError if there is none."""
        mark = self.timeline.marks.get(name)
        if mark is None:
            known = ", ".join(self.timeline.marks) or "none"
            raise UsageError(f"there is no mark {name!r}", hint=f"marks: {known}")
        return mark

    def forget_mark(self, name: str) -> None:
        """Remove a mark.  Raises UsageError if there is none."""
        del self.timeline.marks[self.known_mark(name).name]

    def rename_mark(self, name: str, to: str) -> None:
        """Call a mark `to`.  Raises UsageError if there is none, or if another one is called so."""
        mark = self.known_mark(name)
        if to != name and to in self.timeline.marks:
            raise UsageError(f"the mark {to!r} already exists", hint="delete the mark, or use another name")
        self.timeline.rename_mark(mark, to)

    @property
    def problems(self) -> list[str]:
        """What went wrong beside the program: listeners that raised, and so hear no more; oldest first."""
        return self.machine.problems

    @property
    def fallbacks(self) -> list[tuple[int | None, str]]:
        """(line, op) of each statement that ran on NumPy as the backend has no kernel for it."""
        fallen = self._fallback.fallen if self._fallback is not None else []
        return [(self.line_in(each.code, each.pc), each.code.nodes[each.pc].op) for each in fallen]

    # -- what the engine asks ----------------------------------------------------------------

    def explain(self, error: BaseException, frame: Frame, pc: int) -> NncdbgError:
        """The error of a statement on the stack: its place, its operands, where their sizes come from."""
        return self._judge.explain(error, frame, pc)

    def _code_arrived(self, code: Code) -> None:
        self._stopping.reach(code)
        self.control.blocks_arrived()

    def _passed_edits(self, edits: Sequence[Edit], again: bool) -> None:
        places = [f"%{each.name} at line {self.line_in(each.at.code, each.at.pc)}" for each in edits]
        count = "1 edit" if len(edits) == 1 else f"{len(edits)} edits"
        text = f"{count} re-applied: {', '.join(places)}"
        if not again:
            text = f"{count} of branch {self.timeline.branch} will be re-applied: {', '.join(places)}"
            text += f"; `branch {self.timeline.without(edits[0])}` returns to the run without it"
        self._say(text)

    def _say(self, text: str) -> None:
        frame = self.machine.frames[-1]
        self.said(LogMessage(text, frame, self.line_of(frame, frame.pc)))

    def _house_keeping(self) -> None:
        if self.timeline.over_budget:
            self.control.serve()

    def _found(self, finding: Finding) -> None:
        if self._instrumentation.trail is not None:
            self._instrumentation.trail.found(finding)
        if self._judge.concerns(finding):
            self.control.found(finding)
