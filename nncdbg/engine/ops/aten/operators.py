"""Facts about single operators of PyTorch: the table `FACTS`; and declarations of operators from it.

No other module names an operator; `tests/torch/test_operator_names.py` lists the exceptions.

All overloads of an operator share one declaration; `base_name` maps ``aten._foreach_div_.List`` to ``div``.

The influence is found by experiment: the kernel runs again on changed operands.  An operand element
influences a result element if the result differs after the element is replaced.  Thus `where`, `masked_fill`
and indexing pass on what they select, and a product with 0 passes on a NaN.  An exact infinity, such as
log(0), that becomes a finite number has no influence: it has its limit there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from nncdbg.engine.ops.contracts import BrokenContract, FindBrokenContract, overwritten, unpooled
from nncdbg.engine.ops.declaration import Op
from nncdbg.engine.ops.influence import (
    CHECK,
    NOTHING,
    Application,
    Infinities,
    Influence,
    Marked,
    everything_in,
    whole,
)
from nncdbg.text.torch_names import READ, VIEW, WRITE, base_name

_PROBES = (1.0, 0.7310586)
"""Finite numbers that replace the elements in question; two, as an operator may treat one in a special way.

NaN replaces NaN and Inf as well: a sum with another overflow would hide a finite number.
"""


def _find(application: Application) -> Sequence[Marked]:
    if application.kernel is None:
        return everything_in(application.results)
    infinite = [_infinite(*pair) for pair in zip(application.operands, application.marked, strict=True)]
    if application.exact and any(marks is not None for marks in infinite):
        rest = [_without(marks, part) for marks, part in zip(application.marked, infinite, strict=True)]
        of_infinities = _experiment(replace(application, marked=infinite))
        found = [_not_finite(*pair) for pair in zip(of_infinities, application.results, strict=True)]
        if not any(marks is not None for marks in rest):
            return found
        others = _experiment(replace(application, marked=rest))
        return [_either(*pair) for pair in zip(found, others, strict=True)]
    return _experiment(application)


def _ignoring(application: Application) -> Sequence[Marked]:
    """Mark only the results that stay NaN or Inf: the operator replaces, skips or tests for these values."""
    found = _experiment(application)
    return [_not_finite(*pair) for pair in zip(found, application.results, strict=True)]


BY_EXPERIMENT = Influence(
    "the results that change with the element",
    _find,
    exact=False,
    discards="elements that the result does not depend on, and exact infinities with a finite limit",
    infinities=Infinities.ABSORBED,
)

IGNORING = Influence(
    "the results that stay NaN or Inf",
    _ignoring,
    exact=False,
    discards="NaN and Inf that the operator skips, replaces or tests for",
    infinities=Infinities.ABSORBED,
)


def _compared(application: Application) -> Sequence[Marked]:
    """`x == x` and `x != x` test for NaN."""
    same = len(application.values) == 2 and application.values[0] is application.values[1]
    return [None] if same else _find(application)


COMPARED = replace(BY_EXPERIMENT, find=_compared)

SUMMED_BY_EXPERIMENT = BY_EXPERIMENT.taking(Infinities.SPOILED)
"""For products and normalizations: an infinity among their operands is no mask."""

MOVED_BY_EXPERIMENT = BY_EXPERIMENT.taking(Infinities.KEPT)


def _infinite(value: Any, marks: Marked) -> Marked:
    if marks is None or not _is_float(value):
        return None
    found = np.asarray(marks & np.isinf(value))
    return found if found.any() else None


def _without(marks: Marked, part: Marked) -> Marked:
    if marks is None or part is None:
        return marks
    found = np.asarray(marks & ~part)
    return found if found.any() else None


def _either(a: Marked, b: Marked) -> Marked:
    if a is None or b is None:
        return b if a is None else a
    return a | b


def _not_finite(marks: Marked, result: Any) -> Marked:
    if marks is None or not _is_float(result):
        return None
    return np.asarray(marks & ~np.isfinite(result))


def _is_float(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "fcV"


def _experiment(application: Application) -> Sequence[Marked]:
    """Return the results that differ after the marked elements are replaced.

    If other elements are NaN or Inf, the experiment runs a second time with numbers in their place: they
    could hide a difference.
    """
    chosen = [i for i, marks in enumerate(application.marked) if marks is not None and marks.any()]
    if not all(
        (_is_float(application.operands[i]) or getattr(application.operands[i], "dtype", None) == np.bool_)
        for i in chosen
    ):
        return everything_in(application.results)
    hidden = [_others(*pair) for pair in zip(application.operands, application.marked, strict=True)]
    rounds = [[None] * len(hidden)]
    rounds += [hidden] if any(each is not None for each in hidden) else []
    found: list[Any] = [None if each is None else whole(each, False) for each in application.results]
    tested = [(application.operands[i], application.marked[i]) for i in chosen]
    finite = any(not _is_float(value) or np.isfinite(value[marks]).any() for value, marks in tested)
    for calmed in rounds:
        given = application.results if calmed is rounds[0] else _run(application, calmed, [], 0.0)
        for probe in _PROBES if finite else (*_PROBES, math.nan):
            changed = _run(application, calmed, chosen, probe)
            for index, pair in enumerate(zip(given, changed, strict=False)):
                marks = _difference(*pair)
                if marks is not None and found[index] is not None:
                    found[index] = found[index] | marks
            if all(each is None or each.all() for each in found):
                return found  # More runs can only mark more.
    return found


def _others(value: Any, marks: Marked) -> Marked:
    if not _is_float(value) or np.isfinite(value).all():
        return None
    found = ~np.isfinite(value) if marks is None else ~np.isfinite(value) & ~marks
    return np.asarray(found) if np.any(found) else None


def _run(
    application: Application, calmed: Sequence[Marked], chosen: Sequence[int], probe: float
) -> Sequence[Any]:
    """Run the kernel with 1 in the elements `calmed`, and the probe in the marked elements of `chosen`."""
    operands = list(application.values)
    for index, marks in enumerate(calmed):
        if marks is not None:
            operands[index] = _replaced(operands[index], marks, 1.0)
    for index in chosen:
        operands[index] = _replaced(operands[index], application.marked[index], probe)
    if application.op.name in (VIEW, WRITE) and operands[0].stride() != application.values[0].stride():
        raise ValueError("the operand has gaps in memory")
    assert application.kernel is not None
    return application.kernel(operands)


def _replaced(tensor: Any, marks: Any, number: float) -> Any:
    import torch

    if 0 in tensor.stride():
        copy = tensor.clone()
    else:
        # `torch.view` and `torch.write` depend on the strides, gaps included.
        copy = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        ).copy_(tensor)
    where = torch.from_numpy(np.array(np.broadcast_to(marks, tuple(tensor.shape))))
    return copy.masked_fill_(where.to(copy.device), number) if copy.dtype != torch.bool else copy ^ where


def _difference(given: Any, changed: Any) -> Marked:
    if given is None or changed is None:
        return None
    if np.shape(given) != np.shape(changed):
        return whole(given)
    with np.errstate(invalid="ignore"):
        differs = np.not_equal(given, changed)
    if _is_float(given):
        differs &= ~(np.isnan(given) & np.isnan(changed))
    return np.asarray(differs)


def _numbers(x: Any) -> Any:
    """Return a tensor of the shape of `x` with the number of each element."""
    return np.arange(x.size).reshape(x.shape)


def _index_put(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    x, *indices, values = inputs
    if attributes.get("accumulate"):
        return None
    places = _numbers(x)[tuple(slice(None) if each is None else each for each in indices)]
    given = next(number for number, each in enumerate(indices, 1) if each is not None)
    return overwritten(given, places, values, x.shape)


def _scatter(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    if attributes.get("reduce") is not None or len(inputs) < 3:
        return None
    x, index, source = inputs
    axis = attributes["dim"] % max(x.ndim, 1)
    where = [*np.indices(index.shape, sparse=True)]
    where[axis] = index
    part = tuple(slice(size) for size in index.shape)
    return overwritten(1, np.asarray(_numbers(x)[tuple(where)]), source[part], x.shape)


def _index_copy(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    x, index, source = inputs
    places = np.take(_numbers(x), index.reshape(-1), axis=attributes["dim"])
    return overwritten(1, places, source, x.shape)


def _put(attributes: Mapping[str, Any], inputs: Sequence[Any]) -> BrokenContract | None:
    x, index, source = inputs
    if attributes.get("accumulate"):
        return None
    return overwritten(1, _numbers(x).reshape(-1)[index], source.reshape(index.shape), x.shape)


FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
"""The types of first arguments for which the rules hold."""

_LEAST, _MOST = 1e-6, 1e4
"""In each type of `FLOATS`, these are no 0 and no Inf: 0 times Inf and Inf over Inf are NaN."""


def _is_small_addend(number: float) -> bool:
    """Return whether adding a number to the largest float of any type in `FLOATS` gives this float again.

    The distance of the two largest floats is at least 32, that of float16.
    """
    return abs(number) <= 1


class Autocast(Enum):
    """The type in which autocast runs an operator whose operands are floats."""

    OPERANDS = "that of the operands"
    LOWER = "the lower precision, forward and backward"
    FULL = "f32, in the forward pass"


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """What torch does not state of an operator, for all its overloads."""

    allocates: bool = False
    """It allocates memory without writing it."""
    takes_memory: bool = False
    """It only allocates memory, or takes over numbers of the user."""
    views: bool = False
    """Its result is, most often, memory of its operand: it reads no element."""
    moves: bool = False
    """Its results are elements of its operands.  Torch's schemas tell only which operators are views."""
    moves_only: bool | None = None
    """Whether all results are elements of one argument, where that does not follow from its schema."""
    keeps_finite: bool = False
    """It gives finite results for finite operands."""
    overwrites: bool = False
    """Its form in place writes all of its first operand and reads nothing of it."""
    written: tuple[str, ...] = ()
    """Arguments that its default overload writes to although the schema does not say so."""
    only_sends: bool = False
    """It is a collective that writes to no argument; others write to one, which no schema declares."""
    influence: Influence | None = None
    """Its influence, where the experiment does not describe it."""
    contract: FindBrokenContract | None = None
    harmless_number: Callable[[float], bool] | None = None
    """Whether a number as second argument makes no NaN and no Inf, for first arguments of `FLOATS`."""
    f32_operand: int | None = None
    """The operand that is f32 in half precision too: the logarithms of sums of exponentials."""
    f32_result: int | None = None
    """The same for a result."""
    f32_statistics: bool = False
    """In half precision too, its results after the first one are f32; tensors without data do not show it."""
    screens: bool = False
    """It tests gradients for NaN and Inf, for a step that is skipped if there are any."""
    cause: str = ""
    """The name of its rule in `causes/torch_operators.py`."""
    legal_infinities: bool = False
    """Infinities in its results after the first one are intended."""
    updates: bool = False
    """It is the update of an optimizer, with its options as arguments."""
    copies: bool = False
    """Its result is a copy of its operand, at most in another type."""
    casts: bool = False
    """It converts the type of its operand."""
    fills: bool = False
    """It writes a number of the script."""
    makes_scalar: bool = False
    """It makes a tensor of a number of the script."""
    multiplies: bool = False
    """It is a product of matrices, a convolution or attention: as many products as the sizes tell."""
    autocast: Autocast = Autocast.OPERANDS
    keeps_real_finite: bool = False
    """Of real and finite operands, it makes finite results: it moves, drops or negates elements, or writes
    numbers in their place."""
    selects: bool = False
    """So they are if its first operand is: the other ones choose among its elements."""


