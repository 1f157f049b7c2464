"""The debugger's facade: one class with all debugger verbs.

The terminal, the protocol server and scripts translate into these calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from nncdbg.engine.backends import Backend, backend_for
from nncdbg.engine.backends.kernel_choice import KernelChoice
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.compilation.effects import inputs_like_states
from nncdbg.engine.compilation.partial import Part, partial_run, used_inputs
from nncdbg.engine.compilation.states import given_states, lowered, states_with_buffers
from nncdbg.engine.compilation.tracked_values import check_data, tracked_lines
from nncdbg.engine.diagnosis.entering import Entering
from nncdbg.engine.diagnosis.instrumentation import allocation_on
from nncdbg.engine.differentiation.expansion import with_backward_graphs
from nncdbg.engine.execution.findings import HOST_READ, Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.execution.machine import Limit
from nncdbg.engine.execution.undo_log import last_visit, left_micro_program
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.inputs.binding import Note, bind
from nncdbg.engine.inputs.consumers import Consumers
from nncdbg.engine.launch import CompiledProgram
from nncdbg.engine.memory import parse_bytes
from nncdbg.engine.stopping.breakpoints import Breakpoint, Place, Traps
from nncdbg.engine.stopping.control import Control
from nncdbg.engine.stopping.judging import Judge
from nncdbg.engine.stopping.place_names import PlaceNames
from nncdbg.engine.stopping.placement import BreakpointPlaces, Breakpoints, SourceNames
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.stopping.supervision import PROCESS, Supervision
from nncdbg.engine.time.timeline import Branch, Mark, Timeline
from nncdbg.engine.tracking.tracking import Tracking
from nncdbg.engine.values.current import Current
from nncdbg.engine.values.differentiation import Differentiation
from nncdbg.engine.values.editing import change
from nncdbg.engine.values.new_values import Awaited, from_text
from nncdbg.engine.values.tensor import Tensor
from nncdbg.engine.values.values import Outputs, Values
from nncdbg.errors import NotComputed, UnsupportedOp, UsageError
from nncdbg.escaping import printable
from nncdbg.expression import (
    check_condition,
    evaluate,
    split_definition,
)
from nncdbg.ir.records import Array, Program, type_of
from nncdbg.ir.streams import stream_states
from nncdbg.process.collector import collector_paused
from nncdbg.representation import RichOutput
from nncdbg.stats import Summary, summarize
from nncdbg.stats.series import TrackedSeries
from nncdbg.text.counting import counted
from nncdbg.text.listing import Site

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.diagnosing import Diagnosing
    from nncdbg.engine.diagnosis.retracing import Retracing, Traced
    from nncdbg.engine.execution.crash_log import CrashLog
    from nncdbg.engine.observers.oracle import MicroCheck
    from nncdbg.engine.observers.statement_times import StatementTimes


class Debugger(RichOutput):
    """A program, stopped at its first statement.

    * `program`: a Program, the path of a file or a program folder, or an `onnx.ModelProto`.  A program folder
      supplies its inputs, and the backend, `fallback`, `allocator`, `seed` and `max_ops` if not given.
    * `inputs`: arrays, numbers, lists, or text such as ``"x.npy"`` and ``"zeros"``, by input name.  Inputs
      that are not given are drawn at random from `seed`; `notes` reports them.  The name of a state gives its
      first value, in place of its data.
    * `dims`: symbolic sizes by name.
    * `backend`: the kernels to run: the name of a backend (`nncdbg.extensions`), or a Backend.  An
      op without a kernel fails, or runs on NumPy with `fallback` (see `loaded.fallbacks`).
    * `kernels`: the backends of single statements, by op (``{"Conv": "torch"}``), value (``"%h"``,
      ``"@layer.%h"``) or line (``"12"``); a line decides before a value, and a value before an op.
      `loaded.kernels()` lists the kernel of each statement.
    * `allocator`: ``"debug"`` (the default), ``"arena"``, ``"poison"``, ``"plain"`` (the default
      on a device), or an Allocation.
    * `outputs`: names of values to compute; only the statements that they need run, at their usual lines, and
      a value of the program among the `inputs` replaces its statement.  Default: all statements run.
    * `history`: the bytes that old values may use, a number or text such as ``"4GiB"``; default: a
      quarter of RAM, or of the memory of a smaller device.  0 drops each value right after its last use, for
      the fastest run with the least memory; a step back is a replay.
    * `statistics`: log the summary of every result.
    * `check`: ``"micro"`` runs micro programs beside the kernels (see `micro`).
    * `max_ops`: stop after this many statements, and again after each further `max_ops`.
    * `in_place_states`: an `update` writes into the memory of the old value of a state, as training runtimes
      do; later reads of the old value are findings.  The allocator is ``"arena"`` (the default) or
      ``"poison"``, and a step back is a replay.
    * `folder`: the folder of the files named in `inputs`; default: the current one.
    * `compiled`: the compiled code of an earlier run (`loaded`), used if the inputs have the same types.
    * `black_box`: records the running statement, in case a kernel ends the process.
    * `supervision`: moves the program (see `nncdbg.listen`).

    Raises GraphError, LoadError or UsageError for a program or inputs that cannot run.
    """

    notes: list[Note]
    """The choices made for sizes and inputs that were not given."""
    stop: Stop
    """The latest stop."""
    selected: int
    """The number of the frame that the user selected, 0 for the innermost; -1 if none."""

    @collector_paused()
    def __init__(
        self,
        program: ProgramSource,
        inputs: Mapping[str, Any] | None = None,
        *,
        backend: str | Backend | None = None,
        fallback: bool | None = None,
        kernels: Mapping[str, str] | None = None,
        allocator: str | Allocation | None = None,
        dims: Mapping[str, int] | None = None,
        seed: int | None = None,
        outputs: Sequence[str] | None = None,
        history: int | str | None = None,
        statistics: bool = True,
        check: str | None = None,
        max_ops: int | None = None,
        in_place_states: bool = False,
        folder: FilePath | None = None,
        compiled: CompiledProgram | None = None,
        black_box: CrashLog | None = None,
        supervision: Supervision = PROCESS,
    ) -> None:
        program = load(program)
        self.program = program
        self.backend = backend_for(program, backend)
        arguments = program.saved.completed(
            fallback=fallback, allocator=allocator, seed=seed, max_ops=max_ops
        )
        program = with_backward_graphs(program)
        states = given_states(program, inputs)
        whole = lowered(program, given=states)
        given = program.saved.completed_inputs(inputs, whole.graph)

        def part(whole: Program) -> Part:
            named = given if isinstance(given, Mapping) else ()
            return partial_run(program, whole, outputs, named)

        tracked = tracked_lines(program)
        check_data(tracked, given, program.as_listing())
        runs = part(whole).program
        used, unused = used_inputs(whole, runs, given)
        self.inputs = bind(
            runs.graph,
            used,
            dims,
            arguments["seed"],
            folder=folder,
            consumers=Consumers(runs, runs.as_listing().line),
        )
        """The arrays by name; `dims`, `seed` and `given` are the sizes, the seed and the inputs as given."""
        self.notes = [*map(Note, program.notes), *map(Note, unused), *self.inputs.notes]
        if compiled is None or not compiled.accepts(self.inputs):
            in_place = states_with_buffers(program) if in_place_states else frozenset()
            if in_place_states and not in_place:
                self.notes.append(Note("no state is overwritten in place: the program updates no state"))
            allocation = allocation_on(self.backend, arguments["allocator"], in_place)
            compiled = CompiledProgram(
                part(lowered(program, self.inputs.samples, states)),
                self.backend,
                allocation,
                arguments["seed"],
                arguments["fallback"],
                statistics,
                black_box,
                [state.value.name for state in program.states],
                tracked,
                KernelChoice(kernels, whole, self.backend) if kernels else None,
            )
            if check is not None:
                compiled.observers.check(check, lambda: self.timeline.replaying)
            if black_box is not None:
                self.notes = [*map(Note, black_box.begin(program, self.backend)), *self.notes]
        self.loaded = compiled
        self.observers = compiled.observers
        self._folder, self._tracked = folder, tracked
        self._supervision = supervision
        device = self.backend.device_bytes(self.inputs.values())
        self.finding_listeners: list[Callable[[Finding], None]] = []
        """Called with each finding of the run, whether it stops the program or not."""
        self._begin(parse_bytes(history, device), arguments["max_ops"])

    def __repr__(self) -> str:
        stop = self.stop
        if stop.reason == "end":
            state = f"ended after {counted(self.timeline.tick, 'statement')}"
        else:
            op = stop.node.op if stop.node is not None else "return"
            state = f"stopped ({stop.reason}) at line {stop.line}: {op}"
        return printable(f"<Debugger {self.program.summary()}; {state}>")

    def _begin(self, history: int, max_ops: int | None) -> None:
        """Create the machine at the first statement, and the objects that move and inspect it."""
        loaded = self.loaded
        loaded.linker.evict(history == 0)
        machine = loaded.begin(self.inputs)
        # The tracks read values before the allocation frees them.
        self.tracking = Tracking(self._tracked, loaded, machine, lambda text: self.control.say(text))
        self.timeline: Timeline = Timeline(machine, history, loaded.allocation)
        loaded.times.attach(machine, lambda: self.timeline.replaying)
        self.tracking.timeline = self.timeline
        self._awaited = Awaited(
            loaded.linker, loaded.user_results, self._folder, lambda text: self.control.say(text)
        )
        self._innermost = Values(
            machine,
            self.timeline,
            loaded.line,
            loaded.names,
            loaded.names_in,
            loaded.listing.prefixes,
            Differentiation(loaded),
            frozenset(state.value.name for state in self.program.states),
            hiding=inputs_like_states(with_backward_graphs(self.program)),
            to_host=self.backend.to_host,
            supplied=self._awaited.content,
        )
        traps = Traps(loaded.codes, source_names := SourceNames(loaded.program))
        judge = Judge(
            self._innermost,
            traps,
            self.observers.catches,
            self.observers.resets,
            self.observers.races,
            loaded.listing_of,
            self.inputs,
            Entering(self.retracing, self.backend.to_host),
        )
        self.control = Control(machine, self.timeline, traps, judge, loaded.formula)
        loaded.allocation.begin(machine, self.control.check_budget, loaded.line)
        self.control.limit = Limit(max_ops, machine) if max_ops is not None else None
        named = PlaceNames(loaded.program, self._innermost.find)
        placement = BreakpointPlaces(loaded.program, loaded.listing, loaded.listing_of, named, source_names)
        self.breakpoints = Breakpoints(placement, traps, self._innermost)
        self._reads_said: set[tuple[int, Code, int]] = set()
        """Branch, block and number of each host read that was reported."""
        loaded.arrived, loaded.found = self._code_arrived, self._found
        self.selected = -1
        self.stop = self.control.here("entry")

    # -- breakpoints -----------------------------------------------------------------------

    def break_at(
        self,
        name: str | None = None,
        *,
        line: int | None = None,
        op: str | None = None,
        graph: str | None = None,
        value: str | None = None,
        node: str | None = None,
        source: tuple[str, int] | None = None,
        site: Place | None = None,
        when: str | None = None,
        hits: int | str | None = None,
        log: str | None = None,
        temporary: bool = False,
    ) -> Breakpoint:
        """Stop before a line, each statement with an op or of a node, at a graph's start, or at a value.

        `name` is the name of any of these.  Names can be parts that only one place has, or patterns with `*`.
        `source` is a file and line of the user's model: stop at every statement of that line.
        `site` is one statement, such as (path or code of a block, number of the statement) or (listing
        of a micro program, line there).
        `when` is a condition, `hits` a hit count (``3``, ``">=3"``, ``"%3"``).  With `log`, print the message
        with each ``{expression}`` evaluated, and continue.  Raises UsageError for a place that does not
        exist, ExpressionError for an invalid condition.
        """
        asked: dict[str, Any] = {
            "name": name,
            "line": line,
            "op": op,
            "graph": graph,
            "value": value,
            "node": node,
        }
        asked.update(source=source, site=site)
        return self.breakpoints.add(asked, when, hits, log, temporary)

    def watch_value(self, value: str, when: str | None = None, hits: int | str | None = None) -> Breakpoint:
        """Stop after each statement that writes `value` (and makes `when` true)."""
        return self.breakpoints.add({"data": value}, when, hits)

    def delete(self, number: int | None = None) -> None:
        """Delete one breakpoint, or all.  Raises UsageError for an unknown number."""
        self.breakpoints.delete(number)

    def catch(self, *kinds: str, when: str | None = None) -> None:
        """Stop where a NaN (`nan`) or Inf (`inf`) originates, a value overflows, or memory is misused.

        Raises UsageError for a kind that is unknown or not available here (see `observers.beyond`).
        """
        names = self.breakpoints.placement.source.bound
        expression = check_condition(self.values.read(when, names)) if when else None
        self.observers.catch(kinds, expression, self.control.stack[0].slots)

    def uncatch(self, *kinds: str) -> None:
        """Stop catching these kinds; without arguments, all."""
        self.observers.uncatch(kinds or tuple(self.observers.catches.conditions))

    # -- moving ----------------------------------------------------------------------------

    def move(self, verb: Callable[..., Stop], *arguments: Any) -> Stop:
        """Move the program by ``verb(*arguments)``, such as `control.proceed`.

        Every method that moves the program calls this one.
        """
        self.control.journey = None
        stop = self._supervision.move(self, partial(verb, *arguments))
        self.tracking.fetch()
        self.selected = -1
        self.stop = stop
        return stop

    def run(self, *, heed: bool = True) -> Stop:
        """Run until something stops the program; `Stop.reason` is the cause.

        Without `heed`, ignore breakpoints and findings.
        """
        self.control.check_not_ended()
        return self.move(lambda: self.control.resume(heed=heed))

    def step_over(self) -> Stop:
        """Execute the next statement, including its calls."""
        self.control.check_not_ended()
        return self.move(self.control.step_over)

    def step_stream(self, stream: int) -> Stop:
        """Run until the next statement of a stream (-1: the host) in this frame has been executed.

        Stops earlier for another reason, and where the frame returns.
        """
        frame = self.frames[0]
        states = stream_states(self.program, frame.code.graph, frame.pc)
        state = next((each for each in states if each.number == stream), None)
        stop = self.step_over()
        target = frame.pc if state is None or state.pc is None else state.pc
        while stop.reason == "step" and self.frames[0] is frame and frame.pc <= target:
            stop = self.step_over()
        return stop

    def step_into(self, *, micro: bool = False) -> Stop:
        """Execute the next statement; enter its graph, branch or loop, and with `micro` its micro program."""
        self.control.check_not_ended()
        formula = self.control.micro_program() if micro else None
        return self.move(self.control.step_into, formula)

    def step_out(self) -> Stop:
        """Run until the innermost frame returns."""
        self.control.check_not_ended()
        return self.move(self.control.step_out)

    def run_to(self, name: str | None = None, *, line: int | None = None) -> Stop:
        """Run until a statement of a place is next, or the first one at or after `line`.

        `name` is that of `break_at`.
        """
        self.control.check_not_ended()
        asked: tuple[str, Any] = ("line", line) if name is None else ("name", name)
        return self.run_to_lines(self.breakpoints.lines(*asked))

    def run_to_lines(self, lines: Iterable[int]) -> Stop:
        """Run until the statement on one of these lines of the program is next."""
        sites = [site for line in lines if (site := self.loaded.listing.site(line)) is not None]

        def inside(site: Site, code: Code) -> bool:
            return code.formula is None and code.path == site.path

        def reached() -> list[tuple[Code, int]]:
            return [each for site in sites for each in self.control.sites(partial(inside, site), site.pc)]

        return self.move(lambda: self.control.run_to(reached))

    def step_back(self, *, micro: bool = False) -> Stop:
        """Undo the last statement of this frame, including its calls.  Raises UsageError at the start.

        With `micro`, undo only the return from its micro program, if the statement ran by one.
        """
        return self.move(
            lambda: self.control.step_back(into=micro and left_micro_program(self.control.machine))
        )

    def step_back_into(self) -> Stop:
        """Undo the last executed statement, in whatever frame it ran."""
        return self.move(lambda: self.control.step_back(into=True))

    def reverse_step_out(self) -> Stop:
        """Go back to the statement that began the innermost frame."""
        return self.move(self.control.reverse_step_out)

    def reverse_continue(self) -> Stop:
        """Go back to the previous breakpoint hit or caught finding, else to the start."""
        return self.move(self.control.reverse_continue)

    def restart(self) -> Stop:
        """Go back to the first statement of this branch; keep breakpoints.

        Edits of the branch are applied again when the run reaches them.
        """
        return self.move(self.control.go_to, 0)

    def go_to(self, place: str | int | Mark) -> Stop:
        """Go to a mark, by name, or to the moment after this many statements."""
        if isinstance(place, str):
            place = self.timeline.find_mark(place)
        if isinstance(place, Mark):
            return self.move(self.control.return_to, place)
        if place < 0:
            raise UsageError("the number of statements must be 0 or more")
        return self.move(self.control.go_to, place)

    def go_to_line(self, line: int) -> Stop:
        """Go to the first statement at or after a line, without a stop on the way.

        Go back to its last execution; if it has none, or is ahead in a running graph, run forward to it.
        Raises UsageError if the program would end first.
        """
        site = self.loaded.listing.site(self.breakpoints.lines("line", line)[0])
        assert site is not None

        def there(code: Code) -> bool:
            return code.formula is None and code.path == site.path

        last = last_visit(self.control.machine, there, site.pc)
        within = [frame for frame in self.control.stack if there(frame.code)]
        ahead = bool(within) and within[-1].pc < site.pc and not self.ended
        if last is None or ahead:
            return self.move(self.control.move_to, there, site.pc)
        return self.go_to(last)

    def pause(self) -> None:
        """Stop before the next statement; call it from a signal handler or another thread."""
        self.control.pause()

    # -- values ----------------------------------------------------------------------------

    @property
    def values(self) -> Values:
        """Names and values visible in the selected frame."""
        return self.values_at(len(self.control.stack) - 1 - max(0, self.selected))

    def values_at(self, depth: int) -> Values:
        """Return the names and values visible in the frame at `depth`, 0 for the outermost."""
        frame = self.control.stack[depth]
        pc, done = self.stop.statement_in(frame)
        current = Current.after(frame, pc) if done else Current.before(frame, pc)
        return replace(self._innermost, depth=depth, current=current, aliases=self.loaded.aliases)

    def value(self, name: str) -> Array:
        """Return the array at this moment, read-only; `name` may be an unambiguous part of a long name.

        ``$out``, ``$in0`` and other variables of the prompt are names too.  Raises NotComputed before its
        statement has run, ExpressionError for an unknown or ambiguous name.
        """
        return self.values.named(name)[1]

    def __getitem__(self, name: str) -> Tensor:
        """Return the value at this moment with its name and statistics; raises as `value` does."""
        name, array = self.values.named(name)
        return Tensor(array, name)

    def stats(self, name: str) -> Summary:
        """Return the statistics of a value over its finite elements, with counts of the others."""
        return summarize(self.value(name))

    def evaluate(self, text: str) -> Any:
        """Return the value of an expression at this moment; `$x = EXPR` also defines a variable."""
        scope = self.values
        definition = split_definition(text)
        if definition is None:
            return evaluate(scope.read(text), scope)
        name, value = definition
        result = scope.convenience[name] = evaluate(scope.read(value), scope)
        return result

    def set_value(self, name: str, value: Any, index: Any = None, *, scope: Values | None = None) -> Branch:
        """Change a value, or the part at `index`, and recompute the values that depend on it.

        `value` is an array, a number, a list, or text: ``"zeros"``, ``"normal[2,3]"``, ``"x.npy"``,
        ``"photo.png:/255"``.  `index` is a NumPy index, or text such as ``"0, 2:4"``.  `scope` is the frame
        in which the name is looked up (None: the selected one).  Return the new branch; the run without the
        edit is kept.

        If the next statement's op has no kernel, its results can be set (see `awaited`): the statement then
        returns them in every iteration, and the current branch is returned.
        """
        scope = scope or self.values
        name = scope.resolve(name)
        # The numbers of the steps so far belong to the branch that the edit leaves.
        self.tracking.fetch()
        if name in self.awaited:
            self._awaited.set(name, value, index, scope)
            return self.timeline.branches[self.timeline.branch]
        if isinstance(value, str) and (now := type_of(scope.content(name))) and now.dtype != "str":
            value = from_text(name, now, value, self._folder, self.control.say)
        return change(scope, name, value, index, self.backend.to_device)

    @property
    def awaited(self) -> tuple[str, ...]:
        """Return the results of the next statement that can be set because its op has no kernel."""
        if self.ended:
            return ()
        frame = self.control.stack[-1]
        code, pc = frame.code, frame.pc
        failed = isinstance(self.stop.error, UnsupportedOp) and pc < len(code.nodes)
        return self._awaited.names(code, pc, failed and self.stop.node is code.nodes[pc])

    @property
    def outputs(self) -> Outputs | None:
        """The program's results by name; None until it has ended."""
        return self.values.outputs() if self.ended else None

    @property
    def states(self) -> dict[str, Array]:
        """The present values of the program's states by name, without those that have no value yet."""
        values = self.values_at(len(self.control.stack) - 1)
        found = {}
        for state in self.program.states:
            with suppress(NotComputed):
                found[state.value.name] = values.to_host(values.content(state.value.name))
        return found

    @property
    def tracks(self) -> list[TrackedSeries]:
        """The numbers of the program's ``track`` lines, up to this moment of this branch."""
        return self.tracking.series

    # -- frames ----------------------------------------------------------------------------

    @property
    def frames(self) -> list[Frame]:
        """The stack, innermost first."""
        return list(reversed(self.control.stack))

    @property
    def ended(self) -> bool:
        """Whether the entry graph has returned."""
        return self.control.machine.ended

    @property
    def diagnosis(self) -> Diagnosing:
        """Finds causes of NaN, Inf and zeros."""
        from nncdbg.engine.diagnosis.diagnosing import Diagnosing

        return Diagnosing(self.loaded)

    def retracing(self, between: Callable[[], None] = lambda: None) -> Retracing:
        """Return an object that finds the origins of NaN and Inf in the values of this moment.

        `between` is called before each value is read.
        """
        from nncdbg.engine.diagnosis.retracing import Retracing

        return Retracing(self.loaded, self.timeline, between)

    def traced_value(self, name: str) -> list[Traced]:
        """Return the origins of the NaN and Inf in a value, the earliest first.  Raises as `value` does."""
        place, retracing = self.values.place(name), self.retracing()
        return retracing.origins(retracing.slicing.visit_of(place), [place.slot])

    def traced_finding(self, between: Callable[[], None] = lambda: None) -> list[Traced]:
        """Return the origins behind the finding that stopped the program; empty at other stops."""
        stop = self.stop
        if stop.finding is None or stop.frame is None:
            return []
        retracing = self.retracing(between)
        return retracing.finding(retracing.slicing.visit_of_frame(stop.frame), stop.finding)

    def mark(self, name: str) -> Mark:
        """Name this moment, for `go_to`."""
        return self.timeline.mark(name)

    @property
    def micro(self) -> MicroCheck | None:
        """The comparison of kernels with their micro programs; None without ``check="micro"``."""
        return self.observers.micro

    @property
    def times(self) -> StatementTimes:
        """The durations of statements; ``times.measure(True)`` starts the measurement."""
        return self.loaded.times

    # -- called by the engine ----------------------------------------------------------------

    def _code_arrived(self, code: Code) -> None:
        self.breakpoints.reach(code)
        self.control.blocks_arrived()

    def _found(self, finding: Finding) -> None:
        if finding.kind == HOST_READ:
            self._say_once(finding)
            return
        for listener in self.finding_listeners:
            listener(finding)
        if self.observers.trail is not None:
            self.observers.trail.found(finding)
        if self.control.judge.concerns(finding):
            self.control.found(finding)

    def _say_once(self, finding: Finding) -> None:
        """Send the message about a changed host read, the first time on each branch."""
        at, timeline = finding.binding, self.timeline
        key = (timeline.branch, at.code, at.pc)
        if not timeline.replaying and key not in self._reads_said:
            self._reads_said.add(key)
            self.control.say(f"line {self.loaded.line(at.code, at.pc)}: {finding.detail}", at)
