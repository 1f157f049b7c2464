"""The compiled loop over torch's operators: the same values, errors and stops as from Python."""

from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg import stats
from nncdbg.engine.backends import Call, Kernels
from nncdbg.engine.compilation.code import EVICTED, Statement
from nncdbg.errors import UsageError
from tests.presence import present

torch = pytest.importorskip("torch", reason="torch is not installed")

from nncdbg.engine.backends import torch_statements  # noqa: E402
from nncdbg.engine.backends.torch_statements import LIBRARY  # noqa: E402
from nncdbg.engine.ops.aten.cpp_libraries import SWITCH, OptionalLibrary  # noqa: E402
from tests.torch.steps import STEPS  # noqa: E402

if os.environ.get(SWITCH) == "off":
    pytest.skip("there is no C++ compiler with the headers of Python", allow_module_level=True)

X = np.array([[0.5, 1, -2], [2, 3, 0.25]], np.float32)
Y = np.array([[1, -1, 4], [0, 2, 0.5]], np.float32)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def graph(*lines: str, result: str = "%r") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    inputs = "%x: f32[2,3], %y: f32[2,3]"
    return f"#nncdbg 1\ngraph @main({inputs}) -> ({result}) {{\n{body}\n  return {result}\n}}\n"


def opened(text: str, **options: Any) -> nncdbg.Debugger:
    options = {"statistics": False, "history": 0, **options}
    return nncdbg.Debugger(nncdbg.parse(text), {"x": X.copy(), "y": Y.copy()}, backend="torch", **options)


def kinds(debugger: nncdbg.Debugger) -> list[str]:
    """Return the type of what executes each statement of the entry graph."""
    code = debugger.loaded.codes[0]
    return [type(execute).__name__ for execute, _, _ in code.evicting if execute is not None]


def both_ways(monkeypatch: pytest.MonkeyPatch, text: str, **options: Any) -> list[nncdbg.Debugger]:
    found = []
    for switch in ("off", "now"):
        monkeypatch.setenv(SWITCH, switch)
        found.append(opened(text, **options))
    return found


# -- values -----------------------------------------------------------------------------------

LINES = {
    "function": ("%r = aten.exp.default(%x)",),
    "constants": ("%r = aten.sum.dim_IntList(%x, dim=[1], keepdim=true)",),
    "dtype": ('%r = aten.sum.dim_IntList(%x, dim=[0], dtype="f64")',),
    "number for a tensor": ("%r = aten.div.Tensor(%x, other=3)",),
    "keyword": ("%r = aten.add.Tensor(%x, %y, alpha=2)",),
    "in place": ("%a = aten.exp.default(%x)", "%r = aten.mul_.Tensor(%a, %y)"),
    "in place, an input": ("%r = aten.mul_.Tensor(%x, %y)",),
    "in place, both operands": ("%a = aten.exp.default(%x)", "%r = aten.mul_.Tensor(%a, %a)"),
    "in place, read later": (
        "%a = aten.exp.default(%x)",
        "%b = aten.mul_.Tensor(%a, %y)",
        "%r = aten.sub.Tensor(%a, %b)",
    ),
    "in place, a view is read later": (
        "%a = aten.exp.default(%x)",
        "%v = aten.t.default(%a)",
        "%b = aten.neg_.default(%a)",
        "%r = aten.mm.default(%b, %v)",
    ),
    "in place, on a view": (
        "%a = aten.exp.default(%x)",
        "%v = aten.t.default(%a)",
        "%b = aten.neg_.default(%v)",
        "%r = aten.add.Tensor(%b, other=1)",
    ),
    "in place, repeated elements": (
        "%a = aten.expand.default(%x, size=[2,2,3])",
        "%b = aten.select.int(%a, dim=0, index=0)",
        "%r = aten.copy_.default(%b, %y)",
    ),
    "in place, overwritten": ("%a = aten.exp.default(%x)", "%r = aten.fill_.Scalar(%a, value=2)"),
    "list": ("%r = aten.cat.default(%x, %y, n_tensors=2, dim=1)",),
    "list in place": (
        "%a = aten.exp.default(%x)",
        "%b, %c = aten._foreach_mul_.Scalar(%a, %y, n_self=2, scalar=2.0)",
        "%r = aten.add.Tensor(%b, %c)",
    ),
    "list of results": ("%a, %b = aten.split.Tensor(%x, split_size=1)", "%r = aten.add.Tensor(%a, %b)"),
    "several results": (
        "%a, %b = aten.var_mean.correction(%x, dim=[1])",
        "%r = aten.add.Tensor(%a, %b)",
    ),
    "optional operand": (
        "%a = aten.sum.dim_IntList(%x, dim=[0])",
        "%r = aten.layer_norm.default(%y, %a, normalized_shape=[3])",
    ),
    "literal": ("%r = aten.mul.Tensor(%x, [1.0, 2.0, 3.0])",),
}
"""Statements of each form that the library has a way for, and of some that only Python runs."""


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
@pytest.mark.parametrize("history", [0, None])
def test_the_bits_are_those_of_calls_from_python(
    monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], history: int | None
) -> None:
    plain, compiled = both_ways(monkeypatch, graph(*lines), history=history)
    for debugger in (plain, compiled):
        stop = debugger.run()
        assert stop.reason == "end", stop
    assert "Kernel" not in kinds(plain)
    # Values in the history are counted in Python, and constants converted.
    assert ("Kernel" in kinds(compiled)) is (history == 0 and "[1.0" not in lines[-1])
    assert present(compiled.outputs)["r"].tobytes() == present(plain.outputs)["r"].tobytes()
    assert compiled.inputs["x"].tobytes() == X.tobytes()
    # Single statements run from Python.
    compiled.restart()
    while compiled.stop.reason != "end":
        compiled.step_over()
    assert present(compiled.outputs)["r"].tobytes() == present(plain.outputs)["r"].tobytes()


