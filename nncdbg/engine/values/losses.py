"""The loss of a training at a stop: the scalar result that a ``backward`` line differentiates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.dtypes import FLOATS
from nncdbg.engine.compilation.code import UNSET
from nncdbg.ir.records import Graph, Program, tensor_only
from nncdbg.ir.walk import graphs_called, walk_nodes

if TYPE_CHECKING:
    from nncdbg.engine.execution.frame import Frame
    from nncdbg.engine.values.values import Values

FORWARD = ".forward"
"""The end of the name of a graph that also returns what its gradient needs."""


def loss_at(values: Values, program: Program) -> str | None:
    """Return the name of the loss that is computed in the innermost frame that has one; None without one."""
    frames = values.machine.frames
    start = len(frames) - 1 if values.depth < 0 else values.depth
    # Without lines that a loss uses itself, as in a gradient penalty.
    differentiated = {key for line in program.backwards for key in graphs_called(line.of, program.graphs)}
    used = {node.op for key in differentiated for node in walk_nodes(program.graphs[key])}
    lines = [line for line in program.backwards if f"@{line.name}" not in used]
    for frame in reversed(frames[: start + 1]):
        for line in lines:
            found = _loss_in(frame, line.of, program.graphs[line.of])
            if found is not None:
                return found
    return None


def _loss_in(frame: Frame, graph: str, differentiated: Graph) -> str | None:
    """Return the computed scalar result of a differentiated graph in a frame of it, or of its caller."""
    scalars = [index for index, value in enumerate(differentiated.outputs) if _is_scalar(value.type)]
    code = frame.code
    names = [differentiated.outputs[index].name for index in scalars] if code.graph.name == graph else []
    for node in code.nodes[: frame.pc]:
        if node.called in (graph, f"{graph}{FORWARD}"):
            names += [node.outputs[index].name for index in scalars if index < len(node.outputs)]
    return next((name for name in names if _is_computed(frame, name)), None)


def _is_scalar(type_: object) -> bool:
    known = tensor_only(type_)  # type: ignore[arg-type]
    return known is not None and known.dtype in FLOATS and known.shape == ()


def _is_computed(frame: Frame, name: str) -> bool:
    slot = frame.code.slot_at(name, frame.pc) if name else None
    if slot is None or frame.code.definition[slot] >= frame.pc:
        return False
    return frame.slots[slot] is not UNSET
