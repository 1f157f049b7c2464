"""Declarations of PyTorch's operators: their influence, and their rules for causes.

All overloads of an operator share one declaration; `base_name` maps ``aten._foreach_div_.List`` to ``div``.
"""

from __future__ import annotations

from functools import cache

from nncdbg.engine.ops.aten.contracts import CONTRACTS
from nncdbg.engine.ops.aten.harmless_numbers import HARMLESS
from nncdbg.engine.ops.aten.influence import (
    BY_EXPERIMENT,
    COMPARED,
    IGNORING,
    MOVED_BY_EXPERIMENT,
    SUMMED_BY_EXPERIMENT,
)
from nncdbg.engine.ops.aten.names import EMPTY, READ, VIEWS, base_name
from nncdbg.engine.ops.declaration import Op
from nncdbg.engine.ops.influence import CHECK, NOTHING, Infinities, Influence

_INFLUENCES: dict[str, Influence] = {
    **dict.fromkeys(
        (
            "nan_to_num",
            "nansum",
            "nanmean",
            "nanmedian",
        ),
        IGNORING,
    ),
    **dict.fromkeys(("isnan", "isinf", "isfinite", "isposinf", "isneginf"), CHECK),
    **dict.fromkeys(("eq", "ne"), COMPARED),
    **dict.fromkeys(
        ("mm", "bmm", "mv", "dot", "convolution", "var", "var_mean", "std", "std_mean")
        + ("native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm")
        + ("_native_batch_norm_legit", "_fused_rms_norm"),
        SUMMED_BY_EXPERIMENT,
    ),
    # The first operand is added to the product: a mask, in attention.
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), BY_EXPERIMENT.taking(Infinities.ABSORBED, masks=(0,))),
    # Scores may be masked, but weights of classes and of elements are factors.
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward"), BY_EXPERIMENT.taking(Infinities.ABSORBED, masks=(0,))
    ),
    **dict.fromkeys(
        ("ones_like", "zeros_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros")
        + ("new_ones", "new_full", "sym_size", "sym_numel", *EMPTY),
        NOTHING,
    ),
}
"""Rows of operators that the experiment does not describe."""

_MOVES = VIEWS | frozenset(
    (
        "_unsafe_view",
        "clone",
        "contiguous",
        "lift_fresh_copy",
        "broadcast_tensors",
        "pin_memory",
        "flip",
        "roll",
    )
    + ("index_select", "gather", "embedding", "cat", "stack", "repeat", "copy", "recorded", "write")
    + ("triu", "tril", "masked_fill", "masked_select", "where", "index", "index_put", "index_fill", "scatter")
    + (
        "slice_scatter",
        "select_scatter",
        "diagonal_scatter",
        "as_strided_scatter",
        "constant_pad_nd",
        "_to_copy",
    )
)
"""Operators with results that are elements of their operands.

Written by hand, because declarations exist without torch.  Torch's schemas tell which operators are views,
but not which others move elements.
"""

_KEEPS_FINITE = (_MOVES - {"_to_copy", "copy", "recorded", "index_put", "scatter"}) | {
    *("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "zero", "arange", "bernoulli"),
    *("relu", "threshold_backward", "neg", "sign", "max_pool2d_with_indices", "nonzero"),
    *("slice_backward", "select_backward", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "bitwise_not"),
}
"""Operators that give finite results for finite operands.

Not those that convert, add up or overwrite, nor `abs`, which overflows for complex numbers.
"""


@cache
def torch_operator(name: str) -> Op:
    """Return the declaration of an operator, by its name in program text.  It runs on the backend torch."""
    base = base_name(name)
    usual = MOVED_BY_EXPERIMENT if base in _MOVES else BY_EXPERIMENT
    return Op(
        name=name,
        influence=_INFLUENCES.get(base, usual),
        keeps_finite=base in _KEEPS_FINITE,
        harmless_number=HARMLESS.get(name),
        contract=CONTRACTS.get(base),
        host_read=name == READ,
        screens=base == "_amp_foreach_non_finite_check_and_unscale",
        cause="training.cause",
        hint="training_hints.hint",
        legal="training.is_legal",
    )
