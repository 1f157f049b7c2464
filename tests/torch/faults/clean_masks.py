"""Clean trainings with infinities and NaN that are masked, dropped or never read."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.optim import SGD, Adam

from tests.torch.faults.cases import clean

INF = float("inf")


def train(model, loss, *, steps=3, optimizer=None):
    """Run the usual loop; `loss` gets the number of the step."""
    used = optimizer or SGD(model.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        used.zero_grad()
        loss(step).backward()
        used.step()


@clean("a causal mask of -inf in a buffer")
def causal_mask() -> None:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)
            self.register_buffer("mask", torch.full((5, 5), -INF).triu(1))

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return torch.softmax(q @ k.transpose(1, 2) + self.mask, -1) @ v

    model = Attention()
    train(model, lambda step: model(torch.randn(2, 5, 4)).square().mean())


@clean("the mask of an encoder layer")
def transformer_layer() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    train(model, lambda step: model(torch.randn(2, 4, 8), src_mask=mask, is_causal=True).square().mean())


@clean("rows of softmax without a key are NaN, and dropped before the loss")
def dropped_rows() -> None:
    model = nn.Linear(4, 4)

    def loss(step):
        valid = torch.tensor([True, True, False])
        scores = model(torch.randn(3, 4)).detach().masked_fill(~valid[:, None], -INF)
        weights = scores.softmax(-1)[valid]
        return (weights @ model.weight).square().mean()

    train(model, loss)


@clean("rows without a key are set to 0 by nan_to_num, outside of autograd")
def zeroed_rows() -> None:
    model = nn.Linear(4, 2)

    def loss(step):
        with torch.no_grad():
            scores = torch.full((3, 3), -INF)
            scores[0] = 0
            weights = torch.nan_to_num(scores.softmax(-1))
        return (weights @ model(torch.randn(3, 4))).square().mean()

    train(model, loss)


@clean("NaN marks the padding of sequences, and is never read")
def padding_of_nan() -> None:
    model = nn.Linear(3, 1)

    def loss(step):
        sequences = pad_sequence([torch.randn(n, 3) for n in (4, 2)], padding_value=float("nan"))
        return (model(sequences[:4, 0]).mean() + model(sequences[:2, 1]).mean()).square()

    train(model, loss)


@clean("NaN in NumPy arrays for missing values, replaced by 0")
def missing_values() -> None:
    table = np.array([[1.0, np.nan, 2.0], [np.nan, 0.5, 1.0]], np.float32)
    model = nn.Linear(3, 1)
    train(model, lambda step: model(torch.nan_to_num(torch.from_numpy(table))).square().mean())


@clean("the mean of features skips missing values")
def mean_of_present() -> None:
    x = torch.tensor([[1.0, float("nan")], [2.0, 4.0], [3.0, 5.0]])
    model = nn.Linear(2, 1)

    def loss(step):
        filled = torch.where(x.isnan(), x.nanmean(0), x)
        return model(filled).square().mean()

    train(model, loss)


@clean("missing targets are NaN, and selected away")
def missing_targets() -> None:
    model = nn.Linear(3, 2)

    def loss(step):
        prediction, target = model(torch.randn(4, 3)), torch.randn(4, 2)
        target[1, 0] = float("nan")
        present = ~target.isnan()
        return F.mse_loss(prediction[present], target[present])

    train(model, loss)


@clean("log of zero in the branch of where that is not taken, without a gradient")
def guarded_logarithm() -> None:
    model = nn.Linear(3, 3)

    def loss(step):
        counts = torch.tensor([0.0, 2.0, 3.0])
        logs = torch.where(counts > 0, counts.log(), torch.zeros(()))
        return (model(torch.randn(2, 3)) * logs).square().mean()

    train(model, loss)


@clean("where selects 0, and the gradient of its other branch is finite")
def where_with_finite_gradient() -> None:
    model = nn.Linear(3, 2)

    def loss(step):
        z = model(torch.randn(4, 3))
        return torch.where(z > 0, z.clamp(min=1e-6).log(), torch.zeros(())).mean()

    train(model, loss)


@clean("xlogy of zero probabilities")
def entropy_with_zeros() -> None:
    model = nn.Linear(4, 3)

    def loss(step):
        probabilities = model(torch.randn(2, 4)).softmax(-1)
        hard = F.one_hot(probabilities.argmax(-1), 3).float()
        return F.kl_div(probabilities.clamp_min(1e-12).log(), hard, reduction="batchmean")

    train(model, loss)


@clean("top-k logits: the others are -inf before softmax")
def filtered_logits() -> None:
    model = nn.Linear(4, 6)

    def loss(step):
        logits = model(torch.randn(3, 4))
        threshold = logits.topk(3, -1).values[:, -1:]
        filtered = logits.masked_fill(logits < threshold, -INF)
        return F.cross_entropy(filtered, filtered.argmax(-1).detach())

    train(model, loss)


@clean("actions that are not allowed have logits of -inf")
def masked_policy() -> None:
    policy = nn.Linear(3, 4)

    def loss(step):
        logits = policy(torch.randn(5, 3))
        logits = torch.where(torch.tensor([True, True, False, True]), logits, torch.tensor(-INF))
        distribution = torch.distributions.Categorical(logits=logits)
        return -distribution.log_prob(distribution.sample()).mean()

    train(policy, loss, optimizer=Adam(policy.parameters()))


@clean("a maximum that starts at -inf")
def running_maximum() -> None:
    model = nn.Linear(3, 2)

    def loss(step):
        best = torch.full((2,), -INF)
        for row in model(torch.randn(4, 3)):
            best = torch.maximum(best, row)
        return best.square().mean()

    train(model, loss)


@clean("a log-sum-exp in a stream that starts at -inf")
def streaming_logsumexp() -> None:
    model = nn.Linear(3, 2)

    def loss(step):
        total = torch.full((2,), -INF)
        for row in model(torch.randn(4, 3)).detach():
            total = torch.logaddexp(total, row)
        return (model.bias - total).square().mean()

    train(model, loss)


@clean("shortest paths: distances of unreachable nodes are Inf")
def shortest_paths() -> None:
    model = nn.Linear(2, 1)

    def loss(step):
        distances = torch.full((3, 3), INF).fill_diagonal_(0)
        distances[0, 1] = distances[1, 2] = 1.0
        for middle in range(3):
            distances = torch.minimum(distances, distances[:, middle : middle + 1] + distances[middle])
        features = torch.stack([distances.isinf().float().sum(1), distances[:, 0].clamp(max=9)], 1)
        return model(features).square().mean()

    train(model, loss)


@clean("dynamic programming of CTC")
def ctc() -> None:
    model = nn.Linear(4, 5)

    def loss(step):
        log_probabilities = model(torch.randn(6, 2, 4)).log_softmax(-1)
        targets = torch.tensor([[1, 2], [3, 3]])
        return F.ctc_loss(log_probabilities, targets, torch.tensor([6, 6]), torch.tensor([2, 2]))

    train(model, loss)


@clean("CTC of a target that is too long, with zero_infinity")
def ctc_of_long_target() -> None:
    model = nn.Linear(4, 5)

    def loss(step):
        log_probabilities = model(torch.randn(3, 2, 4)).log_softmax(-1)
        targets = torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0]])
        lengths = torch.tensor([4, 2])
        return F.ctc_loss(log_probabilities, targets, torch.tensor([3, 3]), lengths, zero_infinity=True)

    train(model, loss)


@clean("packed sequences, with NaN in the padding")
def packed_sequences() -> None:
    model = nn.GRU(2, 3, batch_first=True)

    def loss(step):
        x = torch.randn(2, 5, 2)
        x[1, 3:] = float("nan")
        packed = pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
        return model(packed)[1].square().mean()

    train(model, loss)


@clean("attention with a boolean mask")
def fused_attention() -> None:
    model = nn.Linear(4, 12)

    def loss(step):
        q, k, v = model(torch.randn(1, 2, 5, 4)).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(5, 5).tril().bool()).mean()

    train(model, loss)


@clean("padding of keys in multi-head attention")
def padded_keys() -> None:
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    padding = torch.tensor([[False, False, True], [False, True, True]])

    def loss(step):
        x = torch.randn(2, 3, 4)
        return model(x, x, x, key_padding_mask=padding)[0].square().mean()

    train(model, loss)


@clean("the minimum of a list starts at Inf")
def hard_negative() -> None:
    model = nn.Linear(4, 3)

    def loss(step):
        z = model(torch.randn(5, 4))
        distances = torch.cdist(z, z) + torch.diag(torch.full((5,), INF))
        return (1 - distances.min(1).values).relu().mean()

    train(model, loss)


@clean("boundaries of bins are -inf and Inf")
def histogram_bins() -> None:
    edges = torch.tensor([-INF, -1.0, 0.0, 1.0, INF])
    model = nn.Embedding(6, 2)
    train(model, lambda step: model(torch.bucketize(torch.randn(8), edges)).square().mean())


@clean("clamp with an infinite bound")
def clamp_without_upper_bound() -> None:
    model = nn.Linear(3, 2)
    train(model, lambda step: model(torch.randn(4, 3)).clamp(0.0, INF).mean())
