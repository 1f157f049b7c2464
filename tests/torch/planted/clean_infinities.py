"""Clean training with NaN and Inf on purpose in the forward pass: masks, bounds and missing values."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.torch.planted.cases import Training, Weights, clean, fit, mlp

INF = float("inf")


class Attention(nn.Module):
    """Self-attention with a bias of -inf where a key is masked."""

    def __init__(self, size=8):
        super().__init__()
        self.project, self.out = nn.Linear(size, 3 * size), nn.Linear(size, 1)

    def forward(self, x, bias):
        query, key, value = self.project(x).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(-1, -2) + bias, dim=-1)
        return self.out(weights @ value)


def future(size: int) -> torch.Tensor:
    """Return a bias of -inf above the diagonal."""
    return torch.full((size, size), -INF).triu(1)


@clean("the causal mask is -inf")
def causal_attention() -> Training:
    model = Attention()
    return fit(model, lambda x: model(x, future(5)).pow(2).mean(), (torch.randn(2, 5, 8),))


@clean("slopes of distance with a causal mask of -inf")
def linear_bias_attention() -> Training:
    model = Attention()
    distance = torch.arange(5)[:, None] - torch.arange(5)
    return fit(model, lambda x: model(x, future(5) - 0.5 * distance).pow(2).mean(), (torch.randn(2, 5, 8),))


@clean("`masked_fill` with -inf for padding, with a key left in each row")
def padded_attention() -> Training:
    model = Attention()
    padding = torch.tensor([[False, False, True], [False, True, True]])[:, None]

    def loss(x):
        return model(x, torch.zeros(2, 3, 3).masked_fill(padding, -INF)).pow(2).mean()

    return fit(model, loss, (torch.randn(2, 3, 8),))


@clean("`key_padding_mask` becomes -inf in multi-head attention")
def multihead_attention() -> Training:
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    padding = torch.tensor([[False, False, False, True], [False, False, True, True]])

    def loss(x):
        return model(x, x, x, key_padding_mask=padding)[0].pow(2).mean()

    return fit(model, loss, (torch.randn(2, 4, 8),))


@clean("an encoder layer with a float mask of -inf and dropout")
def transformer_encoder() -> Training:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    return fit(model, lambda x: model(x, src_mask=mask).pow(2).mean(), (torch.randn(2, 4, 8),))


@clean("fused attention with a boolean mask")
def fused_attention() -> Training:
    model = nn.Linear(8, 24)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()

    def loss(x):
        query, key, value = model(x).view(2, 1, 4, 24).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).pow(2).mean()

    return fit(model, loss, (torch.randn(2, 4, 8),))


@clean("fused attention returns 0 for a row with no key")
def fused_attention_of_empty_row() -> Training:
    model = nn.Linear(8, 24)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False

    def loss(x):
        query, key, value = model(x).view(2, 1, 4, 24).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).pow(2).mean()

    return fit(model, loss, (torch.randn(2, 4, 8),))


@clean("bfloat16 autocast with a mask of -inf")
def autocast_attention() -> Training:
    model = Attention()

    def loss(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x, future(5)).float().pow(2).mean()

    return fit(model, loss, (torch.randn(2, 5, 8),))


@clean("logits outside of the best three are -inf")
def top_k_filter() -> Training:
    model = mlp(4, 8, 10)

    def loss(x):
        logits = model(x)
        kept = logits.topk(3, dim=-1)
        filtered = torch.full_like(logits, -INF).scatter(-1, kept.indices, kept.values)
        return F.cross_entropy(filtered, kept.indices[:, 1])

    return fit(model, loss, (torch.randn(6, 4),))


@clean("log-sum-exp ignores entries of -inf")
def logsumexp_of_masked() -> Training:
    model = mlp(4, 8, 6)
    masked = torch.arange(6) % 2 == 1
    return fit(model, lambda x: model(x).masked_fill(masked, -INF).logsumexp(-1).mean(), (torch.randn(6, 4),))


@clean("illegal actions have the score -inf and probability 0")
def masked_policy() -> Training:
    model = mlp(4, 8, 3)
    legal = torch.tensor([[True, False, True], [True, True, False]])

    def loss(states, actions):
        logs = F.log_softmax(model(states).masked_fill(~legal, -INF), dim=-1)
        return -logs.gather(1, actions).mean()

    return fit(model, loss, (torch.randn(2, 4), torch.tensor([[2], [1]])))


@clean("a categorical distribution with logits of -inf")
def masked_distribution() -> Training:
    model = mlp(4, 8, 3)
    illegal = torch.tensor([False, True, False])

    def loss(states):
        scores = model(states).masked_fill(illegal, -INF)
        policy = torch.distributions.Categorical(logits=scores)
        return -policy.log_prob(policy.sample()).mean()

    return fit(model, loss, (torch.randn(5, 4),))


@clean("the maximum over a set with padding of -inf")
def masked_maximum() -> Training:
    model = mlp(3, 8)
    padding = torch.arange(6)[:, None] >= 4
    return fit(model, lambda x: model(x).masked_fill(padding, -INF).amax(1).mean(), (torch.randn(2, 6, 3),))


@clean("a running minimum starts at Inf")
def running_minimum() -> Training:
    model = nn.Linear(3, 2)

    def loss(x):
        least = torch.full((2,), INF)
        for row in model(x):
            least = torch.minimum(least, row)
        return least.pow(2).sum()

    return fit(model, loss, (torch.randn(4, 3),))


@clean("the distance of a point to itself is set to Inf before `argmin`")
def nearest_neighbor() -> Training:
    model = nn.Linear(3, 2)

    def loss(x):
        z = model(x)
        nearest = torch.cdist(z, z).detach().fill_diagonal_(INF).argmin(dim=-1)
        return (z - z[nearest]).pow(2).mean()

    return fit(model, loss, (torch.randn(6, 3),))


@clean("triplet mining excludes positives by a distance of Inf")
def hard_negative_mining() -> Training:
    model = nn.Linear(3, 2)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    same = labels[:, None] == labels

    def loss(x):
        z = model(x)
        squares = (z[:, None] - z).pow(2).sum(-1)
        negative = squares.masked_fill(same, INF).amin(-1)
        positive = squares.masked_fill(~same, -INF).amax(-1)
        return torch.relu(positive - negative + 1).mean()

    return fit(model, loss, (torch.randn(6, 3),))


@clean("bounds of -inf and Inf mean no bound")
def clamp_with_infinite_bounds() -> Training:
    model = Weights(torch.randn(3))
    low, high = torch.tensor([-INF, 0.0, -1.0]), torch.tensor([1.0, INF, INF])
    return fit(model, lambda: torch.clamp(model.weight, low, high).pow(2).sum())


@clean("the gate of a masked expert is sigmoid(-inf) = 0")
def closed_gate() -> Training:
    model = nn.ModuleDict({"gate": nn.Linear(4, 3), "value": nn.Linear(4, 3)})
    closed = torch.tensor([0.0, -INF, 0.0])

    def loss(x):
        return (torch.sigmoid(model["gate"](x) + closed) * model["value"](x)).pow(2).mean()

    return fit(model, loss, (torch.randn(5, 4),))


@clean("1 / 0 = Inf is a resistor of 0 ohm in a parallel circuit, and 1 / Inf is 0")
def parallel_resistors() -> Training:
    model = Weights(torch.rand(3))

    def loss(resistors):
        total = 1 / (1 / resistors).sum(-1)
        return (model.weight * total).sum()

    return fit(model, loss, (torch.tensor([[1.0, 2.0], [0.0, 3.0], [4.0, 4.0]]),))
