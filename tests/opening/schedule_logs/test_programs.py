"""The program of a log has exactly the order and the accesses of the log."""

from __future__ import annotations

import re
from textwrap import dedent

import msgspec
import pytest
from hypothesis import given

import nncdbg
from nncdbg.engine.schedules.validation import validate
from nncdbg.opening.schedule_logs.programs import (
    ByteRange,
    EventCreation,
    EventRecord,
    EventWait,
    HostWait,
    LoggedLaunch,
    LogHeader,
    LogRecord,
    ScheduleLog,
    program_of,
    short_name,
)
from nncdbg.opening.schedule_logs.reading import read_access_log
from tests.laws import examples
from tests.opening.schedule_logs.random_logs import logs, unordered_conflicts


def op_at(log: ScheduleLog, pc: int) -> str:
    return log.program.graphs["main"].nodes[pc].op.removeprefix("kernel.")


def races(log: ScheduleLog) -> set[tuple[str, str]]:
    return {
        (op_at(log, problem.first.site[1]), op_at(log, problem.second.site[1]))
        for problem in validate(log.program, log.plan).problems
        if problem.kind == "race" and problem.first is not None
    }


@examples(1000)
@given(logs)
def test_races_are_the_unordered_conflicts_of_the_log(records: list[LogRecord]) -> None:
    log = program_of(records, source="log")
    assert races(log) == unordered_conflicts(records)
    kinds = {problem.kind for problem in validate(log.program, log.plan).problems}
    assert kinds <= {"race", "lost-record"}


@given(logs)
def test_the_text_of_the_program_has_the_same_schedule(records: list[LogRecord]) -> None:
    log = program_of(records, source="log")
    again = nncdbg.parse(log.program.text())
    assert again == log.program
    assert validate(again, log.plan) == validate(log.program, log.plan)


@given(logs)
def test_an_access_log_keeps_all_records(records: list[LogRecord]) -> None:
    lines = [msgspec.json.encode(each) for each in (LogHeader(1), *records)]
    assert read_access_log(b"\n".join(lines) + b"\n", "log") == program_of(records, source="log")


def launch(name: str, stream: int, reads: str = "", writes: str = "") -> LoggedLaunch:
    """Return a launch with accesses such as `0-16 32-48`."""
    found = [
        [[int(number) for number in each.split("-")] for each in text.split()] for text in (reads, writes)
    ]
    ranges = [tuple(ByteRange(begin, end) for begin, end in each) for each in found]
    return LoggedLaunch(name, stream, reads=ranges[0], writes=ranges[1])


HANDLE = 0x7F00_1234_0000