@pytest.mark.parametrize(
    "step", [step for step in STEPS[::5] if not step.skip_reason], ids=lambda step: step.name
)
def test_training_steps_have_the_same_bits(monkeypatch: pytest.MonkeyPatch, step: Any) -> None:
    from nncdbg.torch import record

    training = step.build()
    with record(training.models, training.optimizers) as recorded:
        training.run()
    results = []
    for switch in ("off", "now"):
        monkeypatch.setenv(SWITCH, switch)
        debugger = nncdbg.Debugger(recorded.program, recorded.inputs, backend="torch", history=0)
        assert debugger.run(heed=False).reason == "end"
        results.append({name: array.tobytes() for name, array in present(debugger.outputs).items()})
    assert results[0] == results[1]


# -- memory that is written in place ----------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "options", "catches", "same"),
    [
        ("%r = aten.add.Tensor(%b, %y)", {}, (), True),
        ("%r = aten.add.Tensor(%b, %y)", {"statistics": True}, (), True),
        ("%r = aten.add.Tensor(%b, %y)", {"statistics": True}, ("nan",), False),
        ("%r = aten.add.Tensor(%b, %y)", {}, ("nan",), False),
        ("%r = aten.add.Tensor(%b, %a)", {}, (), False),
        ("%r = aten.mm.default(%b, %v)", {}, (), False),
        ("%r = aten.add.Tensor(%b, %y)", {"history": None}, (), False),
    ],
    ids=[
        "dropped",
        "statistics",
        "statistics and catch nan",
        "catch nan",
        "read later",
        "a view is read later",
        "with history",
    ],
)
def test_a_value_is_written_in_place_if_nothing_else_reads_it(
    last: str, options: dict[str, Any], catches: tuple[str, ...], same: bool
) -> None:
    stats.prepare(wait=True)
    view = ["%v = aten.t.default(%a)"] if "%v" in last else []
    text = graph("%a = aten.exp.default(%x)", *view, "%b = aten.mul_.Tensor(%a, %y)", last)
    debugger = opened(text, **options)
    if catches:
        debugger.catch(*catches)
    made: list[int] = []

    def noting(binding: Any, execute: Any) -> Any:
        def run(*operands: Any) -> Any:
            result = execute(*operands)
            made.append(result.data_ptr())
            return result

        return run if binding.pc == 0 else execute

    debugger.observers.measure(noting)
    debugger.break_at(value="%r")
    assert debugger.run().reason == "breakpoint"
    code, slots = debugger.loaded.codes[0], debugger.control.machine.frames[-1].slots
    written = slots[code.slot_of["b"]]
    assert (written.data_ptr() == made[0]) is same
    assert (slots[code.slot_of["a"]] is EVICTED) is same
    if debugger.observers.log is not None:
        row = present(debugger.observers.log.row_of(written))
        assert row[:2] == [written.min().item(), written.max().item()]


def test_the_memory_of_an_array_is_not_written() -> None:
    """An array that is given as a value shares its memory with a tensor."""
    given = np.exp(X)
    debugger = opened(
        graph("%a = aten.exp.default(%x)", "%b = aten.mul_.Tensor(%a, %y)", "%r = aten.neg.default(%b)")
    )
    debugger.break_at(value="%b")
    debugger.run()
    debugger.set_value("%a", given)
    assert debugger.run().reason == "end"
    assert given.tobytes() == np.exp(X).tobytes()


