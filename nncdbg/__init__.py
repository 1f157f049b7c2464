"""nncdbg: the debugger for computation graphs.

program = nncdbg.load("model.onnx")
debugger = nncdbg.Debugger(program, inputs={"x": x})
debugger.catch("nan")
stop = debugger.run()
debugger.step_back()
debugger.stats("%h")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Late, so that `nncdbg --help` does not import NumPy and ONNX.
_DOOR = {
    "Debugger": "nncdbg.engine.session",
    "Stop": "nncdbg.engine.control",
    "Breakpoint": "nncdbg.engine.breakpoints",
    "Program": "nncdbg.engine.graph",
    **dict.fromkeys(
        ("breakpoint", "is_client_connected", "listen", "wait_for_client"), "nncdbg.dap_server.attach.calls"
    ),
    "diff": "nncdbg.engine.divergence.door",
    "load": "nncdbg.engine.frontends",
    "load_op_library": "nncdbg.engine.ops.library",
    "op": "nncdbg.engine.ops.declaration",
    "Op": "nncdbg.engine.ops.declaration",
    "declare": "nncdbg.engine.ops.declaration",
    "TensorType": "nncdbg.engine.graph",
    "parse": "nncdbg.textual_repr",
    "watch": "nncdbg.nan_watch.door",
    "Summary": "nncdbg.stats",
    "summarize": "nncdbg.stats",
    **dict.fromkeys(
        (
            "ExpressionError",
            "GraphError",
            "LoadError",
            "MemoryFault",
            "NncdbgError",
            "NotComputed",
            "ParseError",
            "RunError",
            "UnsupportedOp",
            "UsageError",
        ),
        "nncdbg.engine.errors",
    ),
}

__all__ = sorted([*_DOOR, "__version__"])

if TYPE_CHECKING:
    from nncdbg.dap_server.attach.calls import breakpoint as breakpoint  # noqa: A004
    from nncdbg.dap_server.attach.calls import is_client_connected as is_client_connected
    from nncdbg.dap_server.attach.calls import listen as listen
    from nncdbg.dap_server.attach.calls import wait_for_client as wait_for_client
    from nncdbg.engine.breakpoints import Breakpoint as Breakpoint
    from nncdbg.engine.control import Stop as Stop
    from nncdbg.engine.divergence.door import diff as diff
    from nncdbg.engine.errors import ExpressionError as ExpressionError
    from nncdbg.engine.errors import GraphError as GraphError
    from nncdbg.engine.errors import LoadError as LoadError
    from nncdbg.engine.errors import MemoryFault as MemoryFault
    from nncdbg.engine.errors import NncdbgError as NncdbgError
    from nncdbg.engine.errors import NotComputed as NotComputed
    from nncdbg.engine.errors import ParseError as ParseError
    from nncdbg.engine.errors import RunError as RunError
    from nncdbg.engine.errors import UnsupportedOp as UnsupportedOp
    from nncdbg.engine.errors import UsageError as UsageError
    from nncdbg.engine.frontends import load as load
    from nncdbg.engine.graph import Program as Program
    from nncdbg.engine.graph import TensorType as TensorType
    from nncdbg.engine.ops.declaration import Op as Op
    from nncdbg.engine.ops.declaration import declare as declare
    from nncdbg.engine.ops.declaration import op as op
    from nncdbg.engine.ops.library import load_op_library as load_op_library
    from nncdbg.engine.session import Debugger as Debugger
    from nncdbg.nan_watch.door import watch as watch
    from nncdbg.stats import Summary as Summary
    from nncdbg.stats import summarize as summarize
    from nncdbg.textual_repr import parse as parse


def __getattr__(name: str) -> Any:
    module = _DOOR.get(name)
    if module is None:
        raise AttributeError(f"module 'nncdbg' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return list(__all__)
