"""NaN that attention makes in the forward pass, where a mask leaves no key."""

from __future__ import annotations

import torch
from torch import nn

from tests.torch.planted.cases import Training, fit, planted


class Attention(nn.Module):
    """Attention of one head with a mask, true where a key may be read."""

    def __init__(self, size=8):
        super().__init__()
        self.project = nn.Linear(size, 3 * size)

    def scores(self, x, mask):
        """Return masked scores (batch, query, key) and values."""
        query, key, value = self.project(x).chunk(3, dim=-1)
        scores = query @ key.transpose(1, 2) / x.shape[-1] ** 0.5
        return scores.masked_fill(~mask, float("-inf")), value


@planted(
    "forward",
    "aten._softmax.default",
    "nan",
    "softmax-all-masked",
    "a row of padding masks every key",
    module="block.attention",
    first_bad_step=1,
)
def attention_row_all_masked() -> Training:
    class Masked(Attention):
        def forward(self, x, mask):
            scores, value = self.scores(x, mask)
            return torch.softmax(scores, dim=-1) @ value  # origin

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm = Masked(), nn.LayerNorm(8)

        def forward(self, x, mask):
            return self.norm(x + self.attention(x, mask))

    model = nn.ModuleDict({"block": Block(), "head": nn.Linear(8, 1)})
    batches = []
    for length in (3, 0):
        mask = (torch.arange(5) < length).expand(2, 5, 5).clone()
        mask[0] = True
        batches.append((torch.randn(2, 5, 8), mask))
    return fit(model, lambda x, mask: model["head"](model["block"](x, mask)).pow(2).mean(), *batches)


@planted(
    "forward",
    "aten._softmax.default",
    "nan",
    "softmax-all-masked",
    "`key_padding_mask` is true for a whole sequence",
    module="attention",
)
def padded_sequence_in_multihead_attention() -> Training:
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, padding):
            return self.attention(x, x, x, key_padding_mask=padding)[0]  # origin

    model = Reader()
    padding = torch.tensor([[False] * 4, [True] * 4])
    return fit(model, lambda x, padding: model(x, padding).pow(2).mean(), (torch.randn(2, 4, 8), padding))


@planted(
    "forward",
    "aten._softmax.default",
    "nan",
    "softmax-all-masked",
    "an in-place assignment of -inf masks a whole row",
    module="pool",
)
def in_place_mask() -> Training:
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Linear(6, 1)

        def forward(self, x, padding):
            scores = self.score(x).squeeze(-1)
            scores[padding] = float("-inf")
            return (scores.softmax(-1)[..., None] * x).sum(1)  # origin

    model = nn.ModuleDict({"pool": Pool(), "head": nn.Linear(6, 2)})
    padding = torch.tensor([[False, False, True], [True, True, True]])
    return fit(
        model, lambda x, p: model["head"](model["pool"](x, p)).pow(2).mean(), (torch.randn(2, 3, 6), padding)
    )
