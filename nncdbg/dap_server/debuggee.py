"""The debugged program: its target, its source texts, and the thread that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.dap_server import protocol
from nncdbg.dap_server.breakpoints.exception_filters import LABELS
from nncdbg.dap_server.client_recorder import ClientRecorder
from nncdbg.dap_server.events import MAIN_THREAD, report_continued, report_end, report_start, report_stop
from nncdbg.dap_server.kernel_debugger import trace_kernels
from nncdbg.dap_server.progress import how_far
from nncdbg.dap_server.registry import State
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.sources.modules import Modules
from nncdbg.dap_server.variables.value_text import (
    Glance,
    Shown,
    is_tensor,
    plain_text,
    statistics_text,
    type_text,
)
from nncdbg.errors import NncdbgError, RunError
from nncdbg.expression import spelled
from nncdbg.presentation.crash_report import report_crash
from nncdbg.presentation.elements import SMALL, is_text
from nncdbg.target.records import Message

if TYPE_CHECKING:
    from pathlib import Path

    from nncdbg.dap_server.client import Client
    from nncdbg.dap_server.session import Session
    from nncdbg.dap_server.sources.shown import Sources
    from nncdbg.target.program import ProgramTarget
    from nncdbg.target.records import Stop


class RunFinding(protocol.Record, frozen=True, kw_only=True):
    """A finding that stopped the run: kind, label of its filter, description, place of the statement."""

    kind: str
    label: str
    text: str
    line: int | None = None
    source: protocol.Source | None = None


class RunValue(protocol.Record, frozen=True, kw_only=True):
    """An output or input: `text` as in the variables, `kinds` of non-finite elements (`nan`, `inf`)."""

    name: str
    text: str
    kinds: list[str]


class RunSummaryBody(protocol.Record, frozen=True, kw_only=True):
    """The body of the event `nncdbg/summary`."""

    program: str
    outputs: list[RunValue]
    inputs: list[RunValue]
    """The inputs with NaN or Inf."""
    findings: list[RunFinding]


def finding_of(stop: Stop, sources: Sources, client: Client) -> RunFinding:
    """Return the finding of a stop, for the summary at the end of the run."""
    assert stop.finding is not None
    source = sources.of_place(stop.place) if stop.place is not None else None
    line = client.outgoing_line(stop.line) if stop.line is not None else None
    kind = stop.finding.kind
    return RunFinding(
        kind=kind, label=LABELS.get(kind, kind), text=stop.finding_text, line=line, source=source
    )


def summary_of_run(shown: Shown, name: str, findings: list[RunFinding]) -> RunSummaryBody:
    """The summary of the program `name`, after its end."""
    target, glance = shown.target, Glance(shown, hex=False, between=lambda: None)
    names, outermost = target.setup.inputs, target.frames()[-1].number
    numbers = target.cells("inputs", outermost)[: len(names)]
    contents = map(target.host, target.contents(numbers, outermost))
    inputs = [_value(glance, name, content) for name, content in zip(names, contents, strict=True)]
    outputs = [_value(glance, name, content) for name, content in (target.outputs or {}).items()]
    return RunSummaryBody(
        program=name,
        outputs=outputs,
        inputs=[each for each in inputs if each.kinds],
        findings=findings,
    )


def _value(glance: Glance, name: str, content: Any) -> RunValue:
    if not is_tensor(content) or is_text(content) or not content.size:
        text = glance.text(content) if is_tensor(content) else plain_text(content)
        return RunValue(name=spelled(name), text=text, kinds=[])
    summary = glance.full_summary(content)
    small = content.size <= SMALL
    text = glance.text(content) if small else f"{type_text(content)} {statistics_text(content, summary)}"
    counts = {"nan": summary.nan, "inf": summary.posinf or summary.neginf}
    return RunValue(name=spelled(name), text=text, kinds=[kind for kind, count in counts.items() if count])


Verb: TypeAlias = "Callable[[], Stop]"

INTERRUPTED = 130
"""Exit code of an interrupted program."""


class Debuggee:
    """A program launched for one session; it ends with the session.

    `stop_on_exit`: stop at the end of the program, from where stepping back is possible.  `no_debug`: run to
    the end and ignore the client's breakpoints.  `at_finding`: the program starts at the first statement of a
    repro bundle, and stops there first.  `title` describes a program folder, "" for another program.
    """

    def __init__(
        self,
        target: ProgramTarget,
        runner: Runner,
        sources: Sources,
        *,
        stop_on_exit: bool = False,
        no_debug: bool = False,
        at_finding: bool = False,
        title: str = "",
    ) -> None:
        self.target = target
        self.recorder = ClientRecorder(target, self.say, requests=not no_debug)
        self.runner = runner
        self.sources = sources
        self.stop_on_exit = stop_on_exit
        self.shown = Shown(target)
        self.modules = Modules(target, sources)
        self.no_debug = no_debug
        self.source = self.target.source
        """The user's source, in which a recorded step is shown; None for the view of the graph."""
        self.at_finding = at_finding
        self.title = title
        self.journal = ExitStack()
        """The journal to which the run is written, if there is one; it ends with the stack."""
        self.files: dict[Path, tuple[int, int]] = {}
        """(mtime, size) of each file that the program was loaded from."""
        self.moved_thread = MAIN_THREAD
        """The thread of the latest request that moves the program."""
        self._receive: Callable[[Message], None] = lambda message: None
        self._terminating = False
        self._failed_at: tuple[int, int, str] | None = None
        """(statements run, branch, error) of the latest stop if it was a failure, else None."""
        self._reported_problems = 0
        """Number of engine remarks already sent to the client."""
        self._fallen: set[str] = set()
        self._findings: list[RunFinding] = []
        """Findings that stopped the current run."""

    def listen(self, receive: Callable[[Message], None]) -> None:
        """Call `receive` with each message of the program."""
        self._receive = receive
        self.target.listen(receive)

    def say(self, text: str) -> None:
        """Send a message as the program does, with its present place."""
        frame = self.target.frame(0)
        self._receive(Message(text, frame.place, frame.line))

    # -- moving ------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop a running program before its next statement."""
        self.target.pause()

    def _pause_moving(self, session: Session) -> None:
        """Pause, unless the program has stopped meanwhile."""
        with session.queue.turn:
            if session.queue.moving:
                self.pause()

    def start(self, session: Session, *, stop_on_entry: bool) -> None:
        """Answer the current request, then run the program from its first statement, or stop there."""
        session.defer(lambda: report_start(session))
        self.move(session, (lambda: self.target.stop) if stop_on_entry else self._first_run)

    def start_again(self, session: Session, *, stop_on_entry: bool) -> None:
        """Answer the current request, then restart at the first statement of the branch."""

        def verb() -> Stop:
            self.recorder.departs("restart")
            entry = self.target.go_to(0)
            self.recorder.arrives("restart")
            return entry if stop_on_entry else self._first_run()

        self._failed_at = None
        self._findings.clear()
        self.move(session, verb)

    def go_on(self, session: Session) -> None:
        """Answer the current request, then continue."""
        self.move(session, self._run, "continue")

    def _run(self) -> Stop:
        """Run from a stop that was reported."""
        if self.source is not None and not self.no_debug:
            return self.source.run()
        return self.target.run(heed=not self.no_debug)

    def _first_run(self) -> Stop:
        """Run; a breakpoint at the first statement stops too, as no stop there has been reported yet."""
        if self.no_debug:
            return self.target.run(heed=False)
        stops = self.target.stops
        if not stops.stop_at(stops.numbers()):
            self.recorder.departs("continue")
            return self.target.run()
        self.recorder.shown(self.target.stop)
        return self.target.stop

    def move(
        self,
        session: Session,
        verb: Verb,
        command: str | None = None,
        *,
        unasked: bool = False,
        step: bool = False,
    ) -> None:
        """Answer the current request, then move the program by `verb` and report the stop.

        `command` is the equal command of the prompt, for a recording; `GOTO` for the one that goes to the
        place of the stop, None if the commands are recorded elsewhere.  `unasked`: also send `continued`, as
        the request alone does not imply it to the client.  `step`: further moves wait for the stop.
        """

        def begin() -> None:
            if unasked:
                report_continued(session)
            self.runner.post(lambda: self._perform(session, verb, command))

        self.set_off(session, step=step)
        session.defer(begin)

    def set_off(self, session: Session, *, step: bool = False) -> None:
        """Mark the program as moving.

        This happens before the answer, so that a `pause` that follows immediately is not lost.
        """
        with session.queue.turn:
            session.queue.moving, session.queue.stepping = True, step
            session.state = State.RUNNING
            if session.queue.waiting:
                self.target.between_statements(session.serve_waiting)

    def _perform(self, session: Session, verb: Verb, command: str | None) -> None:
        stop = self.target.stop
        try:
            poll, cancel = how_far(self.target), lambda: self._pause_moving(session)
            with session.progress.under_way("Running", poll=poll, cancel=cancel):
                trace_kernels()
                if command is not None:
                    self.recorder.departs(command)
                stop = verb()
                self.recorder.arrives(command)
                if session.console is not None and session.console.target == self.target:
                    before = self.target.stop
                    session.console.react(stop)
                    if self.target.stop is not before:
                        stop = self.target.stop
        except NncdbgError as refusal:
            self.recorder.refused(command, refusal)
            session.client.say(str(refusal), "important")
        except MemoryError:
            error = RunError("out of memory", hint="use smaller inputs, or reduce `history`")
            session.client.say(str(error), "important")
        except Exception as bug:  # noqa: BLE001  it must not take the user's session with it
            session.client.say(report_crash(bug), "important")
        except BaseException as leaving:  # noqa: BLE001  a kernel may raise anything
            self.handle_exit(session, leaving)
        self.arrived(session, stop)

    def handle_exit(self, session: Session, leaving: BaseException) -> None:
        """Report an exit that a kernel attempted (`SystemExit` and the like); the session continues."""
        session.client.say(f"a kernel raised {type(leaving).__name__}: {leaving}", "important")

    # -- arriving ----------------------------------------------------------------------------

    def arrived(self, session: Session, stop: Stop) -> None:
        """Report a stop or the end of the program, and serve requests again.

        Nothing is reported if another program has replaced this one meanwhile.
        """
        session.flush_output()
        with session.queue.turn:
            if session.debuggee is not self:
                return
            self.say_remarks(session)
            if session.state is not State.ENDED:
                self._report_arrival(session, stop)
            self.target.pause(on=False)
            session.queue.moving = session.queue.stepping = False
            session.queue.turn.notify_all()

    def _report_arrival(self, session: Session, stop: Stop) -> None:
        before, self._failed_at = self._failed_at, None
        if stop.error is not None:
            now = self.target.now
            self._failed_at = now.tick, now.branch, str(stop.error)
            if self._failed_at != before:
                session.client.say(str(stop.error), "stderr")
        if stop.finding is not None:
            self._findings.append(finding_of(stop, self.sources, session.client))
        if stop.reason == "end" and not self.stop_on_exit:
            summary = summary_of_run(self.shown, self.sources.name, self._findings)
            for title, values in (("input", summary.inputs), ("output", summary.outputs)):
                for value in values:
                    session.client.say(f"{title} {value.name} {value.text}")
            session.client.send_event("nncdbg/summary", summary)
            self.end(session, 0)
        elif stop.error is not None and (self.no_debug or self._failed_at == before):
            # This failure was already reported and nothing was changed: continuing from it ends the
            # program.
            self.end(session, RunError.exit_code)
        elif self._terminating:
            self.end(session, INTERRUPTED)
        else:
            session.state = State.STOPPED
            report_stop(session, stop)

    def say_remarks(self, session: Session) -> None:
        """Send the engine's remarks: NumPy replaced the backend for an op, a listener failed."""
        for each in self.target.kernels(fallen=True):
            if each.op not in self._fallen:
                self._fallen.add(each.op)
                session.client.say(
                    f"{each.op} has no kernel on {each.lacking}, and runs on numpy (line {each.line})"
                )
        problems = self.target.now.problems[self._reported_problems :]
        for problem in problems:
            session.client.say(problem, "important")
        self._reported_problems += len(problems)

    # -- ending ------------------------------------------------------------------------------

    def terminate(self, session: Session) -> None:
        """End the program: at once if it is stopped, before its next statement if it runs."""
        with session.queue.turn:
            if session.queue.moving:
                self._terminating = True
                self.target.pause()
            elif session.state is not State.ENDED:
                self.end(session, INTERRUPTED if self._failed_at is None else RunError.exit_code)

    def end(self, session: Session, exit_code: int) -> None:
        """Report the end of the program to the client, once."""
        with session.queue.turn:
            if session.state is not State.ENDED:
                started, session.state = session.state is not State.CONFIGURING, State.ENDED
                session.skip_moves()
                report_end(session, exit_code, started=started)

    def abandoned(self) -> None:
        """End the program: the client is gone, or starts another program."""
        self.target.pause()
        self.end_journal()

    def end_journal(self) -> None:
        """End the run in the journal once the program has stopped."""
        self.runner.post(self.journal.close)

    @contextmanager
    def requested(self) -> Iterator[None]:
        """Wrap a request that may touch the program, so that its effects are attributed to the client."""
        yield