def test_a_value_that_was_overwritten_is_computed_again() -> None:
    text = graph("%a = aten.exp.default(%x)", "%b = aten.mul_.Tensor(%a, %y)", "%r = aten.neg.default(%b)")
    debugger = opened(text)
    debugger.break_at(value="%r")
    assert debugger.run().reason == "breakpoint"
    assert np.array_equal(present(debugger.value("%a")), torch.exp(torch.from_numpy(X)).numpy())
    assert np.array_equal(
        present(debugger.value("%b")), (torch.exp(torch.from_numpy(X)) * torch.from_numpy(Y)).numpy()
    )


# -- errors, stops and interruptions ----------------------------------------------------------

FAILING = {
    "sizes": ("%a = aten.exp.default(%x)", "%r = aten.mm.default(%a, %y)"),
    "sizes in place": (
        "%a = aten.sum.dim_IntList(%x, dim=[0])",
        "%r = aten.add_.Tensor(%a, %y)",
    ),
    "index": ("%a = aten.exp.default(%x)", "%r = aten.select.int(%a, dim=7, index=0)"),
}


@pytest.mark.parametrize("lines", FAILING.values(), ids=FAILING)
def test_errors_are_those_of_calls_from_python(
    monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...]
) -> None:
    plain, compiled = both_ways(monkeypatch, graph(*lines))
    stops = [debugger.run() for debugger in (plain, compiled)]
    assert [stop.reason for stop in stops] == ["exception", "exception"]
    assert str(stops[0].error) == str(stops[1].error)
    assert stops[0].line == stops[1].line


def test_catches_and_statistics_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "%a = aten.log.default(%x)",
        "%b, %c = aten.var_mean.correction(%a, dim=[1])",
        "%d = aten.t.default(%y)",
        "%r = aten.sub.Tensor(%b, %c)",
    )
    stats.prepare(wait=True)
    seen: list[list[Any]] = []
    for switch in ("off", "now"):
        monkeypatch.setenv(SWITCH, switch)
        debugger = opened(graph(*lines), statistics=True, history=None)
        debugger.catch("nan", "inf")
        stop = debugger.run()
        assert debugger.run().reason == "end"
        log, slots = present(debugger.observers.log), debugger.control.machine.frames[0].slots
        slot_of = debugger.loaded.codes[0].slot_of
        rows = [str(log.row_of(slots[slot_of[name]])) for name in "abcdr"]
        seen.append([stop.reason, stop.line, stop.detail, *rows])
    assert seen[0] == seen[1]
    assert "nan" in seen[0][2].lower()


UNREAD = {
    "%r = aten.relu.default(%a)": True,
    "%r = aten.neg_.default(%a)": True,
    "%r = aten.threshold_backward.default(%a, %y, threshold=0.0)": True,
    "%r = aten.constant_pad_nd.default(%a, pad=[1,0], value=-1.0)": True,
    "%r = aten.constant_pad_nd.default(%a, pad=[1,0], value=nan)": False,
    "%r = aten.constant_pad_nd.default(%a, pad=[1,0], value=-inf)": False,
    "%r = aten.constant_pad_nd.default(%a, pad=[1,0], value=1e38)": False,
    "%r: f32[2,3] = aten.mul_.Tensor(%a, other=0.999)": True,
    "%r: f32[2,3] = aten.add.Tensor(%a, other=1e-08)": True,
    "%r: f32[2,3] = aten.div.Tensor(%a, other=2)": True,
    "%r = aten.mul.Tensor(%a, other=0.999)": False,
    "%r: f32[2,3] = aten.mul.Tensor(%a, other=2.0)": False,
    "%r: f32[2,3] = aten.mul.Tensor(%a, other=0.0)": False,
    "%r: f32[2,3] = aten.div.Tensor(%a, other=0.5)": False,
    "%r: f32[2,3] = aten.add.Tensor(%a, other=1.0, alpha=1e38)": False,
    "%r: f32[2,3] = aten.mul.Tensor(%a, %y)": False,
    "%r = aten.abs.default(%a)": False,
}
"""Statements, and whether a check for NaN and Inf leaves their results unread: none originates there."""