PROGRAMS: dict[str, tuple[list[LogRecord], str]] = {
    "record and wait": (
        [launch("a", 0, "", "0-16"), EventRecord(4, 0), EventWait(4, 7), launch("b", 7, "0-16", "16-32")],
        """
        graph @main() -> () {
          %t0 = kernel.a() | s0 record e4
          %t1 = kernel.b(%t0) | s7 wait e4
          return
        }
        """,
    ),
    "the halves of a value": (
        [
            launch("a", 0, "", "0-16"),
            launch("b", 0, "0-8", "32-48"),
            launch("c", 0, "", "0-8"),
            launch("d", 0, "0-16", "48-64"),
        ],
        """
        graph @main() -> () {
          %t0, %t1 = kernel.a() | s0
          %t2 = kernel.b(%t0) | s0
          %t3 = kernel.c() | s0
          %t4 = kernel.d(%t3, %t1) | s0
          return
        }
        """,
    ),
    "a value from before the log": (
        [launch("a", 0, "0-16", "0-16"), launch("b", 0, "0-16", "")],
        """
        graph @main(%t0) -> () {
          %t1 = kernel.a(%t0) | s0
          kernel.b(%t1) | s0
          return
        }
        """,
    ),
    "an event recorded again while a stream is to wait for it": (
        [
            launch("a", 0, "", "0-8"),
            EventRecord(1, 0),
            EventWait(1, 2),
            launch("b", 0, "", "8-16"),
            EventRecord(1, 0),
            launch("c", 2, "0-8", ""),
        ],
        """
        graph @main() -> () {
          %t0 = kernel.a() | s0 record e1
          %t1 = kernel.b() | s0
          kernel.wait() | s2 wait e1
          kernel.record() | s0 record e1
          kernel.c(%t0) | s2
          return
        }
        """,
    ),
    "the host waits for a stream, then for all": (
        [launch("a", 3, "", "0-8"), HostWait(stream=3), launch("b", 3, "0-8", ""), HostWait()],
        """
        graph @main() -> () {
          %t0 = kernel.a() | s3 record e0
          kernel.synchronize() | host wait e0
          kernel.b(%t0) | s3
          kernel.synchronize()
          return
        }
        """,
    ),
    "handles are numbered": (
        [launch("a", HANDLE, "", "0-8"), EventRecord(HANDLE, HANDLE), EventWait(HANDLE, 0), launch("b", 0)],
        """
        graph @main() -> () {
          %t0 = kernel.a() | s0 record e0
          kernel.b() | s1 wait e0
          return
        }
        """,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_statements_of_a_log(name: str) -> None:
    records, text = PROGRAMS[name]
    program = program_of(records, source="log").program
    assert program.text(locations=False) == f"#nncdbg 1\n\n{dedent(text).strip()}\n"


def test_streams_keep_their_numbers_in_notes() -> None:
    """A17: the notes name the stream of the log that a number of the text is."""
    records, _ = PROGRAMS["handles are numbered"]
    assert "s0 is stream 0x7f0012340000 of the log" in program_of(records, source="log").program.notes


def test_events_recorded_again_before_a_wait_are_reported() -> None:
    """A18: an event of a pool is recorded again before the wait for its first record."""
    records: list[LogRecord] = [
        launch("a", 0, "", "0-8"),
        EventRecord(1, 0),
        launch("b", 1, "", "8-16"),
        EventRecord(1, 1),
        EventWait(1, 2),
        launch("c", 2, "0-8", ""),
    ]
    log = program_of(records, source="log")
    assert {problem.kind for problem in validate(log.program, log.plan).problems} == {"lost-record", "race"}


@pytest.mark.parametrize(("created", "kinds"), [(True, {"no-record", "race"}), (False, {"race"})])
def test_a_wait_for_an_event_without_record(created: bool, kinds: set[str]) -> None:
    """A2: it is a fault if the event was created during the log."""
    records: list[LogRecord] = [EventCreation(5)] if created else []
    records += [launch("a", 0, "", "0-8"), EventWait(5, 1), launch("b", 1, "0-8", "")]
    log = program_of(records, source="log")
    assert {problem.kind for problem in validate(log.program, log.plan).problems} == kinds
    assert created != any("from before the log" in note for note in log.program.notes)


def test_names_and_types_of_tensors_are_those_of_the_log() -> None:
    weight = ByteRange(0, 16, ("f32", (4,)), "w.1")
    records = [
        LoggedLaunch("aten.add_.Tensor", 0, reads=(weight,), writes=(weight,), file="train.py", line=9),
        LoggedLaunch("aten.add_.Tensor", 0, reads=(weight,), writes=(weight,)),
    ]
    text = program_of(records, source="log").program.text()
    assert '%w.1.1 = kernel.add_(%w.1) : f32[4] loc("train.py":9, node "aten.add_.Tensor") | s0' in text
    assert "graph @main(%w.1: f32[4])" in text
    assert re.search(r"%w\.1\.2 = kernel\.add_\(%w\.1\.1\) : f32\[4\]", text)


NAMES = {
    "void at::native::vectorized_elementwise_kernel<4, F<float>, std::array<char*, 2ul> >(int, F)": (
        "vectorized_elementwise_kernel"
    ),
    "void (anonymous namespace)::softmax_warp_forward<float, 5>(float*)": "softmax_warp_forward",
    "_ZN2at6native13reduce_kernelILi512ELi1EEEvT_": "reduce_kernel",
    "_Z3addPf": "add",
    "_Z99": "Z99",
    "ampere_sgemm_128x64_tn": "ampere_sgemm_128x64_tn",
    "Memcpy HtoD (Pinned -> Device)": "Memcpy_HtoD",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    ),
    "aten.add_.Tensor": "add_",
    "torch.torchvision.nms.default": "nms",
    "128": "_128",
    "": "unnamed",
    "éé": "unnamed",
    "a<b": "a",
    "operator>>(int)": "operator",
}


@pytest.mark.parametrize("name", NAMES)
def test_short_names_of_kernels(name: str) -> None:
    assert short_name(name) == NAMES[name]
