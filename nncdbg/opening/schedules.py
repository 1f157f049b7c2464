"""The schedule of an opened program: that of its text, of a file, or one that nncdbg makes."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError
from nncdbg.opening.command_line import ArgumentParser

if TYPE_CHECKING:
    from nncdbg.engine.memory.plan_file import PlacedPlan
    from nncdbg.ir.records import Program


def add_schedule(parser: ArgumentParser) -> None:
    """Add the options for a schedule and its memory plan."""
    add = parser.add_argument
    add("--schedule", metavar="FILE", help="use the schedule in FILE instead of the margins of the text")
    add("--streams", type=int, metavar="N", help="make a schedule with at most N streams per device")
    add(
        "--device",
        action="append",
        default=[],
        metavar="PATTERN=DEVICE",
        help="with --streams: run the values that match PATTERN on DEVICE, as in --device 'enc*=cuda:1'",
    )
    add(
        "--bind",
        action="append",
        default=[],
        metavar="M=N",
        help="run stream M of the schedule on stream N; the margins show it as sM->N",
    )
    add("--plan", metavar="FILE", help="the offsets of the values in one arena, a memory plan")


def scheduled_program(program: Program, options: Namespace) -> tuple[Program, PlacedPlan | None]:
    """Return a program with the schedule that the options of `add_schedule` name, and its memory plan.

    Raises UsageError for options that cannot be combined, and files that do not fit the program.
    """
    plan = None
    if options.plan:
        from nncdbg.engine.memory.plan_file import read_plan

        plan = read_plan(options.plan, program)
    program = _scheduled(program, plan, options)
    if options.bind:
        from nncdbg.engine.schedules.validation import bound

        program = bound(program, dict(_binding(each) for each in options.bind))
    return program, plan


def _scheduled(program: Program, plan: PlacedPlan | None, options: Namespace) -> Program:
    if options.schedule and options.streams is not None:
        raise UsageError(
            "--schedule and --streams cannot be combined",
            hint="--streams makes a schedule, --schedule reads one",
        )
    if options.schedule:
        from nncdbg.opening.schedule_file import read_schedule

        return read_schedule(options.schedule, program)
    if options.streams is not None:
        from nncdbg.engine.schedules.scheduler import with_schedule

        devices = dict(_device(each) for each in options.device)
        return with_schedule(program, streams=options.streams, devices=devices, plan=plan)
    if options.device:
        raise UsageError("--device needs --streams", hint="add --streams 4")
    return program


def _binding(text: str) -> tuple[int, int]:
    numbers = [each.strip().removeprefix("s") for each in text.split("=")]
    if len(numbers) != 2 or not all(re.fullmatch("[0-9]{1,9}", each) for each in numbers):
        raise UsageError(
            f"--bind {text}: write M=N with the numbers of two streams", hint="for example --bind 3=4"
        )
    return int(numbers[0]), int(numbers[1])


def _device(text: str) -> tuple[str, str]:
    pattern, mark, device = text.rpartition("=")
    if not (mark and pattern and device):
        raise UsageError(f"--device {text}: write PATTERN=DEVICE", hint="for example --device 'enc*=cuda:1'")
    return pattern, device