@pytest.mark.parametrize("line", UNREAD)
def test_check_leaves_results_unread_in_which_none_originates(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats.prepare(wait=True)
    text = graph("%a = aten.sub.Tensor(%x, %y)", line)
    debugger = opened(text)
    debugger.catch("nan", "inf")
    assert kinds(debugger) == ["Observed", "Kernel" if UNREAD[line] else "Observed"]
    debugger.observers.follow(debugger.control)
    assert "Kernel" not in kinds(debugger)
    for element in (1, 3e38, np.inf, -np.inf, np.nan):
        x = X.copy()
        x[1, 1] = element
        seen = []
        for switch in ("off", "now"):
            monkeypatch.setenv(SWITCH, switch)
            other = nncdbg.Debugger(
                nncdbg.parse(text), {"x": x, "y": Y}, backend="torch", statistics=False, history=0
            )
            other.catch("nan", "inf")
            stops = [other.run()]
            while stops[-1].reason != "end":
                stops.append(other.run())
            seen.append([(stop.reason, stop.line, stop.detail) for stop in stops])
        assert seen[0] == seen[1]


def test_check_reads_all_results_of_another_kernel() -> None:
    """A kernel in place of that of an operator that keeps numbers finite may be wrong."""
    stats.prepare(wait=True)
    debugger = opened(graph("%a = aten.exp.default(%x)", "%r = aten.relu.default(%a)"))

    def wrong(kernels: Kernels, call: Call, statement: Statement) -> Kernels:
        return (
            replace(kernels, run=lambda a: a * float("nan"))
            if call.node.op.startswith("aten.relu")
            else kernels
        )

    linker = debugger.loaded.linker
    linker.covers = [wrong]
    linker.link_again()
    debugger.catch("nan")
    stop = debugger.run()
    assert stop.reason == "exception"
    assert "%r" in stop.detail


def long_text() -> str:
    lines = ["%v0 = aten.exp.default(%x)"]
    lines += [f"%v{number} = aten.mul.Tensor(%v{number - 1}, other=0.5)" for number in range(1, 4000)]
    return graph(*lines, "%r = aten.neg.default(%v3999)")


def test_another_thread_interrupts_the_loop() -> None:
    debugger = opened(long_text())
    machine = debugger.control.machine
    reached = threading.Event()

    def noting(binding: Any, execute: Any) -> Any:
        def run(*operands: Any) -> Any:
            reached.set()
            return execute(*operands)

        return run if binding.pc == 100 else execute

    debugger.observers.measure(noting)

    def pause() -> None:
        reached.wait()
        debugger.pause()

    thread = threading.Thread(target=pause)
    thread.start()
    stop = debugger.run()
    thread.join()
    assert stop.reason == "pause"
    assert 100 <= machine.tick < 4000
    assert debugger.run().reason == "end"


def test_a_signal_handler_runs_in_the_loop() -> None:
    debugger = opened(long_text())
    seen: list[int] = []

    def noting(binding: Any, execute: Any) -> Any:
        def run(*operands: Any) -> Any:
            os.kill(os.getpid(), signal.SIGUSR1)
            return execute(*operands)

        return run if binding.pc == 100 else execute

    def handle(number: int, _: Any) -> None:
        seen.append(number)
        debugger.pause()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        debugger.observers.measure(noting)
        assert debugger.run().reason == "pause"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]


def test_a_debugger_is_collected() -> None:
    debugger = opened(graph("%a = aten.exp.default(%x)", "%r = aten.mul_.Tensor(%a, %y)"), statistics=True)
    debugger.catch("nan")
    debugger.run()
    code = weakref.ref(debugger.loaded.codes[0])
    del debugger
    gc.collect()
    assert code() is None


# -- the library ------------------------------------------------------------------------------


def new_library(patience: int = 1000) -> OptionalLibrary:
    """Return the library as a new process has it, which is not loaded."""
    source = Path(torch_statements.__file__).with_name("torch_kernels.cpp")
    return OptionalLibrary(source, torch_statements.__name__, "the test", "the loop", patience=patience)


def test_without_a_compiler_the_loop_is_asked_for_in_vain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    library = new_library()
    with pytest.raises(UsageError, match="CXX names no-such-compiler, which does not exist") as raised:
        library.module()
    assert "NNCDBG_TORCH_KERNELS=off" in str(raised.value.hint)
    monkeypatch.delenv(SWITCH, raising=False)
    assert library.module() is None
    monkeypatch.setattr(torch_statements, "LIBRARY", library)
    debugger = opened(graph("%r = aten.exp.default(%x)"))
    assert "Kernel" not in kinds(debugger)
    assert debugger.run().reason == "end"


def test_a_library_of_another_machine_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(SWITCH, raising=False)
    library = new_library()
    library.path.parent.mkdir(parents=True)
    library.path.write_bytes(b"not a library")
    assert library.module() is None


def test_many_statements_compile_the_library_in_the_background(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    copy = f"shutil.copy({str(LIBRARY.path)!r}, sys.argv[sys.argv.index('-o') + 1])"
    compiler.write_text(f"#!{sys.executable}\nimport shutil, sys\n{copy}\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> Any:
        begun.append(popen(*arguments, **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.delenv(SWITCH, raising=False)
    library = new_library(patience=3)
    found = [library.module() for _ in range(10)]
    assert found == [None] * 10
    assert len(begun) == 1
    assert begun[0].wait(timeout=600) == 0
    assert library.module() is not None
