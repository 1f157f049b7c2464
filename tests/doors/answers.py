"""The origin and cause of a planted fault, as each user interface reports them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import nncdbg
from nncdbg.commands.session import CommandSession
from nncdbg.dap_server.debuggee import Debuggee
from nncdbg.dap_server.handlers.breakpoints import exception_info
from nncdbg.dap_server.handlers.explaining import MOST_STATEMENTS, ExplainArguments, explain
from nncdbg.dap_server.protocol import ExceptionInfoArguments, InitializeRequestArguments
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.session import Session
from nncdbg.dap_server.sources.shown import Sources
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.errors import NncdbgError
from nncdbg.nan_watch.records import Report
from nncdbg.presentation.screen import Screen
from nncdbg.target.program import ProgramTarget
from tests.doors.cases import Case

Answer = tuple[str, str]
"""The place (`line 5`, `%w`) and the name of the cause."""

MOST_STOPS = 12
"""Stops after which `catch` is given up."""

_BORN = re.compile(r"originates? at this statement:")
_LINE = re.compile(r"line (\d+)")
_ENTERED = re.compile(r"^(?:catch \w+: )?(%\S+) has (?:NaN|Inf) (?:before|since)")
_CAUSE = re.compile(r"^\s*cause: ([^:(]+)(?: \(inside| *$|:)")
_EARLIER = re.compile(r"^\s*\w+ originates at (line \d+),")


def disagreements(case: Case) -> dict[str, str] | None:
    """Return the user interfaces that report another origin or cause than `watch`, with what they report.

    None if the watch finds nothing: the bad element has no effect.
    """
    with case.kernels():
        report = nncdbg.watch(case.program, case.inputs, fail_on=case.gates, strict=case.strict)
        first = next((each for each in report.findings if each.first), None)
        if first is None:
            assert case.bug is None, f"{case}: watch finds nothing"
            return None
        wanted = place_of(first.site.op, first.site.line, first.site.value), first.cause
        found = {}
        for door, answers in _answers(case, report).items():
            if answers is not None and not _has(answers, wanted):
                found[door] = f"{answers[:4]} instead of {wanted}"
        return found


def _has(answers: list[Answer], wanted: Answer) -> bool:
    """Whether an answer is the wanted one; a screen may shorten the name of a value to its end."""
    place, cause = wanted
    return any(
        name == cause and (at == place or (at[0] == "%" and place.endswith((f".{at[1:]}", f"/{at[1:]}"))))
        for at, name in answers
    )


def place_of(op: str, line: int | None, value: str) -> str:
    """Return `line 5`; for a value that was bad from the start `%w`."""
    return f"line {line}" if op else f"%{value}"


def _answers(case: Case, report: Report) -> dict[str, list[Answer] | None]:
    first = next(each for each in report.findings if each.first)
    as_json = next(each for each in report.as_dict()["findings"] if each["first"])
    found: dict[str, list[Answer] | None] = {
        "report": [(place_of(as_json["op"], as_json["line"], as_json["value"]), as_json["cause"])]
    }
    kinds = {"inf": ["inf"], "overflow": ["overflow"], "nan": ["nan"]}.get(first.kind, [first.kind])
    stops = Stops(case, kinds, (place_of(first.site.op, first.site.line, first.site.value), first.cause))
    found["catch"], found["why at the stop"], found["exceptionInfo"] = (
        stops.caught,
        stops.why,
        stops.exception,
    )
    numeric = first.kind in ("nan", "inf", "overflow")
    ended = numeric and first.reaches_output and report.error is None
    at_end = AtEnd(case) if ended else None
    found["why"] = at_end.why if at_end is not None else None
    found["Explain Value"] = at_end.explained if at_end is not None else None
    return found


def adapter(debugger: nncdbg.Debugger) -> Session:
    """Return a session of the debug adapter over a debugger, without a client."""

    def nothing(*_: object) -> None: ...

    runner = Runner()
    session = Session(Connection(nothing, nothing, nothing), runner)  # type: ignore[arg-type]
    session.client.arguments = InitializeRequestArguments(adapter_id="nncdbg")
    target = ProgramTarget(debugger)
    session.debuggee = Debuggee(target, runner, Sources(target, None))
    return session


class Typed:
    """A prompt over a debugger whose output is read."""

    def __init__(self, case: Case) -> None:
        self.debugger = nncdbg.Debugger(case.program, case.inputs)
        self.out = io.StringIO()
        self.session = CommandSession(ProgramTarget(self.debugger), "model", Screen(self.out, width=200))

    def type(self, line: str) -> str:
        """Return what a command prints, and its error."""
        self.out.seek(0)
        self.out.truncate()
        try:
            self.session.execute(line, typed=True)
        except NncdbgError as error:
            return f"{self.out.getvalue()}error: {error}"
        return self.out.getvalue()


class Stops:
    """The stops of `catch`, up to the one with the wanted answer."""

    def __init__(self, case: Case, kinds: list[str], wanted: Answer) -> None:
        typed = Typed(case)
        self.caught: list[Answer] = []
        self.why: list[Answer] = []
        self.exception: list[Answer] = []
        typed.type(f"catch {' '.join(kinds)}")
        for _ in range(MOST_STOPS):
            shown = typed.type("continue")
            if typed.debugger.stop.reason != "exception" or typed.debugger.stop.finding is None:
                return
            here = f"line {typed.debugger.stop.line}"
            answers = [*parsed(shown, here)]
            self.caught += answers
            if _has(answers, wanted):
                self.why = [*parsed(typed.type("why"), here)]
                body = exception_info(adapter(typed.debugger), ExceptionInfoArguments(thread_id=1))
                lines = (body.description or "").splitlines()
                # The box gives the cause and the hint first, and then the finding.
                advice = [line for line in lines if line.startswith(("cause: ", "hint: ", " "))]
                finding = [line for line in lines if line not in advice]
                self.exception = [*parsed("\n".join([*finding, *advice]), here)]
                return


class AtEnd:
    """The answers of `why` and of Explain Value about the outputs, after a run to the end."""

    def __init__(self, case: Case) -> None:
        typed = Typed(case)
        typed.debugger.uncatch()
        typed.debugger.run()
        self.why: list[Answer] = []
        self.explained: list[Answer] = []
        session = adapter(typed.debugger)
        for name in typed.debugger.outputs or ():
            self.why += parsed(typed.type(f"why %{name}"), "")
            arguments = ExplainArguments(expression=f"%{name}", count=MOST_STATEMENTS)
            self.explained += _explained(explain(session, arguments))


def _explained(body: dict[str, Any]) -> Iterator[Answer]:
    for origin in body["origins"]:
        line = origin["line"]
        yield origin["name"] if line is None else f"line {line}", origin["cause"]


def parsed(text: str, here: str) -> Iterator[Answer]:
    """Yield the places and causes in the text of a stop or of `why`; `here` is the statement of the stop."""
    place, lines = here, iter(text.splitlines())
    for line in lines:
        if _BORN.search(line):
            at = _LINE.match(next(lines))
            place = at[0] if at else place
        elif (found := _ENTERED.match(line)) or (found := _EARLIER.match(line)):
            place = found[1]
        elif found := _CAUSE.match(line):
            yield place, found[1]
            place = here
