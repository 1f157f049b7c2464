"""`nncdbg diff`: two models, backends, allocators or element types, value by value."""

from __future__ import annotations

import json
import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nncdbg.terminal.one_shot.failure import told_in_json
from nncdbg.terminal.options import (
    Parser,
    add_machine,
    add_prompt,
    load_program,
    make_debugger,
    make_debugger_of,
    say_notes,
)
from nncdbg.terminal.running import under_way

if TYPE_CHECKING:
    from nncdbg.engine.divergence.lockstep import Lockstep
    from nncdbg.engine.divergence.report import Report
    from nncdbg.engine.graph import Program
    from nncdbg.engine.session import Debugger
    from nncdbg.terminal.screen import Screen


def main(arguments: Sequence[str]) -> int:
    """0 if the runs agree, 1 if they diverge, else what the failure of a side is worth."""
    from nncdbg.terminal.screen import Screen

    options = _options(arguments)
    with told_in_json(options):
        return _diff(options, Screen(), arguments)


def _options(arguments: Sequence[str]) -> Namespace:
    parser = Parser(
        "nncdbg diff",
        "Run two sides in lockstep: the first divergence, the worst, and how the error grows.",
        usage="nncdbg diff A [B] [options]",
        epilog="exit code: 0 if they agree, 1 if they diverge",
    )
    add = parser.add_argument
    add("model", metavar="A", help="a graph: FILE.onnx or FILE.nnc (graph text)")
    add("other", metavar="B", nargs="?", help="another graph; without it, A again with what --...-b say")
    add("--flat", action="store_true", help="graphs without layers that are called")
    add_machine(parser)
    add("--backend-b", metavar="BACKEND", help="of side B, if another than side A's")
    add("--allocator-b", metavar="ALLOCATOR", help="of side B, if another than side A's")
    add("--dtype-b", metavar="DTYPE", help="f16, bf16, f32 or f64: cast side B's float weights and inputs")
    add("--rtol", type=float, help="relative tolerance (f32 1e-4, f64 1e-7, f16 2e-2, bf16 1e-1)")
    add("--atol", type=float, help="absolute tolerance (f32 1e-5, f64 1e-9, f16 5e-3, bf16 3e-2)")
    add("--ulp", type=int, help="so many representable numbers apart is equal too; alone, nothing else is")
    add("--json", action="store_true", help="one JSON document on standard output")
    add("--stop", action="store_true", help="go to the prompt on side A, just after the first divergence")
    add_prompt(parser)
    options = parser.parse_args(arguments)
    if options.other is None and not (options.backend_b or options.allocator_b or options.dtype_b):
        parser.error("both sides are the same: give a second model, --backend-b, --allocator-b or --dtype-b")
    if options.stop and options.json:
        parser.error("--stop opens a prompt, --json prints one document: choose one of them")
    if not options.stop and (options.source or options.record or options.replay):
        parser.error("--source, --record and --replay need the prompt that --stop opens")
    return options


def _diff(options: Namespace, screen: Screen, arguments: Sequence[str]) -> int:
    from nncdbg.engine.divergence.casting import same_places
    from nncdbg.engine.divergence.lockstep import Lockstep
    from nncdbg.engine.divergence.tolerance import Tolerance

    tolerance = Tolerance(options.rtol, options.atol, options.ulp)
    program = load_program(options.model, flat=options.flat)
    start = time.perf_counter()
    a = make_debugger(options, program, statistics=False)
    say_notes(screen, a)
    b, notes = _side_b(options, program, a)
    for note in notes:
        screen.note(note)
    same = True if options.other is None and same_places(a.program, b.program) else None
    lockstep = Lockstep(a, b, tolerance, same_places=same)
    with under_way(a, screen, lockstep.pause):
        report = lockstep.run()
    if options.json:
        notes = [*map(str, a.notes), *notes]
        print(json.dumps(_document(options, report, time.perf_counter() - start, notes)))
    else:
        _print(screen, options, report, arguments)
    if report.equal:
        return 0
    if options.stop:
        _converse(options, screen, program, lockstep)
    return 1


def _side_b(options: Namespace, program: Program, a: Debugger) -> tuple[Debugger, list[str]]:
    """Side B with the inputs of side A, and what a person should know of them."""
    from nncdbg.engine.divergence.door import counterpart

    other = program if options.other is None else load_program(options.other, flat=options.flat)
    other, inputs, notes = counterpart(other, a.inputs, options.dtype_b)
    given = {
        **vars(options),
        "backend": options.backend_b or options.backend,
        "allocator": options.allocator_b or options.allocator,
    }
    b = make_debugger_of(Namespace(**given), other, inputs, {}, statistics=False)
    return b, [*notes, *(f"side B: {note}" for note in b.notes)]


def _converse(options: Namespace, screen: Screen, program: Program, lockstep: Lockstep) -> None:
    """The prompt on side A, at the first divergence, with side B at hand."""
    from nncdbg.engine.divergence.companion import Companion
    from nncdbg.terminal.repl import converse
    from nncdbg.terminal.session import Session

    first = lockstep.report.first
    debugger = make_debugger(options, program)
    session = Session(debugger, options.model, screen)
    session.companion = Companion(lockstep)
    lockstep.b.debugger.restart()

    def greet() -> None:
        stop = debugger.go_to(first.a.tick if first is not None else lockstep.report.ops[0])
        screen.put("side A stands just after it; `diff %value` compares a value with side B's")
        session.arrived(stop, written=stop.reason != "end")

    converse(session, options, greet)


# -- what is printed ---------------------------------------------------------------------------


def _document(options: Namespace, report: Report, seconds: float, notes: list[str]) -> dict[str, Any]:
    sides = {
        "a": {
            "model": options.model,
            "backend": options.backend,
            "allocator": options.allocator,
            "dtype": None,
        },
        "b": {
            "model": options.other or options.model,
            "backend": options.backend_b or options.backend,
            "allocator": options.allocator_b or options.allocator,
            "dtype": options.dtype_b,
        },
    }
    tolerance = {name: getattr(options, name) for name in ("rtol", "atol", "ulp")}
    return {**report.as_dict(), "sides": sides, "tolerance": tolerance, "seconds": seconds, "notes": notes}


def _print(screen: Screen, options: Namespace, report: Report, arguments: Sequence[str]) -> None:
    from nncdbg.terminal.divergence import print_report

    print_report(screen, report)
    if not report.equal and not options.stop:
        screen.note(f"stop there with both values at hand: nncdbg diff {shlex.join(arguments)} --stop")
