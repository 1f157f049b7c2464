"""Step-in targets and goto targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nncdbg.dap_server.child import can_step_into_kernel, step_into_kernel
from nncdbg.dap_server.client_recorder import GOTO
from nncdbg.dap_server.protocol.requests import GotoTargetsBody, StepInTargetsBody
from nncdbg.dap_server.protocol.types import GotoTarget, StepInTarget
from nncdbg.dap_server.registry import STILL, STOPPED, request
from nncdbg.dap_server.sources.instructions import address_of, reference_of
from nncdbg.dap_server.stream_threads import stream_of_thread
from nncdbg.dap_server.variables.places import frame_depth
from nncdbg.engine.errors import UsageError
from nncdbg.engine.time.visits import last_visit

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import (
        GotoArguments,
        GotoTargetsArguments,
        StepInTargetsArguments,
    )
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.engine.text.listing import Listing, Site


# -- into -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IntoPlace:
    """A step-in target of the statement at an address: its block, its micro program, or its kernel."""

    address: int
    what: str


@request("stepInTargets", when=STOPPED, capability="supportsStepInTargetsRequest", reads=True)
def step_in_targets(session: Session, arguments: StepInTargetsArguments) -> StepInTargetsBody:
    frames = session.program.debugger.control.stack
    if frame_depth(session, arguments.frame_id) != len(frames) - 1:
        return StepInTargetsBody(targets=[])  # the statement of an outer frame has already begun
    frame = frames[-1]
    address = address_of(session, frame.code, frame.pc)
    listing = session.program.debugger.loaded.listing_of(frame.code)
    line = session.client.outgoing_line(listing.line(frame.code.path, frame.pc))
    return StepInTargetsBody(
        targets=[
            StepInTarget(id=session.handles.number(IntoPlace(address, what)), label=label, line=line)
            for what, label in _step_targets(session)
        ]
    )


def _step_targets(session: Session) -> Iterator[tuple[str, str]]:
    debugger = session.program.debugger
    code, pc = debugger.control.stack[-1].code, debugger.control.stack[-1].pc
    if debugger.ended or pc == len(code.nodes):
        return
    node = code.nodes[pc]
    if node.op.startswith("@"):
        yield "block", node.op
    elif node.op in ("if", "while"):
        names = " or ".join(f"@{graph.name}" for graph in node.subgraphs if graph.name)
        yield "block", f"{'branch' if node.op == 'if' else 'loop'} {names}".rstrip()
    if debugger.control.micro_program() is not None:
        yield "micro", f"micro program of {node.op}"
    if can_step_into_kernel(session):
        yield "kernel", f"kernel of {node.op} (Python)"


def step_into_target(session: Session, number: int) -> None:
    """Step into one of the targets.  Raises UsageError if the program is not at its statement."""
    debugger = session.program.debugger
    frame = debugger.control.stack[-1]
    place = session.handles.place(number)
    if (
        not isinstance(place, IntoPlace)
        or place.address != address_of(session, frame.code, frame.pc)
        or place.what not in dict(_step_targets(session))
    ):
        raise UsageError("unknown or expired target", hint="request stepInTargets again")
    if place.what == "kernel":
        step_into_kernel(session)
        return
    micro = place.what == "micro"
    command = "stepi" if micro else "step"
    session.program.move(session, lambda: debugger.step_into(micro=micro), command)


# -- to ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToPlace:
    """A statement of a text (the program's, or a micro program by its number) to go back or forward to."""

    source_reference: int
    site: Site
    back: bool


@request("gotoTargets", when=STILL, capability="supportsGotoTargetsRequest", reads=True)
def goto_targets(session: Session, arguments: GotoTargetsArguments) -> GotoTargetsBody:
    listing = session.program.sources.listing(arguments.source)
    if listing is None:
        raise UsageError(
            "this source is not part of the program", hint="request the sources with `loadedSources`"
        )
    found = listing.next_site(session.client.incoming_line(arguments.line))
    if found is None:
        return GotoTargetsBody(targets=[])
    line, site = found
    reference = arguments.source.source_reference or 0
    ways = [ToPlace(reference, site, back) for back in _directions(session, listing, site)]
    return GotoTargetsBody(
        targets=[
            GotoTarget(
                id=session.handles.number(place),
                label=_label(line, place, listing),
                line=session.client.outgoing_line(line),
                instruction_pointer_reference=_reference(session, listing, site),
            )
            for place in ways
        ]
    )


def _label(line: int, place: ToPlace, listing: Listing) -> str:
    text = listing.lines[line - 1].strip()
    way = "back to when it last ran" if place.back else "forward, running up to it"
    return f"line {line}, {way}: {text}"


def _reference(session: Session, listing: Listing, site: Site) -> str | None:
    code = next(
        (code for code in session.program.debugger.loaded.codes if _is_of(session, code, listing, site)),
        None,
    )
    return None if code is None else reference_of(session, code, site.pc)


def _is_of(session: Session, code: Code, listing: Listing, site: Site) -> bool:
    """Return whether a block is the one of `site` in the text `listing`."""
    return code.path == site.path and session.program.debugger.loaded.listing_of(code).lines == listing.lines


def _directions(session: Session, listing: Listing, site: Site) -> list[bool]:
    """The possible directions to a statement (True is back), the more likely one first.

    In a loop both are possible: the statement ran in the last iteration, and runs again in this one.
    """
    debugger = session.program.debugger
    last = last_visit(debugger.control.machine, lambda code: _is_of(session, code, listing, site), site.pc)
    within = [frame for frame in debugger.control.stack if _is_of(session, frame.code, listing, site)]
    # A micro program is entered only by stepping into it, so one that is not open is never reached by
    # running.
    forward = not debugger.ended and (listing is debugger.loaded.listing or bool(within))
    ways = [*([True] if last is not None else []), *([False] if forward else [])]
    ahead = bool(within) and within[-1].pc < site.pc
    return ways[::-1] if ahead else ways


@request("goto", when=STOPPED, moves=True)
def goto(session: Session, arguments: GotoArguments) -> None:
    stream_of_thread(session, arguments.thread_id)
    place = session.handles.place(arguments.target_id)
    if not isinstance(place, ToPlace):
        raise UsageError("unknown or expired target", hint="request gotoTargets again")
    debugger = session.program.debugger
    listing = session.program.sources.numbered(place.source_reference)
    if listing is None:
        raise UsageError("unknown or expired target", hint="request gotoTargets again")

    def there(code: Code) -> bool:
        return _is_of(session, code, listing, place.site)

    if not place.back:
        move_to = debugger.control.move_to
        session.program.move(session, lambda: debugger.move(move_to, there, place.site.pc), GOTO)
        return
    tick = last_visit(debugger.control.machine, there, place.site.pc)
    if tick is None:
        raise UsageError("this statement has not run yet", hint="request gotoTargets again")
    session.program.move(session, lambda: _with_goto_reason(debugger.go_to(tick)), GOTO)


def _with_goto_reason(stop: Stop) -> Stop:
    """Report `goto` as the reason, at the very start too."""
    return replace(stop, reason="goto") if stop.reason == "entry" else stop
