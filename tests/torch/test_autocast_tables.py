"""The tables of autocast name what torch's own lists do."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.engine.ops.aten.operators import FACTS, Autocast  # noqa: E402

BELOW = {
    "layer_norm": "native_layer_norm",
    "rms_norm": "_fused_rms_norm",
    "group_norm": "native_group_norm",
    "nll_loss": "nll_loss_forward",
    "nll_loss2d": "nll_loss2d_forward",
    "multilabel_margin_loss": "multilabel_margin_loss_forward",
    "pdist": "_pdist_forward",
    "cdist": "_cdist_forward",
    "softmax": "_softmax",
    "log_softmax": "_log_softmax",
    "conv1d": "convolution",
    "conv2d": "convolution",
    "conv3d": "convolution",
    "conv_tbc": "convolution",
    "conv_transpose1d": "convolution",
    "conv_transpose2d": "convolution",
    "conv_transpose3d": "convolution",
    "einsum": "bmm",
    "linalg_vecdot": "mm",
    "chain_matmul": "mm",
    "linalg_multi_dot": "mm",
    "scaled_dot_product_attention": "bmm",
}
"""The operators below the functions of autocast."""

SEVERAL = {
    *("frobenius_norm", "nuclear_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "margin_ranking_loss", "triplet_margin_loss"),
    *("linalg_matrix_norm", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
}
"""Functions of several operators, of which no one is only theirs."""


@pytest.mark.parametrize(
    ("macros", "type_"),
    [(("LOWER_PRECISION_FP",), Autocast.LOWER), (("FP32", "FP32_SET_OPT_DTYPE"), Autocast.FULL)],
    ids=["lower", "full"],
)
def test_each_function_of_autocast_has_its_operators_in_the_table(macros, type_):
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    if not header.exists():
        pytest.skip("this torch has no header of autocast")
    text = header.read_text()
    listed = set()
    for macro in macros:
        body = text.split(f"#define AT_FORALL_{macro}(_)", 1)[1].split("#define")[0]
        listed |= set(re.findall(r"_\((\w+)", body))
    assert len(listed) > 10
    table = {name for name, facts in FACTS.items() if facts.autocast is type_}
    assert {name for name in listed - SEVERAL if BELOW.get(name, name) not in table} == set()