def _merged(*rows: tuple[dict[str, Any], Iterable[str]]) -> dict[str, OperatorFacts]:
    found: dict[str, dict[str, Any]] = {}
    for facts, operators in rows:
        for name in operators:
            found.setdefault(name, {}).update(facts)
    return {name: OperatorFacts(**facts) for name, facts in found.items()}


_ATTENTION = tuple(
    f"_scaled_dot_product_{name}{end}"
    for name in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
    for end in ("", "_backward")
)
_OTHER_ATTENTION = (
    *("_scaled_dot_product_attention_math", "_scaled_dot_product_attention_math_for_mps"),
    *("_scaled_dot_product_fused_attention_overrideable",),
    *("_scaled_dot_product_fused_attention_overrideable_backward",),
)

_NAMED_AS_THEIR_RULE = (
    "rsqrt reciprocal log1p logit logit_backward sinh cosh sin cos tan acos asin atanh acosh "
    "addmm convolution mean"
)

_CAUSES = {
    **{name: name for name in _NAMED_AS_THEIR_RULE.split()},
    "activation": "gelu silu mish hardswish sigmoid tanh elu gelu_backward silu_backward mish_backward "
    "hardswish_backward sigmoid_backward tanh_backward elu_backward",
    "addition": "add",
    "subtraction": "sub",
    "reverse_subtraction": "rsub",
    "multiplication": "mul",
    "division": "div true_divide",
    "quotient_added": "addcdiv",
    "power": "pow",
    "power_of_two": "exp2",
    "remainder": "fmod remainder",
    "logarithm": "log log2 log10",
    "product_with_logarithm": "xlogy",
    "root": "sqrt",
    "exponential": "exp expm1",
    "inverse_error": "erfinv",
    "gamma": "lgamma digamma polygamma",
    "cast": "_to_copy",
    "product_of_matrices": "mm bmm",
    "softmax": "_softmax _log_softmax _safe_softmax",
    "attention": "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_attention_math",
    "layer_norm": "native_layer_norm",
    "group_norm": "native_group_norm",
    "batch_norm": "native_batch_norm _native_batch_norm_legit cudnn_batch_norm",
    "weighted_norm": "_weight_norm_interface",
    "weighted_norm_backward": "_weight_norm_interface_backward",
    "total": "sum",
    "product": "prod",
    "running_sum": "cumsum",
    "running_product": "cumprod",
    "deviation": "std var std_mean var_mean",
    "median": "median nanmedian",
    "mean_loss": "mse_loss smooth_l1_loss huber_loss binary_cross_entropy multi_margin_loss "
    "multilabel_margin_loss_forward soft_margin_loss",
    "likelihood": "nll_loss_forward nll_loss2d_forward",
    "likelihood_backward": "nll_loss_backward nll_loss2d_backward",
    "alignment": "_ctc_loss",
    "of_matrix": "linalg_inv_ex _linalg_solve_ex _linalg_slogdet",
    "of_factors": "linalg_lu_solve",
    "triangular": "linalg_solve_triangular",
    "of_negative_determinant": "where",
}
"""The rules in `causes/torch_operators.py`, and the operators that each explains."""

