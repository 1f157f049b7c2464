"""A program as it runs under `torch.autocast`: the casts are inserted where autocast has its own.

Autocast decides at the functions that a script calls.  A recorded step has the operators below them, so
the tables name those.  They are written by hand: torch's registry lists the functions that autocast casts,
but neither the type nor the operators below.  What is no matrix product and no function that autocast keeps
in f32 runs in the type of its operands; the optimizer is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from nncdbg.engine.divergence.mixing import NARROW, Place, is_wide, mixed_program
from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.names import OWN, base_name, is_torch
from nncdbg.ir.records import Graph, Node, Program, Value
from nncdbg.ir.walk import blocks
from nncdbg.torch.recording import BACKWARD, FORWARD

_LOWER = frozenset(
    ("mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "addr", "matmul", "linear", "prelu")
    + ("convolution", "_convolution", "convolution_backward", "mkldnn_convolution", "mkldnn_linear")
    + ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention")
    + ("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
    + ("_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_flash_attention_backward")
    + ("_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward")
)
"""Operators that run in the lower precision, forward and backward."""

_FULL = frozenset(
    ("_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "_fused_rms_norm")
    + ("nll_loss_forward", "nll_loss2d_forward", "mse_loss", "smooth_l1_loss", "huber_loss")
    + ("soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss_forward", "binary_cross_entropy")
    + ("binary_cross_entropy_with_logits", "softplus", "norm", "linalg_vector_norm", "logsumexp")
    + ("_cdist_forward", "_pdist_forward", "dist", "sum", "prod", "cumsum", "cumprod", "renorm", "pow")
    + ("exp", "expm1", "log", "log10", "log1p", "log2", "rsqrt", "reciprocal", "acos", "asin", "cosh")
    + ("sinh", "tan", "erfinv", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
    + ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
    + ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")
    + ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
)
"""Operators that autocast runs in f32 in the forward pass."""


def autocast_program(program: Program, dtype: str) -> Program:
    """Return the program with the casts of autocast to `dtype` in its phases `@forward` and `@backward`.

    A program without them, such as an exported one, has the casts everywhere.  Raises UsageError for another
    dtype than f16 and bf16.
    """
    if dtype not in NARROW:
        raise UsageError(f'autocast cannot use "{dtype}"', hint=f"use one of {', '.join(NARROW)}")
    states = {state.value.name: state.value.type for state in program.states}
    types = {
        path: states | {value.name: value.type for value in _values(graph) if value.name not in states}
        for path, graph in blocks(program)
    }
    calls = [node.op[1:] for node in program.graph.nodes if node.op.startswith("@")]
    chosen = _Choice(program)
    for name in [name for name in calls if _phase(name) in (FORWARD, BACKWARD)] or [program.entry]:
        chosen.add(program.graphs[name], backward=_phase(name) == BACKWARD)
    return mixed_program(program, chosen.places, dtype, types)


def _phase(name: str) -> str:
    return name.partition(".")[0]


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    yield from (constant.value for constant in graph.constants)
    for node in graph.nodes:
        yield from node.outputs


@dataclass(slots=True)
class _Choice:
    """The statements that run in the lower precision."""

    program: Program
    places: set[Place] = field(default_factory=set)
    _lower: set[str] = field(default_factory=set)
    """The values in the lower precision; a recorded program has each name once."""

    def add(self, graph: Graph, *, backward: bool) -> None:
        """Choose among the statements of a graph and of the graphs that it calls."""
        states = (state.value for state in self.program.states)
        wide = {value.name for value in (*states, *_values(graph)) if is_wide(value.type)}
        for pc, node in enumerate(graph.nodes):
            if node.op.startswith("@"):
                self.add(self.program.graphs[node.op[1:]], backward=backward)
            elif self._is_lower(node, wide, backward=backward):
                self.places.add(((graph.name,), pc))
                self._lower.update(value.name for value in node.outputs if value.name in wide)

    def _is_lower(self, node: Node, wide: Set[str], *, backward: bool) -> bool:
        """Return whether a statement runs in the lower precision."""
        floats = [each for each in node.inputs if isinstance(each, str) and each in wide]
        if not floats or not is_torch(node.op) or node.op in OWN or "dtype" in node.attributes:
            return False
        name = base_name(node.op)
        if name in _LOWER:
            return True
        # The backward pass runs outside of autocast.
        return (backward or name not in _FULL) and self._lower.issuperset(floats)
