"""Start and end of a session.

initialize → launch or attach → `initialized` → breakpoints and filters → configurationDone.  A client need
not wait between these; breakpoints may also come before launch.  A program begins only with
configurationDone: without it the program remains at its first statement, and requests that would move it fail
with that reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server import protocol
from nncdbg.dap_server.attach.ranks_relay import RanksRelay
from nncdbg.dap_server.attach.relay import AttachArguments, Relay, end_relay
from nncdbg.dap_server.debuggee import Debuggee
from nncdbg.dap_server.events import MAIN_THREAD, report_process
from nncdbg.dap_server.launch_arguments import LaunchArguments, path_in
from nncdbg.dap_server.registry import ALWAYS, LIVE, State, capabilities, request
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.sources.listing_file import listing_of_step
from nncdbg.dap_server.sources.shown import sources_of
from nncdbg.errors import LoadError, UsageError
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.process.collector import collector_paused
from nncdbg.process.rank_notes import find_job, reports_of_job
from nncdbg.target.program import ProgramTarget
from nncdbg.text.file_names import FILES, PROGRAM, is_program_folder, workspace_of

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.ir.records import Program
    from nncdbg.opening.journal.forking import Fork
    from nncdbg.opening.journal.reopening import Restart


@request("initialize", when=ALWAYS)
def initialize(session: Session, arguments: protocol.InitializeRequestArguments) -> dict[str, Any]:
    if session.state is not State.NEW:
        raise UsageError(
            "`initialize` is allowed only once, as the first request", hint="start another session"
        )
    session.client.arguments = arguments
    session.state = State.INITIALIZED
    return capabilities()


@request("launch", when=LIVE | {State.INITIALIZED}, arguments=LaunchArguments, title="Loading the program")
def launch_program(session: Session, arguments: LaunchArguments) -> None:
    _begins_once(session)
    if session.attachment is not None:
        raise UsageError("this process already runs a program", hint="send attach")
    _load(session, arguments)
    session.state = State.CONFIGURING
    session.defer(lambda: session.client.send_event("initialized"))


@request("attach", when=LIVE | {State.INITIALIZED}, arguments=AttachArguments, title="Attaching")
def attach(session: Session, arguments: AttachArguments) -> None:
    _begins_once(session)
    session.view = arguments.view
    if session.attachment is None:
        _attach_elsewhere(session, arguments)
        return
    session.state = State.CONFIGURING
    session.defer(lambda: session.client.send_event("initialized"))


def _attach_elsewhere(session: Session, arguments: AttachArguments) -> None:
    there = arguments.connect
    relay: Relay | RanksRelay
    if arguments.ranks:
        job = find_job(None if arguments.ranks is True else str(arguments.ranks))
        relay = RanksRelay(session, job, [each for each in reports_of_job(job) if each.exists])
    elif there is None:
        raise UsageError(
            "`attach` needs the address of the process that called nncdbg.listen",
            hint='set `connect` to the address that nncdbg.listen returned, such as {"port": 5679}',
        )
    else:
        relay = Relay(session, there.address, there.token)
    relay.connect()
    if end_relay not in session.at_end:
        session.at_end.append(end_relay)
    session.relay = relay
    session.defer(relay.begin)


def _begins_once(session: Session) -> None:
    if session.state is not State.INITIALIZED:
        raise UsageError(
            "a program is already being debugged", hint="restart the program, or start another session"
        )


def _load(session: Session, arguments: LaunchArguments) -> None:
    """Debug the program of this configuration; on failure, keep the current program."""
    debuggee = launch(arguments, session.runner, session.queue.check_cancelled)
    debuggee.sources.uris = session.client.arguments.path_format == "uri"
    recorded = _record(debuggee, arguments)
    session.launched = arguments
    session.exception_filters.always = arguments.catch
    session.adopt(debuggee)
    # Before the runner stops: a program that runs is paused, and then its journal ends.
    session.at_end.append(lambda session: debuggee.end_journal())
    report_process(session, debuggee.sources.name, "launch")
    if debuggee.title:
        session.client.say(debuggee.title)
    for note in (*starmap(_note_text, debuggee.target.setup.facts), *debuggee.sources.notes):
        session.client.say(note)
    if recorded:
        session.client.say(f"recording to {recorded}")


def _record(debuggee: Debuggee, arguments: LaunchArguments) -> str:
    """Record the session as the configuration says; return the path, "" if it is not recorded."""
    configuration = arguments.configuration()
    if configuration.record is None:
        return ""
    path = path_in(configuration.record, Path(configuration.folder or ""))
    return debuggee.recorder.begin(path, configuration)


@collector_paused(freeze=True)
def launch(arguments: LaunchArguments, runner: Runner, check: Callable[[], None]) -> Debuggee:
    """Return the program, stopped on entry.  Raises LoadError, GraphError or UsageError.

    `check` is called between the parts of the work; an exception that it raises abandons the launch.
    """
    from nncdbg.opening.journal.recording import journaled
    from nncdbg.opening.programs import open_program
    from nncdbg.opening.python_programs import is_python_name, listing_stem

    configuration = arguments.configuration()
    path, folder = Path(configuration.program), Path(configuration.folder or "")
    if is_python_name(configuration.program, folder):
        path = folder / listing_stem(configuration.program)
    if os.path.isdir(path) and not is_program_folder(path):
        raise LoadError(
            f"{path} is a folder", hint="set `program` to a file, such as model.onnx or graph.nnc"
        )
    opened = open_program(configuration, check)
    program, saved = opened.program, opened.folder
    check()
    debugger = opened.debugger()
    target = ProgramTarget(debugger)
    data = [path.parent / store for store in program.stores]
    if saved is not None:
        if saved.at_finding:
            target.go_to(saved.statements)
        path, data = saved.path / PROGRAM, [saved.path / name for name in FILES]
    # A listing is launched as the model that it shows, and remains the file of the breakpoints.
    workspace = workspace_of(path) if program.listing is None else None
    if workspace is not None and program.source is not None:
        path = Path(program.source)
    stem = None
    if opened.restart is not None:
        path, stem = _file_of_run(program, opened.restart)
    debuggee = Debuggee(
        target,
        runner,
        sources_of(target, path, workspace or folder, stem),
        stop_on_exit=arguments.stop_on_exit,
        no_debug=arguments.no_debug,
        at_finding=saved is not None and saved.at_finding,
        title=saved.sentence() if saved is not None else "",
    )
    if arguments.view == "graph":
        debuggee.source = None
    debuggee.journal.enter_context(journaled(opened, debugger))
    # The recorder takes the kinds caught before as given.
    target.stops.catch(arguments.catch, None)
    debuggee.files = stamps(configuration, [path, *data])
    return debuggee


def _file_of_run(program: Program, start: Restart | Fork) -> tuple[Path, str | None]:
    """Return the file of a run in a journal, if it still has the program of the run.

    Otherwise return the address of the step, and the stem of its listing.
    """
    file, listing = Path(program.source or ""), program.listing
    if listing is None or not file.is_file():
        return listing_of_step(start)
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    same = lines == "\n".join(listing.lines).splitlines()
    return (file, None) if same else listing_of_step(start)


def stamps(configuration: RunConfiguration, files: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """(mtime, size) of these files and of those that a configuration names, if they exist."""
    from nncdbg.opening.programs import input_files

    folder = Path(configuration.folder or "")
    inputs = [path_in(name, folder) for name in input_files(configuration)]
    found = {}
    for path in (*files, *inputs, *map(Path, configuration.op_libraries)):
        if os.path.isfile(path):
            status = path.stat()
            found[path] = status.st_mtime_ns, status.st_size
    return found


def _note_text(fact: str, missing: tuple[str, str] | None) -> str:
    """Return the text of a note, with the launch configuration key that provides what is missing."""
    if missing is None:
        return fact
    kind, name = missing
    value = f"{name}.npy" if kind == "input" else 4
    return f'{fact} (set "{kind}s": {json.dumps({name: value}, ensure_ascii=False)})'


@request(
    "configurationDone",
    when=frozenset({State.CONFIGURING, State.RUNNING, State.STOPPED}),
    capability="supportsConfigurationDoneRequest",
)
def configuration_done(session: Session, arguments: protocol.ConfigurationDoneArguments) -> None:
    if session.state is not State.CONFIGURING:
        raise UsageError("the program has already started", hint="continue without `configurationDone`")
    if session.attachment is not None:
        session.attachment.attach(session)
    else:
        _start(session)


def _start(session: Session) -> None:
    launched = session.launched
    assert launched is not None
    session.program.start(session, stop_on_entry=_stops_on_entry(session, launched))


def _stops_on_entry(session: Session, launched: LaunchArguments) -> bool:
    return (launched.stop_on_entry or session.program.at_finding) and not launched.no_debug


def _why_edits_are_lost(session: Session, wanted: LaunchArguments) -> str | None:
    """Return why a restart cannot keep the branches of the program; None if it can."""
    if session.state not in (State.STOPPED, State.ENDED):
        return "the program is running"
    if wanted != session.launched:
        return "the configuration has changed"
    if session.program.at_finding:
        return "a repro bundle opens at its finding"
    files = session.program.files
    return None if stamps(wanted.configuration(), files) == files else "a file of the program has changed"


@request("restart", when=LIVE, capability="supportsRestartRequest", moves=True, title="Loading the program")
def restart(session: Session, arguments: protocol.RestartArguments) -> None:
    """Restart the program from its current file; an attached one goes back to the start of its graph.

    If values were set and the files have not changed, the program instead goes back to its start on the
    current branch, so that the edits are applied again.
    """
    if session.attachment is not None:
        session.attachment.go_to_start(session)
        return
    wanted = session.launched if arguments.arguments is None else _configuration(arguments.arguments)
    assert wanted is not None
    before, stopped = session.program, session.state is State.STOPPED
    branches, number = before.target.branches, before.target.now.branch
    if len(branches) > 1:
        lost = _why_edits_are_lost(session, wanted)
        if lost is None:
            session.client.say(f"restart on branch {number} ({branches[number].title})")
            before.start_again(session, stop_on_entry=_stops_on_entry(session, wanted))
            return
        session.client.say(f"restart discards edited values: {lost}")
    _load(session, wanted)
    before.abandoned()
    if session.state is State.CONFIGURING:
        return
    if stopped:
        body = protocol.ContinuedEventBody(thread_id=MAIN_THREAD, all_threads_continued=True)
        session.defer(lambda: session.client.send_event("continued", body))
    _start(session)


def _configuration(given: dict[str, Any]) -> LaunchArguments:
    try:
        return msgspec.convert(given, LaunchArguments)
    except (msgspec.ValidationError, RecursionError) as error:
        words = str(error).replace("$", "arguments.arguments", 1)
        raise UsageError(f"cannot restart: the configuration is malformed: {words}") from None


@request("terminate", when=LIVE, capability="supportsTerminateRequest", anytime=True)
def terminate(session: Session, arguments: protocol.TerminateArguments) -> None:
    """End a launched program before its next statement; interrupt an attached process, as by Ctrl-C."""
    if session.attachment is not None:
        session.defer(session.attachment.interrupt)
    else:
        session.defer(lambda: session.program.terminate(session))


@request(
    "disconnect",
    when=ALWAYS,
    capability={"supportTerminateDebuggee": True, "supportSuspendDebuggee": True},
    anytime=True,
)
def disconnect(session: Session, arguments: protocol.DisconnectArguments) -> None:
    """End the session: a launched program ends with it in any case; an attached one continues.

    With `terminateDebuggee` an attached process is interrupted, with `suspendDebuggee` it stays stopped
    before its next statement until a client attaches again.
    """
    attachment = session.attachment
    if attachment is not None and attachment.session is session:
        attachment.suspended = bool(arguments.suspend_debuggee) and not arguments.terminate_debuggee
        if arguments.terminate_debuggee:
            session.defer(attachment.interrupt)
    # While the client is still connected.
    session.defer(session.progress.end_all)
    session.defer(session.handle_disconnect)