# The first operand is added to the product: a mask, in attention.  Scores of classes may be masked, too, but
# weights of classes and of elements are factors.
_MASKED_FIRST = BY_EXPERIMENT.taking(Infinities.ABSORBED, masks=(0,))

# PyTorch calls the result of updates that write one element more than once nondeterministic.  Equal updates,
# as in ``x[i] = 0``, are allowed.
FACTS: Mapping[str, OperatorFacts] = _merged(
    (
        {"takes_memory": True},
        ("_empty_affine_quantized", "_empty_per_channel_affine_quantized", "lift", "lift_fresh")
        + ("lift_fresh_copy", "resize", "resize_as", "resize_as_sparse", "resize_storage_bytes", "set")
        + ("set_data",),
    ),
    (
        {"allocates": True, "takes_memory": True, "influence": NOTHING},
        ("empty", "empty_like", "empty_permuted", "empty_quantized", "empty_strided", "new_empty")
        + ("new_empty_strided",),
    ),
    (
        {"views": True, "moves": True, "keeps_finite": True},
        ("view", "reshape", "t", "transpose", "permute", "expand", "slice", "select", "squeeze", "unsqueeze")
        + ("as_strided", "detach", "alias", "lift_fresh", "_reshape_alias", "broadcast_to", "expand_as")
        + ("flatten", "unflatten", "ravel", "reshape_as", "view_as", "mT", "numpy_T", "movedim", "moveaxis")
        + ("swapaxes", "swapdims", "positive", "tensor_split", "hsplit", "vsplit", "dsplit")
        + ("linalg_diagonal", "slice_inverse", "resolve_conj", "resolve_neg", "split", "split_with_sizes")
        + ("unbind", "chunk", "narrow", "diagonal", "unfold"),
    ),
    (
        {"moves": True, "keeps_finite": True},
        ("_unsafe_view", "clone", "contiguous", "lift_fresh_copy", "broadcast_tensors", "pin_memory", "flip")
        + ("roll", "index_select", "gather", "embedding", "cat", "stack", "repeat", "write", "triu", "tril")
        + ("masked_fill", "masked_select", "where", "index", "index_fill", "slice_scatter", "select_scatter")
        + ("diagonal_scatter", "as_strided_scatter", "constant_pad_nd"),
    ),
    # They convert, add up or overwrite.
    ({"moves": True}, ("_to_copy", "copy", "recorded", "index_put", "scatter")),
    # Not `abs`, which overflows for complex numbers.
    (
        {"keeps_finite": True},
        ("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "zero", "arange", "bernoulli")
        + ("relu", "threshold_backward", "neg", "sign", "max_pool2d_with_indices", "nonzero")
        + ("slice_backward", "select_backward", "eq", "ne", "lt", "le", "gt", "ge")
        + ("logical_not", "bitwise_not"),
    ),
    ({"moves_only": True}, ("_unsafe_view", "broadcast_tensors")),
    # They return their argument if there is nothing to compute, else new elements.
    ({"moves_only": False}, ("to", "coalesce")),
    (
        {"overwrites": True},
        ("zero", "fill", "copy", "bernoulli", "uniform", "normal", "log_normal", "exponential", "geometric")
        + ("cauchy", "random"),
    ),
    (
        {"written": ("running_mean", "running_var")},
        ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_update_stats")
        + ("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"),
    ),
    ({"only_sends": True}, ("send", "barrier", "monitored_barrier", "check_for_nan")),
    ({"influence": IGNORING}, ("nan_to_num", "nansum", "nanmean", "nanmedian")),
    ({"influence": CHECK}, ("isnan", "isinf", "isfinite", "isposinf", "isneginf")),
    ({"influence": COMPARED}, ("eq", "ne")),
    (
        {"influence": SUMMED_BY_EXPERIMENT},
        ("mm", "bmm", "mv", "dot", "convolution", "var", "var_mean", "std", "std_mean", "native_layer_norm")
        + ("native_group_norm", "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit")
        + ("_fused_rms_norm",),
    ),
    (
        {"influence": _MASKED_FIRST},
        ("addmm", "baddbmm", "addmv", "nll_loss_forward", "nll_loss2d_forward"),
    ),
    (
        {"influence": NOTHING},
        ("ones_like", "zeros_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros")
        + ("new_ones", "new_full", "sym_size", "sym_numel"),
    ),
    ({"contract": _index_put}, ("index_put", "_index_put_impl", "_unsafe_index_put")),
    ({"contract": _scatter}, ("scatter",)),
    ({"contract": _index_copy}, ("index_copy",)),
    ({"contract": _put}, ("put",)),
    ({"contract": unpooled}, ("max_unpool2d", "max_unpool3d")),
    ({"harmless_number": lambda number: _LEAST <= abs(number) <= 1}, ("mul",)),
    ({"harmless_number": lambda number: 1 <= abs(number) <= _MOST}, ("div",)),
    ({"harmless_number": _is_small_addend}, ("add", "sub")),
    *(
        row
        for name, operand in (
            ("_scaled_dot_product_flash_attention_for_cpu", 5),
            ("_scaled_dot_product_flash_attention", 5),
            ("_scaled_dot_product_cudnn_attention", 5),
            ("_scaled_dot_product_efficient_attention", 6),
        )
        for row in (({"f32_result": 1}, (name,)), ({"f32_operand": operand}, (f"{name}_backward",)))
    ),
    (
        {"f32_statistics": True},
        ("_native_batch_norm_legit_functional", "native_batch_norm"),
    ),
    ({"screens": True}, ("_amp_foreach_non_finite_check_and_unscale",)),
    # Log probabilities of unreachable states; sums of exponentials of masked rows.
    (
        {"legal_infinities": True},
        ("_ctc_loss", *_ATTENTION, *_OTHER_ATTENTION),
    ),
    ({"updates": True}, ("_fused_adagrad", "_fused_adam", "_fused_adamw", "_fused_sgd")),
    ({"copies": True}, ("_to_copy", "_unsafe_view", "clone")),
    ({"casts": True}, ("_to_copy",)),
    ({"fills": True}, ("fill", "full", "full_like", "masked_fill", "new_full")),
    ({"makes_scalar": True}, ("scalar_tensor",)),
    (
        {"multiplies": True},
        ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward", "convolution_overrideable")
        + ("convolution_backward_overrideable", *_ATTENTION, *_OTHER_ATTENTION),
    ),
    # Autocast decides at the functions that a script calls.  A recorded step has the operators below them,
    # so the rows name those.  They are written by hand: torch's registry lists the functions that autocast
    # casts, but neither the type nor the operators below.  What is no matrix product and no function that
    # autocast keeps in f32 runs in the type of its operands.
    (
        {"autocast": Autocast.LOWER},
        ("mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "addr", "matmul", "linear", "prelu")
        + ("convolution", "_convolution", "convolution_backward", "mkldnn_convolution", "mkldnn_linear")
        + _ATTENTION,
    ),
    (
        {"autocast": Autocast.FULL},
        ("_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "_fused_rms_norm")
        + ("nll_loss_forward", "nll_loss2d_forward", "mse_loss", "smooth_l1_loss", "huber_loss")
        + ("soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss_forward", "binary_cross_entropy")
        + ("binary_cross_entropy_with_logits", "softplus", "norm", "linalg_vector_norm", "logsumexp")
        + ("_cdist_forward", "_pdist_forward", "dist", "sum", "prod", "cumsum", "cumprod", "renorm", "pow")
        + ("exp", "expm1", "log", "log10", "log1p", "log2", "rsqrt", "reciprocal", "acos", "asin", "cosh")
        + ("sinh", "tan", "erfinv", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
        + ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
        + ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")
        + ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    ),
    (
        {"keeps_real_finite": True},
        ("abs", "bernoulli", "cat", "clone", "masked_fill", "neg", "relu", "stack"),
    ),
    ({"selects": True}, ("threshold_backward",)),
    *(({"cause": rule}, operators.split()) for rule, operators in _CAUSES.items()),
)
"""The facts about operators by their name without overload (`base_name`); the usual ones for all others."""

_USUAL = OperatorFacts()

VIEWS = frozenset(name for name, facts in FACTS.items() if facts.views)
F32_OPERANDS = {name: facts.f32_operand for name, facts in FACTS.items() if facts.f32_operand is not None}
F32_RESULTS = {name: facts.f32_result for name, facts in FACTS.items() if facts.f32_result is not None}
HARMLESS: Mapping[str, Callable[[float], bool]] = {
    name: facts.harmless_number
    for base, facts in FACTS.items()
    if facts.harmless_number is not None
    for name in (
        *(f"aten.{base}{place}.{overload}" for place in ("", "_") for overload in ("Tensor", "Scalar")),
        *(f"aten._foreach_{base}{place}.Scalar" for place in ("", "_")),
    )
}
"""The operators by name, and whether a number as second argument makes no NaN and no Inf."""
F32_STATISTICS = frozenset(f"aten.{name}.default" for name, facts in FACTS.items() if facts.f32_statistics)

# Operators that nncdbg writes into programs, or that have a meaning of their own there.
CAST = "aten._to_copy.default"
EQUAL = "aten.eq.Scalar"
SELECT = "aten.select.int"
SIZE = "aten.sym_size.int"
SLOGDET = "aten._linalg_slogdet.default"
DROPOUT = "aten.native_dropout.default"
DETACH = "aten.detach.default"
UNINITIALIZED = "aten.empty.memory_format"
BATCH_NORM_WITHOUT_STATES = "aten._native_batch_norm_legit.no_stats"

FIRST_GRADIENT = "aten.ones_like.default"
"""Makes the gradient of the loss, just before the backward pass."""

READS_NUMBER = "aten._local_scalar_dense.default"
"""Gives Python the one number of a tensor, as `Tensor.item`."""

POSITIONED_VIEW = "aten.as_strided.default"
"""Makes a view at a position of the whole storage."""

LAZY = ((1, "aten._conj.default"), (2, "aten._neg_view.default"))
"""Flags of lazily conjugated and negated views (`torch.storages.Key`), and the operators that set them."""

RESOLVED = ((1, "aten._conj_physical.default"), (2, "aten.neg.default"))
"""The same flags, and the operators that compute what is in memory."""

FROM_NUMPY = frozenset(("aten.resolve_neg.default", "aten.lift_fresh.default"))
"""The operators of `Tensor.numpy` and `torch.from_numpy`, if an implementation calls both."""

REBINDING = "aten.set_"
"""Gives a tensor other memory and writes nothing, as for a batch from a worker of a DataLoader."""


def facts_of(op: str) -> OperatorFacts:
    """Return the facts about an operator by its name in program text."""
    return FACTS.get(base_name(op), _USUAL)


def allocates_only(op: str) -> bool:
    """Return whether the results of a statement's op are memory with any content."""
    domain, _, rest = op.partition(".")
    return domain == "aten" and FACTS.get(rest.partition(".")[0], _USUAL).allocates


def takes_memory(op: str) -> bool:
    """Return whether an operator only allocates memory, or takes over numbers of the user."""
    return facts_of(op).takes_memory


def has_format_of_onednn(op: str) -> bool:
    """Return whether an operator has operands in a memory format of oneDNN, as an LSTM on the CPU has."""
    return op.startswith("aten.mkldnn_")


def overwrites(op: str) -> bool:
    """Return whether a statement's op writes all of its first operand and reads nothing of it."""
    domain, _, rest = op.partition(".")
    name = rest.partition(".")[0]
    return domain == "aten" and name.endswith("_") and FACTS.get(name[:-1], _USUAL).overwrites


@cache
def torch_operator(name: str) -> Op:
    """Return the declaration of an operator, by its name in program text.  It runs on the backend torch."""
    facts = facts_of(name)
    usual = MOVED_BY_EXPERIMENT if facts.moves else BY_EXPERIMENT
    return Op(
        name=name,
        influence=facts.influence or usual,
        keeps_finite=facts.keeps_finite,
        harmless_number=HARMLESS.get(name),
        contract=facts.contract,
        host_read=name == READ,
        screens=facts.screens,
        cause="training.cause",
        hint="training.hint",
        legal="training.is_legal",
    )
