"""nncdbg: the debugger for computation graphs.

    import nncdbg

    debugger = nncdbg.Debugger("model.onnx", {"x": x})     # stopped at the first statement
    debugger.break_at(op="Softmax")
    debugger.catch("nan")
    stop = debugger.run()                                  # stop.reason, stop.line
    debugger.value("%h"), debugger.stats("%h")             # an array, its statistics
    debugger.step_back()

Open and run
    load(path)             a Program from `.onnx`, `.nnc`, a folder that nncdbg wrote, or an onnx.ModelProto
    parse(text)            a Program from graph text; `str(program)` is its text
    Builder()              builds a Program in Python, one statement per call
    Layers(builder)        layers with named parameters
    Editor(program)        inserts, replaces, rewires and deletes statements
    eager()                executes ops as Python calls them; their trace is a Program
    run(program, inputs)   the outputs by name
    read_kernels(file)     the backends of statements that `nncdbg autotune` chose, for `kernels` of `run`
    in_order(program, order)    an order of the program's schedule, as a Program
    grad(program, of, by)  a Program that computes gradients
    minimize(program, losses)   a Program that trains: backward graph, optimizer, update
    to_onnx(program)       the program as an onnx.ModelProto; write_onnx(program, file)
    load_states(program, file)  the program with the states of a file, and a report; save_states(states, file)
    Debugger(program, inputs)   break, step, step back, inspect, edit

    execute(debugger, "why")    what a command of the prompt prints

Check
    watch(program)         a Report: the op where the first NaN originates, and why
    diff(a, b)             a DiffReport: the first statement whose result differs
    diff_corpus(a, b, inputs_dir=...)   a DiffCorpusReport: the same for each case of a folder
    reduce(program, inputs, folder=...)   the smallest program with the same finding, as a repro bundle
    bisect(program, inputs)     a BisectReport: the statements that must stay f32 in half precision
    summarize(array)       a Summary: min, max, mean, std, counts of NaN, Inf and zeros

Debug a script
    breakpoint()           opens a prompt before the next statement of a graph
    listen(address), wait_for_client()    an editor attaches

Every function that takes a program also takes a path.  Every error is an NncdbgError.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from nncdbg.version import __version__ as __version__

# Imported on first use, so that `nncdbg --help` does not import NumPy and ONNX.
_PUBLIC = {
    "Debugger": "nncdbg.engine.debugger",
    "Builder": "nncdbg.engine.building.builder",
    "Editor": "nncdbg.engine.building.editor",
    **dict.fromkeys(("EditedBlock", "EditedStatement", "EditedValue"), "nncdbg.engine.building.editing"),
    "EditedGraph": "nncdbg.engine.building.editor",
    "GraphValue": "nncdbg.engine.building.values",
    **dict.fromkeys(("grad", "minimize"), "nncdbg.engine.building.minimizing"),
    "Layers": "nncdbg.engine.building.layers",
    **dict.fromkeys(("Eager", "eager"), "nncdbg.dynamic_graph.session"),
    "EagerVariable": "nncdbg.dynamic_graph.variable",
    "Stop": "nncdbg.engine.stopping.stops",
    "Breakpoint": "nncdbg.engine.stopping.breakpoints",
    "Frame": "nncdbg.engine.execution.frame",
    **dict.fromkeys(("Branch", "Mark"), "nncdbg.engine.time.timeline"),
    **dict.fromkeys(("Graph", "Program", "TensorType"), "nncdbg.ir.records"),
    **dict.fromkeys(("is_client_connected", "listen", "wait_for_client"), "nncdbg.dap_server.attach.calls"),
    "breakpoint": "nncdbg.script_breakpoint",
    "diff": "nncdbg.engine.divergence.call",
    "DiffReport": "nncdbg.comparison.report",
    "diff_corpus": "nncdbg.opening.diff_corpus",
    "DiffCorpusReport": "nncdbg.opening.diff_corpus_report",
    "execute": "nncdbg.commands.execute",
    **dict.fromkeys(("load", "ProgramSource"), "nncdbg.engine.frontends"),
    "run": "nncdbg.opening.run",
    "in_order": "nncdbg.engine.schedules.player",
    "read_kernels": "nncdbg.opening.programs",
    **dict.fromkeys(("LoadedStates", "load_states", "save_states"), "nncdbg.opening.state_file"),
    **dict.fromkeys(("to_onnx", "write_onnx"), "nncdbg.opening.onnx_export"),
    "Outputs": "nncdbg.engine.values.values",
    "Tensor": "nncdbg.engine.values.tensor",
    "load_op_library": "nncdbg.engine.ops.library",
    **dict.fromkeys(("Op", "declare", "op"), "nncdbg.engine.ops.declaration"),
    "parse": "nncdbg.textual_repr",
    "watch": "nncdbg.nan_watch.call",
    **dict.fromkeys(("reduce", "Reduced"), "nncdbg.nan_watch.reduction.reducing"),
    **dict.fromkeys(("bisect", "BisectReport"), "nncdbg.nan_watch.bisection"),
    **dict.fromkeys(("Report", "WatchFinding"), "nncdbg.nan_watch.records"),
    **dict.fromkeys(("Summary", "summarize"), "nncdbg.stats"),
    **dict.fromkeys(
        (
            "ExpressionError",
            "GraphError",
            "InputError",
            "LoadError",
            "MemoryFault",
            "NncdbgError",
            "NotComputed",
            "ParseError",
            "RunError",
            "UnsupportedOp",
            "UsageError",
        ),
        "nncdbg.errors",
    ),
}

__all__ = sorted([*_PUBLIC, "__version__"])

if TYPE_CHECKING:
    from typing import Any

    from nncdbg.commands.execute import execute as execute
    from nncdbg.comparison.report import DiffReport as DiffReport
    from nncdbg.dap_server.attach.calls import is_client_connected as is_client_connected
    from nncdbg.dap_server.attach.calls import listen as listen
    from nncdbg.dap_server.attach.calls import wait_for_client as wait_for_client
    from nncdbg.dynamic_graph.session import Eager as Eager
    from nncdbg.dynamic_graph.session import eager as eager
    from nncdbg.dynamic_graph.variable import EagerVariable as EagerVariable
    from nncdbg.engine.building.builder import Builder as Builder
    from nncdbg.engine.building.editing import EditedBlock as EditedBlock
    from nncdbg.engine.building.editing import EditedStatement as EditedStatement
    from nncdbg.engine.building.editing import EditedValue as EditedValue
    from nncdbg.engine.building.editor import EditedGraph as EditedGraph
    from nncdbg.engine.building.editor import Editor as Editor
    from nncdbg.engine.building.layers import Layers as Layers
    from nncdbg.engine.building.minimizing import grad as grad
    from nncdbg.engine.building.minimizing import minimize as minimize
    from nncdbg.engine.building.values import GraphValue as GraphValue
    from nncdbg.engine.debugger import Debugger as Debugger
    from nncdbg.engine.divergence.call import diff as diff
    from nncdbg.engine.execution.frame import Frame as Frame
    from nncdbg.engine.frontends import ProgramSource as ProgramSource
    from nncdbg.engine.frontends import load as load
    from nncdbg.engine.ops.declaration import Op as Op
    from nncdbg.engine.ops.declaration import declare as declare
    from nncdbg.engine.ops.declaration import op as op
    from nncdbg.engine.ops.library import load_op_library as load_op_library
    from nncdbg.engine.schedules.player import in_order as in_order
    from nncdbg.engine.stopping.breakpoints import Breakpoint as Breakpoint
    from nncdbg.engine.stopping.stops import Stop as Stop
    from nncdbg.engine.time.timeline import Branch as Branch
    from nncdbg.engine.time.timeline import Mark as Mark
    from nncdbg.engine.values.tensor import Tensor as Tensor
    from nncdbg.engine.values.values import Outputs as Outputs
    from nncdbg.errors import ExpressionError as ExpressionError
    from nncdbg.errors import GraphError as GraphError
    from nncdbg.errors import InputError as InputError
    from nncdbg.errors import LoadError as LoadError
    from nncdbg.errors import MemoryFault as MemoryFault
    from nncdbg.errors import NncdbgError as NncdbgError
    from nncdbg.errors import NotComputed as NotComputed
    from nncdbg.errors import ParseError as ParseError
    from nncdbg.errors import RunError as RunError
    from nncdbg.errors import UnsupportedOp as UnsupportedOp
    from nncdbg.errors import UsageError as UsageError
    from nncdbg.ir.records import Graph as Graph
    from nncdbg.ir.records import Program as Program
    from nncdbg.ir.records import TensorType as TensorType
    from nncdbg.nan_watch.bisection import BisectReport as BisectReport
    from nncdbg.nan_watch.bisection import bisect as bisect
    from nncdbg.nan_watch.call import watch as watch
    from nncdbg.nan_watch.records import Report as Report
    from nncdbg.nan_watch.records import WatchFinding as WatchFinding
    from nncdbg.nan_watch.reduction.reducing import Reduced as Reduced
    from nncdbg.nan_watch.reduction.reducing import reduce as reduce
    from nncdbg.opening.diff_corpus import diff_corpus as diff_corpus
    from nncdbg.opening.diff_corpus_report import DiffCorpusReport as DiffCorpusReport
    from nncdbg.opening.onnx_export import to_onnx as to_onnx
    from nncdbg.opening.onnx_export import write_onnx as write_onnx
    from nncdbg.opening.programs import read_kernels as read_kernels
    from nncdbg.opening.run import run as run
    from nncdbg.opening.state_file import LoadedStates as LoadedStates
    from nncdbg.opening.state_file import load_states as load_states
    from nncdbg.opening.state_file import save_states as save_states
    from nncdbg.script_breakpoint import breakpoint as breakpoint  # noqa: A004
    from nncdbg.stats import Summary as Summary
    from nncdbg.stats import summarize as summarize
    from nncdbg.textual_repr import parse as parse
else:

    def __getattr__(name):
        module = _PUBLIC.get(name)
        if module is None:
            raise AttributeError(f"module 'nncdbg' has no attribute {name!r}")
        return getattr(import_module(module), name)


def load_ipython_extension(shell: Any) -> None:
    """Register the cell magic `%%nncdbg`; IPython calls this for `%load_ext nncdbg`."""
    from nncdbg.notebook.cell_magic import register_magic

    register_magic(shell)


def __dir__() -> list[str]:
    return list(__all__)
