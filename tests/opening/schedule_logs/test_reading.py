"""Schedules of traces of torch.profiler, profiles of onnxruntime, CUDA graphs and access logs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given

from nncdbg.comparison.check_results import NOT_CHECKED, CheckResult
from nncdbg.engine.schedules.validation import validate
from nncdbg.errors import LoadError, UsageError
from nncdbg.nan_watch.commands import races
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.programs import open_program
from nncdbg.opening.schedule_logs.programs import (
    EventRecord,
    EventWait,
    HostWait,
    LoggedLaunch,
    LogRecord,
    ScheduleLog,
    program_of,
)
from nncdbg.opening.schedule_logs.reading import WITHOUT_WAITS, Trace, read_kineto, read_schedule_log
from tests.laws import examples
from tests.opening.schedule_logs.kineto_traces import kineto_trace
from tests.opening.schedule_logs.random_logs import logs


def written(folder: Path, name: str, content: object) -> Path:
    file = folder / name
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return file


def of_trace(document: dict[str, Any]) -> ScheduleLog:
    return read_kineto(msgspec.convert(document, Trace).traceEvents, "log")


def without_accesses(records: list[LogRecord]) -> list[LogRecord]:
    return [
        LoggedLaunch(each.name, each.stream, "cuda:0", start=each.start, duration=each.duration)
        if isinstance(each, LoggedLaunch)
        else each
        for each in records
    ]


def margins(log: ScheduleLog) -> list[tuple[str, str]]:
    return [(node.op, node.text().partition("|")[2]) for node in log.program.graphs["main"].nodes]


@examples(150)
@given(logs)
def test_a_kineto_trace_with_cuda_event_has_the_schedule_of_its_program(records: list[LogRecord]) -> None:
    plain = without_accesses(records)
    if any(isinstance(each, LoggedLaunch) for each in plain):
        expected = program_of(plain, source="log")
        assert margins(of_trace(kineto_trace(plain, events=True))) == margins(expected)


@examples(150)
@given(logs)
def test_an_older_kineto_trace_has_the_records_that_something_waits_for(records: list[LogRecord]) -> None:
    """Without `cuda_event`, the stream of a record is known from the wait for it."""
    plain = without_accesses(records)
    if any(isinstance(each, LoggedLaunch) for each in plain):
        waited = []
        for at, each in enumerate(plain):
            later = plain[at + 1 :]
            if isinstance(each, EventRecord):
                mentions = [
                    other
                    for other in later
                    if isinstance(other, EventRecord | EventWait | HostWait) and other.event == each.event
                ]
                if not mentions or isinstance(mentions[0], EventRecord):
                    continue
            waited.append(each)
        assert margins(of_trace(kineto_trace(plain))) == margins(program_of(waited, source="log"))


STEP: list[LogRecord] = [
    LoggedLaunch("ampere_sgemm_128x64_tn", 7, start=30.0, duration=50.0),
    EventRecord(2, 7),
    EventWait(2, 13),
    LoggedLaunch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 13, start=81.0, duration=20.0),
    HostWait(),
]


def test_a_trace_of_torch_profiler(tmp_path: Path) -> None:
    log = read_schedule_log(written(tmp_path, "trace.json.gz", kineto_trace(STEP)))
    assert log.program.text(locations=False).splitlines()[1:] == [
        'stream s7 "cuda:0"',
        'stream s13 "cuda:0"',
        "",
        "graph @main() -> () {",
        "  kernel.ampere_sgemm_128x64_tn() | s7 record e2",
        "  kernel.ncclDevKernel_AllReduce_Sum_f32_RING_LL() | s13 wait e2",
        "  kernel.synchronize()",
        "  return",
        "}",
    ]
    assert log.times == {(("main",), 0): (30.0, 50.0), (("main",), 1): (81.0, 20.0)}
    assert not validate(log.program, log.plan).problems
    assert CheckResult("race", NOT_CHECKED, "the log has no accesses to memory") in log.unchecked


def test_a_trace_without_synchronization_events_says_how_to_get_them(tmp_path: Path) -> None:
    log = read_schedule_log(written(tmp_path, "trace.json", kineto_trace(STEP, waits=False)))
    assert WITHOUT_WAITS in log.program.notes


def test_a_wait_for_a_record_from_before_the_trace_is_noted(tmp_path: Path) -> None:
    log = read_schedule_log(written(tmp_path, "trace.json", kineto_trace(STEP[2:])))
    assert CheckResult("schedule", NOT_CHECKED, "1 wait for events from before the log") in log.unchecked
    assert not validate(log.program, log.plan).problems


def test_streams_of_two_devices_have_different_numbers(tmp_path: Path) -> None:
    trace = kineto_trace(STEP)
    other = kineto_trace([LoggedLaunch("k", 7, start=1.0, duration=1.0)], device=1)["traceEvents"]
    trace["traceEvents"] += other
    log = read_schedule_log(written(tmp_path, "trace.json", trace))
    assert log.program.streams == {1007: "cuda:1", 7: "cuda:0", 13: "cuda:0"}


def test_a_real_profile_of_onnxruntime_has_no_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Exp", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor("w", TensorProto.FLOAT, [3, 4], [1.0] * 12)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    session.run(None, {"x": [[1.0] * 3] * 2})
    file = session.end_profiling()
    log = read_schedule_log(file)
    assert [node.op for node in log.program.graphs["main"].nodes] == ["kernel.MatMul", "kernel.Exp"]
    assert len(log.times) == 2
    with pytest.raises(UsageError, match="all nodes ran on the CPU, one after another"):
        races.main([file])
    capsys.readouterr()


def test_kernels_in_a_profile_of_onnxruntime_are_on_their_streams(tmp_path: Path) -> None:
    """The numbers of the CUDA provider are text."""
    kernels = [
        {"cat": "Kernel", "pid": 1, "tid": 1, "ph": "X", "ts": ts, "dur": 2, "name": name}
        | {"args": {"stream": stream, "grid_x": "1", "block_x": "256", "op_name": "Exp"}}
        for ts, name, stream in ((9, "void softmax<float>(float*)", "8"), (2, "gemm", "7"))
    ]
    file = written(tmp_path, "profile.json", [{"cat": "Session", "ph": "X", "name": "model_run"}, *kernels])
    log = read_schedule_log(file)
    assert margins(log) == [("kernel.gemm", " s7"), ("kernel.softmax", " s8")]
    assert any("its streams is unknown" in note for note in log.program.notes)


def kernel_node(number: int, name: str) -> str:
    return (
        f'"graph_1_node_{number}"[style="bold" shape="record" label="{{KERNEL\n'
        f"| {{ID | {number} (topoId: {9 - number}) | {name}\\<\\<\\<1,128,0\\>\\>\\>}}\n"
        '| {{node handle | func handle} | {0x01 | 0x02}}\n| {priority | 0}\n}"];\n'
    )


def copy_node(number: int, source: int, target: int, width: int, height: int = 1) -> str:
    return (
        f'"graph_1_node_{number}"[style="solid" shape="record" label="{{\nMEMCPY\n'
        f"| {{{{ID | node handle}} | {{{number} (topoId: 1) | 0x01}}}}\n"
        "| {kind | DtoD (DEVICE to DEVICE)}\n"
        "| {{srcPtr | dstPtr} | {pitch | ptr | xsize | ysize | pitch | ptr | xsize | ysize} | "
        f"{{0 | {source:#018x} | 0 | 0 | 0 | {target:#018x} | 0 | 0}}}}\n"
        "| {{srcPos | {{x | 0} | {y | 0} | {z | 0}}} | {dstPos | {{x | 0} | {y | 0} | {z | 0}}} | "
        f'{{Extent | {{{{Width | {width}}} | {{Height | {height}}} | {{Depth | 1}}}}}}}}\n}}"];\n'
    )


def cuda_graph(nodes: list[str], edges: list[tuple[int, int]]) -> bytes:
    lines = [f'"graph_1_node_{a}" -> "graph_1_node_{b}" [headlabel=0];\n' for a, b in edges]
    header = 'digraph dot {\nsubgraph cluster_1 {\nlabel="graph_1" graph[style="dashed"];\n'
    return (header + "".join([*nodes, *lines]) + "}\n}\n").encode()


def test_a_cuda_graph_with_a_missing_edge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        kernel_node(0, "_ZN2at6native29vectorized_elementwise_kernelILi4EEEviT0_"),
        copy_node(1, 0x3000, 0x4000, 256),
        copy_node(2, 0x4080, 0x5000, 128),
        kernel_node(3, "_Z4joinPf"),
    ]
    file = written(tmp_path, "graph.dot", cuda_graph(nodes, [(0, 1), (0, 2), (1, 3), (2, 3)]))
    log = read_schedule_log(file)
    assert margins(log) == [
        ("kernel.vectorized_elementwise_kernel", " s0 record e0"),
        ("kernel.memcpy", " s0"),
        ("kernel.memcpy", " s1 wait e0 record e1"),
        ("kernel.join", " s0 wait e1"),
    ]
    assert log.program.notes[0] == "4 nodes, depth 3, 1 independent pair"
    assert (
        CheckResult("race", NOT_CHECKED, "the memory accesses of 2 of 4 launches are unknown")
        in log.unchecked
    )
    assert races.main([str(file)]) == 1
    assert "no event orders them" in capsys.readouterr().out
    mended = written(tmp_path, "graph.dot", cuda_graph(nodes, [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]))
    assert races.main([str(mended)]) == 0


def test_the_bytes_of_a_copy_of_several_rows_are_unknown(tmp_path: Path) -> None:
    file = written(tmp_path, "graph.dot", cuda_graph([copy_node(0, 0x3000, 0x4000, 256, height=2)], []))
    assert read_schedule_log(file).plan is None


BAD = {
    "missing.json": (None, "cannot read the log"),
    "empty.json": (b"", "is not a schedule log"),
    "text.json": (b"hello", "is not a schedule log"),
    "object.json": (b"{}", "missing required field `traceEvents`"),
    "number.json": (b'{"traceEvents": 3}', "is not a schedule log"),
    "no-kernels.json": (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op"}]}', "has no kernels of a GPU"),
    "list.json": (b"[]", "has no kernels of a GPU"),
    "session.json": (b'[{"cat": "Session", "ph": "X"}]', "has no nodes"),
    "cut.json.gz": (b"\x1f\x8b\x08\x00", "cannot read the log"),
    "latin.json": (b'{"traceEvents": ["\xff"]}', "is not a schedule log"),
    "empty.dot": (b"digraph dot {\n}\n", "has no nodes"),
    "cycle.dot": (cuda_graph([kernel_node(0, "a"), kernel_node(1, "b")], [(0, 1), (1, 0)]), "is a cycle"),
    "edge.dot": (cuda_graph([kernel_node(0, "a")], [(0, 7)]), "names node graph_1_node_7"),
    "version.jsonl": (b'{"kind":"header","nncdbg_accesses":9}\n', "unsupported access log version 9"),
    "record.jsonl": (b'{"kind":"header","nncdbg_accesses":1}\n{"kind":"x"}\n', "line 2 is not a record"),
    "range.jsonl": (
        b'{"kind":"header","nncdbg_accesses":1}\n'
        b'{"kind":"launch","name":"a","stream":0,"reads":[{"begin":9,"end":3}]}\n',
        "line 2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_log_gives_one_line(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(LoadError) as caught:
        read_schedule_log(file)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_an_access_log_cut_within_its_last_line_is_read(tmp_path: Path) -> None:
    lines = [b'{"kind":"header","nncdbg_accesses":1}', b'{"kind":"launch","name":"a","stream":0}', b'{"kin']
    log = read_schedule_log(written(tmp_path, "run.jsonl", b"\n".join(lines)))
    assert len(log.program.graphs["main"].nodes) == 1
    assert "the last line of the log is incomplete: left out" in log.program.notes


def test_races_checks_a_log_and_writes_its_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A16, A17: the race, the streams of the log, and what ran out of order, with the lines of the text."""
    lines = [
        {"kind": "header", "nncdbg_accesses": 1},
        {"kind": "launch", "name": "gemm", "stream": 3, "writes": [{"begin": 64, "end": 128}]}
        | {"start": 10.0, "duration": 5.0},
        {"kind": "launch", "name": "copy", "stream": 1 << 40, "reads": [{"begin": 64, "end": 128}]}
        | {"start": 12.0, "duration": 5.0},
    ]
    file = written(tmp_path, "step.jsonl", "".join(json.dumps(each) + "\n" for each in lines).encode())
    target = tmp_path / "timeline.json"
    assert races.main([str(file), "--timeline", str(target)]) == 1
    out = capsys.readouterr().out
    assert "a race: %t0 at kernel.copy" in out
    assert "s3 writes %t0 at line 4, and s0 reads %t0 at line 5" in out
    assert "s0 is stream 0x10000000000 of the log" in out
    assert "order violation: line 5 on s0 began 3 us before the end of line 4 on s3" in out
    events = json.loads(target.read_text())["traceEvents"]
    assert [(each["name"], each["ts"]) for each in events if each["ph"] == "X"] == [
        ("%t0 kernel.gemm", 10.0),
        ("kernel.copy", 12.0),
        ("main end", 17.0),
    ]


def test_a_log_cannot_run(tmp_path: Path) -> None:
    file = written(tmp_path, "trace.json", kineto_trace(STEP))
    opened = open_program(RunConfiguration(program=str(file)))
    with pytest.raises(UsageError, match="is a schedule log, which cannot run"):
        opened.debugger()
