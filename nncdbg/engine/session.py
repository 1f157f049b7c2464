"""The debugger as its users see it: one facade with the verbs of a debugger.

Terminal, protocol server and scripts only translate into these calls.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from nncdbg.engine.backends import Backend
from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.backends.fallback import Fallback
from nncdbg.engine.breakpoints import Breakpoint, Place, hit_rule
from nncdbg.engine.budget import parse_bytes
from nncdbg.engine.catching import Catches, holds_any
from nncdbg.engine.code import Code, Path, Statement
from nncdbg.engine.collector import collector_paused
from nncdbg.engine.control import Control, Journey, Judged, LogMessage, Stop
from nncdbg.engine.editing import apply_edit, edited
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.explanation import explained, size_origins
from nncdbg.engine.expression import Expression, condition, evaluate, evaluate_index, parse, parse_index
from nncdbg.engine.findings import Finding, Report
from nncdbg.engine.graph import Array, Program
from nncdbg.engine.inputs import Note, bind
from nncdbg.engine.launch import Loaded, generator_of
from nncdbg.engine.limit import Limit
from nncdbg.engine.linking import Allocation, Linker, walk
from nncdbg.engine.machine import Frame, Machine, Running
from nncdbg.engine.memory import allocation
from nncdbg.engine.observation import Observer
from nncdbg.engine.placement import Placement, braced
from nncdbg.engine.search import candidates, constant_names
from nncdbg.engine.statistics_log import StatisticsLog
from nncdbg.engine.timeline import Branch, Mark, Timeline
from nncdbg.engine.values import Values, copied, read_only
from nncdbg.engine.visits import last_visit
from nncdbg.stats import Summary, summarize
from nncdbg.textual_repr.listing import Listing
from nncdbg.textual_repr.printer import listing as printed_listing

if TYPE_CHECKING:
    from nncdbg.engine.black_box import BlackBox
    from nncdbg.engine.oracle import MicroCheck


Verb: TypeAlias = "Callable[[], Stop]"
"""One way of moving a program, with all that it needs to know."""


class Debugger:
    """A program, stopped at its first statement.

    `inputs` maps input names to arrays, scalars, or specs such as ``"x.npy"`` and ``"zeros"``;
    what is not given is drawn at random from `seed` (see `notes`).  `dims` gives symbolic
    sizes.  `backend` says whose kernels run: numpy, onnxruntime or cupy, or a Backend; what it has no
    kernel for fails, or with `fallback` runs on NumPy (see `fallbacks`).  `allocator` is debug, arena,
    poison or plain, or an Allocation (debug if None; plain on a device, whose memory is its own);
    `history` is the budget in bytes for old values (a number, or text such as ``"4GiB"``; a quarter of
    RAM if None); `statistics` logs the summary of every result.  `check` "micro" runs micro programs
    beside the kernels (see `micro`); `max_ops` stops after so many statements, and again after as many
    more.  In `black_box` stands what ran if a kernel takes the process with it.

    Raises GraphError, LoadError or UsageError for a program or inputs that cannot run.
    """

    supervisor: ClassVar[Callable[[Debugger, Verb], Stop] | None] = None
    """Moves every debugger of the process by a verb of its user's, where somebody attaches to them."""

    def __init__(
        self,
        program: Program,
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
        self.program = program
        self.seed = seed
        self.listing: Listing = program.listing or printed_listing(program, locations=False)
        self.catches = Catches()
        self.messages: list[str] = []
        """What logpoints printed, oldest first, as long as nobody else takes it (see `said`)."""
        self.said: Callable[[LogMessage], None] = lambda message: self.messages.append(message.text)
        """Takes each message of a logpoint when it is made, on the thread that moves the program."""
        graph = program.graphs[program.entry]
        bound = bind(graph, inputs, dims, seed, folder=folder)
        self.inputs = bound.arrays
        self.dims = bound.dims
        self.notes = bound.notes
        self.backend = backend_of(backend)
        self.allocation = _allocation_for(self.backend, allocator)
        self.log, self._observer = _statistics_on(self.backend, self._found, statistics)
        self.allocation.connect(self._found, self.log)
        running = Running()
        self._fallback = Fallback(self.backend) if fallback else None
        self._linker = Linker(self.backend, self.allocation, generator_of(running, seed), self._fallback)
        self._loaded = Loaded(program, self.listing, self._linker, self._code_arrived)
        self.black_box = black_box
        if black_box is not None:
            self.notes = [*map(Note, black_box.begin(program, self.backend)), *self.notes]
            self._linker.record = lambda kernels, op, code, pc: black_box.cover(
                kernels, op, code, pc, self.line_in(code, pc), running
            )
        self._codes: list[Code] = []
        self._breakpoints: dict[int, Breakpoint] = {}
        self._placement = Placement(program, self.listing, self.listing_in)
        self._link_observers(first=True)
        self.micro = self._micro_check(check)
        with collector_paused():
            entry = self._loaded.entry(list(bound.arrays.values()))
        placed = [self.backend.to_device(array) for array in bound.arrays.values()]
        self.machine = Machine(entry, placed, self._loaded.call, running)
        self.timeline = Timeline(self.machine, parse_bytes(history), self.allocation)
        self.allocation.begin(self.machine, self._house_keeping, self.line_in)
        self.control = Control(
            self.machine, self.timeline, self._holds, self._log_point, self._settle, self._describe
        )
        self.control.limit = Limit(max_ops, self.machine) if max_ops is not None else None
        self.control.codes = self._codes
        self.control.breakpoints = self._breakpoints
        self._numbers = 0
        self._names = frozenset(candidates(program, "value") | constant_names(program))
        self.selected = -1
        self.stop: Stop = self._describe("entry", self.machine.frames[-1], 0)

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
        chosen = [
            (k, v)
            for k, v in (
                ("line", line),
                ("op", op),
                ("graph", graph.lstrip("@") if graph is not None else None),
                ("value", self._written(value) if value is not None else None),
                ("source", f"{source[0]}:{source[1]}" if source is not None else None),
                ("site", _site_words(site) if site is not None else None),
            )
            if v is not None
        ]
        if len(chosen) != 1:
            raise UsageError(
                "a breakpoint is at one of line, op, graph, value, source or site", hint="break_at(line=12)"
            )
        kind, target = chosen[0]
        return self._add(kind, str(target), when, hits, log, temporary, site)

    @contextmanager
    def breakpoints_together(self) -> Iterator[None]:
        """Breakpoints set and deleted meanwhile take effect at the end, all at once: quick for many."""
        with self.control.together():
            yield

    def origin(self, file: str) -> Mapping[int, Sequence[tuple[Path, int]]]:
        """Per line of a file of the user's model the statements from there; none for other files."""
        return self._placement.origin(file)

    def watch_value(self, value: str, when: str | None = None, hits: int | str | None = None) -> Breakpoint:
        """Stop after each statement that writes `value` (and makes `when` true)."""
        return self._add("data", self._written(value), when, hits, None, False)

    def _written(self, value: str) -> str:
        return _bare(value, self._names.__contains__)

    def _add(
        self,
        kind: str,
        target: str,
        when: str | None,
        hits: int | str | None,
        log: str | None,
        temporary: bool,
        place: Place | None = None,
    ) -> Breakpoint:
        scope = self.values
        expression = parse(when, scope.has, scope.names) if when else None
        rule = str(hits) if hits is not None else None
        if rule is not None:
            hit_rule(rule)
        for part in braced(log or ""):
            parse(part, scope.has, scope.names)
        found = Breakpoint(self._numbers + 1, kind, target, expression, rule, log, temporary, place)
        self._placement.bind(found, self._codes)
        self._numbers += 1
        self.control.breakpoints[found.number] = found
        self.control.rearm()
        return found

    def _code_arrived(self, code: Code) -> None:
        arrived = list(walk(code))
        running = bool(self._codes)
        self._codes.extend(arrived)
        if self._breakpoints:
            for found in self._breakpoints.values():
                for each in arrived:
                    self._placement.bind_in(found, each)
            self.control.rearm()
        if running:
            self.control.blocks_arrived()

    def delete(self, number: int | None = None) -> None:
        """Remove one breakpoint, or all.  Raises UsageError for a number that is not there."""
        if number is None:
            self.control.breakpoints.clear()
        else:
            self.breakpoint(number)
            del self.control.breakpoints[number]
        self.control.rearm()

    def enable(self, number: int, enabled: bool = True) -> None:
        """Switch a breakpoint on or off."""
        self.breakpoint(number).enabled = enabled
        self.control.rearm()

    def breakpoint(self, number: int) -> Breakpoint:
        found = self.control.breakpoints.get(number)
        if found is None:
            raise UsageError(f"there is no breakpoint {number}", hint="`info breakpoints` lists them")
        return found

    @property
    def breakpoints(self) -> list[Breakpoint]:
        return list(self.control.breakpoints.values())

    def catch(self, *kinds: str, when: str | None = None) -> None:
        """Stop when a NaN is born (`nan`), an Inf (`inf`), a value overflows, memory is misused.

        Raises UsageError for a kind that is none, or that cannot be found here (see `beyond`).
        """
        scope = self.values
        expression = parse(when, scope.has, scope.names) if when else None
        beyond = self.beyond()
        for kind in kinds:
            if kind in beyond:
                why, hint = beyond[kind]
                raise UsageError(why, hint=hint)
            self.catches.add(kind, expression)
        self._link_observers()

    def beyond(self) -> dict[str, tuple[str, str]]:
        """The kinds of findings that cannot be found here, each with why, and what would find it."""
        found = {}
        if self.micro is None:
            found["micro"] = "micro programs do not run beside the kernels", "--check micro runs them"
        if not self.allocation.inspects:
            why = f"the allocator {self.allocation.name} does not watch over memory"
            hint = "debug, arena and poison do"
            if not self.backend.on_host:
                hint += f", with another backend than {self.backend.name}"
            found |= dict.fromkeys(("uninitialized", "guard"), (why, hint))
        return found

    def catch_only(self, conditions: Mapping[str, Expression | None]) -> None:
        """Catch exactly these kinds, each with its condition if it has one."""
        if self.catches.conditions != conditions:
            self.catches.conditions = dict(conditions)
            self._link_observers()

    def uncatch(self, *kinds: str) -> None:
        """Stop no more for these kinds; for none, if none is given."""
        for kind in kinds or tuple(self.catches.conditions):
            self.catches.conditions.pop(kind, None)
        self._link_observers()

    def _link_observers(self, first: bool = False) -> None:
        self.allocation.watched = self._observer.watched = self.catches.flags
        wanted = not self.allocation.inspects and (self.log is not None or bool(self._observer.watched & 3))
        if wanted != (self._linker.observe is not None):
            self._linker.observe = self._observer.wrap if wanted else None
            if not first:
                self._linker.link_again()

    # -- moving ----------------------------------------------------------------------------

    def _moved(self, verb: Verb) -> Stop:
        """Every way of moving comes here."""
        self.control.journey = None
        supervisor = Debugger.supervisor
        stop = verb() if supervisor is None else supervisor(self, verb)
        self.selected = -1
        self.stop = stop
        return stop

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
        """Go on until something stops the program; `Stop.reason` says what.

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
            raise UsageError(f"there is no statement at or after line {line}")
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
                raise UsageError("the program would end without coming there", hint="it stands where it was")
            return stop

        return self._moved(run_there)

    def _sites(self, there: Callable[[Code], bool], pc: int) -> list[tuple[Code, int]]:
        return [(code, pc) for code in self._codes if there(code)]

    def last_visit(self, there: Callable[[Code], bool], pc: int) -> int | None:
        """When statement `pc` of such a block was last about to run, for `go_to`.

        None if it was not, as far back as the past is kept.
        """
        return last_visit(self.machine, there, pc)

    def step_back(self, *, micro: bool = False) -> Stop:
        """Undo the last statement of this frame, with all it called.  UsageError at the start.

        With `micro`, if it was taken by its micro program, undo only the end of that.
        """
        return self._moved(lambda: self.control.step_back(into=micro and self._left_micro_program()))

    def _left_micro_program(self) -> bool:
        machine = self.machine
        if not machine.journal:
            return False
        tick, kind, dropped = machine.journal[-1]
        if tick != machine.tick or kind != "pop":
            return False
        inside: bool = dropped.code.formula is not machine.frames[-1].code.formula
        return inside

    def step_back_into(self) -> Stop:
        """Undo the last statement executed, wherever it was."""
        return self._moved(lambda: self.control.step_back(into=True))

    def reverse_step_out(self) -> Stop:
        """Go back to the statement that began the innermost frame."""
        return self._moved(self.control.reverse_step_out)

    def reverse_continue(self) -> Stop:
        """Go back to the previous breakpoint hit or caught finding, else to the start."""
        return self._moved(lambda: self.control.reverse_continue(self._found_before))

    def restart(self) -> Stop:
        """Go back to the first statement; breakpoints stay."""
        return self._moved(lambda: self.control.go_to(0))

    def go_to(self, place: str | int | Mark) -> Stop:
        """Go to a mark, by name, or to the moment after so many statements."""
        if isinstance(place, str):
            place = self.known_mark(place)
        if isinstance(place, Mark):
            return self._moved(lambda: self.control.return_to(place))
        if place < 0:
            raise UsageError("a moment is a number of statements, 0 or more")
        return self._moved(lambda: self.control.go_to(place))

    def pause(self) -> None:
        """Stop before the next statement; to be called from a signal handler or another thread."""
        self.control.paused = True
        self.machine.interrupt()

    def forget_pause(self) -> None:
        """A pause that came when the program had stopped anyway is not to stop it again."""
        self.control.paused = False

    def between_statements(self, action: Callable[[], None]) -> None:
        """Have `action` done before the next statement of a run that is under way; from any thread.

        It may look at everything and set breakpoints, and must not move the program.
        """
        self.control.actions.append(action)
        self.control.service = True
        self.machine.interrupt()

    def here(self, reason: str) -> Stop:
        """A stop at the place where the program stands."""
        frame = self.machine.frames[-1]
        return self._describe(reason, frame, frame.pc)

    def _not_ended(self) -> None:
        if self.machine.ended:
            raise UsageError("the program has ended", hint="step back, go to a mark, or restart")

    # -- values ----------------------------------------------------------------------------

    @property
    def values(self) -> Values:
        """Names and values as seen from the selected frame."""
        depth = -1 if self.selected < 0 else len(self.machine.frames) - 1 - self.selected
        return Values(
            self.machine,
            self.timeline,
            lambda frame: self.line_of(frame, frame.pc),
            self._names,
            depth,
            self.backend.to_host,
        )

    def value(self, name: str) -> Array:
        """The array at this moment, read-only.  Raises NotComputed before its statement has run."""
        return self.values.value(_bare(name, self.values.has))

    def stats(self, name: str) -> Summary:
        """The statistics of a value, over its finite elements, with counts of the others."""
        return summarize(self.value(name))

    def evaluate(self, text: str) -> Any:
        """The value of an expression at this moment."""
        scope = self.values
        return evaluate(parse(text, scope.has, scope.names), scope)

    def set_value(self, name: str, value: Any, index: Any = None, *, scope: Values | None = None) -> Branch:
        """Change a value, or the part at `index`, and compute again what depends on it.

        `index` is a NumPy index, or text such as ``"0, 2:4"``; `scope` says from where the name is seen
        (from the selected frame, if None).  The course of events without the edit stays: the branch
        that is returned is the new one.
        """
        scope = scope or self.values
        name = _bare(name, scope.has)
        place = scope.place(name)
        if place.depth is None:
            raise UsageError(f"%{name} belongs to a block that is over", hint="go back into it to change it")
        if isinstance(index, str):
            index = evaluate_index(parse_index(index, scope.has, scope.names), scope)
        after = edited(name, scope.value(name), value, index)
        depth = next(d for d, f in enumerate(self.machine.frames) if f.slots is place.slots)
        depth, slot = self._home(depth, place.slot)
        branch = self.timeline.fork(f"%{name} set")
        try:
            with self.timeline.quiet():
                placed = self.backend.to_device(after)
                edit = apply_edit(self.machine, depth, slot, name, placed, self.timeline.recompute)
        except BaseException:
            self.timeline.abandon(branch)
            raise
        self.timeline.edits.append(edit)
        return branch

    def _home(self, depth: int, slot: int) -> tuple[int, int]:
        """The frame that a captured value comes from, so that an edit reaches all who see it."""
        while True:
            captures = {inner: outer for outer, inner in self.machine.frames[depth].code.captures}
            if slot not in captures or depth == 0:
                return depth, slot
            depth, slot = depth - 1, captures[slot]

    @property
    def outputs(self) -> dict[str, Array] | None:
        """The program's results by name; None until it has ended."""
        if not self.machine.ended:
            return None
        frame = self.machine.frames[0]
        contents = frame.code.instructions[-1][1](frame.slots)
        if not self.timeline.retains:
            contents = [copied(content) for content in contents]
        names = [value.name for value in frame.code.graph.outputs]
        found = zip(names, map(self.backend.to_host, contents), strict=True)
        return {name: read_only(content) for name, content in found}

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
        told = explained(error, frame, pc, self.listing_of(frame))
        told.operands += size_origins(self.machine.frames, frame, pc, self.inputs)
        return told

    def _micro_check(self, check: str | None) -> MicroCheck | None:
        if check is None:
            return None
        if check != "micro":
            raise UsageError(f"there is no check {check!r}", hint="there is micro")
        from nncdbg.engine.oracle import MicroCheck

        checker = MicroCheck(
            self.program, self.listing, self._found, self.backend.to_host, lambda: self.timeline.replaying
        )
        self._linker.check = checker.wrap
        self.catches.add("micro")
        return checker

    def _describe(self, reason: str, frame: Frame | None, pc: int, **fields: Any) -> Stop:
        if frame is None:
            return Stop(reason, None, None, None, **fields)
        node = frame.code.nodes[pc] if pc < len(frame.code.nodes) else None
        error = fields.get("error")
        if error is not None:
            fields["error"] = self.explain(error, frame, pc)
        return Stop(reason, frame, node, self.line_of(frame, pc), **fields)

    def _holds(self, found: Breakpoint) -> bool:
        if found.condition is None:
            return True
        scope = replace(self.values, depth=-1)
        return condition(found.condition, scope)

    def _log_point(self, judged: Judged) -> None:
        scope = replace(self.values, depth=-1)
        rest, text = judged.breakpoint.log or "", ""
        for part in braced(rest):
            try:
                shown = str(evaluate(parse(part, scope.has, scope.names), scope))
            except NncdbgError as error:
                shown = f"<{error.message}>"
            before, _, rest = rest.partition("{" + part + "}")
            text += before + shown
        frame = self.machine.frames[-1]
        pc = frame.pc - 1 if judged.after and frame.pc > 0 else frame.pc
        self.said(LogMessage(text + rest, frame, self.line_of(frame, pc)))

    def _house_keeping(self) -> None:
        if self.timeline.over_budget:
            self.control.service = True
            self.machine.interrupt()

    def _found(self, finding: Finding) -> None:
        """The statement in execution has given this; it is judged once its results are stored."""
        if not self.timeline.replaying and any(True for _ in self.catches.qualifying(finding)):
            self.control.pending.append(finding)
            self.machine.interrupt()

    def _settle(self, finding: Finding) -> Stop | None:
        """The stop that a finding makes, if it is caught and its condition holds."""
        statement = finding.binding
        left = (dropped for _, kind, dropped in reversed(self.machine.journal) if kind == "pop")
        frame = next(f for f in chain(reversed(self.machine.frames), left) if f.code is statement.code)
        for told, when in self.catches.qualifying(finding):
            detail = told.detail
            try:
                if when is not None and not condition(when, replace(self.values, depth=-1)):
                    continue
            except NncdbgError as error:
                detail = f"{detail}; the condition of catch {told.kind} failed: {error.message}"
            return self._describe("exception", frame, statement.pc, detail=detail, finding=told)
        return None

    def _found_before(self) -> Stop | None:
        """The stop for what is caught in the statement just before this place, on the way back."""
        frame = self.machine.frames[-1]
        journal = self.machine.journal
        pc = frame.pc - 1
        transfer = bool(journal) and journal[-1][0] == self.machine.tick
        if pc < 0 or transfer or frame.code.instructions[pc][0] is None:
            return None
        caught = [
            kind for kind in _TOLD_AS if any(name in self.catches.conditions for name in _TOLD_AS[kind])
        ]
        if not caught:
            return None
        slots = self.timeline.recalled(pc)
        to_host = self.backend.to_host
        inputs = [*map(to_host, frame.code.instructions[pc][1](slots))]
        target = frame.code.targets[pc]
        outputs: Sequence[Any] = slots[target] if isinstance(target, slice) else [slots[target]]  # type: ignore[index]
        for index, output in enumerate(outputs):
            for kind in caught:
                if holds_any(to_host(output), kind):
                    stop = self._settle(Finding(kind, Statement(frame.code, pc), "", inputs, index))
                    if stop is not None:
                        return stop
        return None


def _site_words(site: Place) -> str:
    block, pc = site
    if isinstance(block, Listing):
        return f"line {pc} of a micro program"
    name = block.graph.name if isinstance(block, Code) else ".".join(map(str, block))
    return f"{pc} of @{name}"


def _bare(name: str, known: Callable[[str], bool]) -> str:
    """The name of a value that was given with its sigil or without; a name may begin with that sign too."""
    return name[1:] if name.startswith("%") and not known(name) else name


def _allocation_for(backend: Backend, allocator: str | Allocation | None) -> Allocation:
    """The allocation asked for; if none is, `debug`, or `plain` where it cannot manage the memory."""
    usual = "debug" if backend.on_host else "plain"
    chosen = allocation(usual if allocator is None else allocator)
    if not backend.on_host and chosen.inspects:
        raise UsageError(
            f"the allocator {chosen.name} manages memory of the host, and {backend.name} has its own",
            hint="use --allocator plain, or --backend numpy or onnxruntime",
        )
    return chosen


def _statistics_on(backend: Backend, report: Report, wanted: bool) -> tuple[StatisticsLog | None, Observer]:
    """The log, if it is wanted, and the observer for results that no allocation inspects."""
    if backend.on_host:
        log = StatisticsLog() if wanted else None
        return log, Observer(report, log)
    from nncdbg.engine.backends.device_observation import DeviceObserver, DeviceStatisticsLog

    on_device = DeviceStatisticsLog(backend) if wanted else None
    return on_device, DeviceObserver(backend, report, on_device)


_TOLD_AS = {"nan": ("nan",), "inf": ("inf", "overflow")}
