"""Recurrent networks and embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.steps.training import Training, step, steps_of, trained


def recurrent(layer: nn.RNNBase) -> Training:
    """Return a step that classifies the last output of a recurrent layer with 4 inputs."""
    size = layer.hidden_size * (2 if layer.bidirectional else 1)
    head = nn.Linear(size, 3)
    model = nn.ModuleDict({"layer": layer, "head": head})
    x, target = torch.randn(2, 5, 4), torch.tensor([0, 2])
    return trained(
        model,
        torch.optim.Adam(model.parameters()),
        lambda: F.cross_entropy(head(layer(x)[0][:, -1]), target),
    )


@step()
def lstm() -> Training:
    return recurrent(nn.LSTM(4, 6, batch_first=True))


@step()
def lstm_without_onednn() -> Training:
    training = recurrent(nn.LSTM(4, 6, batch_first=True))
    update = training.run

    def run() -> torch.Tensor:
        with torch.backends.mkldnn.flags(enabled=False):
            return update()

    training.run = run
    return training


@step()
def lstm_bidirectional() -> Training:
    return recurrent(nn.LSTM(4, 6, num_layers=2, dropout=0.3, bidirectional=True, batch_first=True))


@step()
def gru() -> Training:
    return recurrent(nn.GRU(4, 6, num_layers=2, batch_first=True))


@step()
def rnn_bidirectional() -> Training:
    return recurrent(nn.RNN(4, 6, bidirectional=True, batch_first=True))


@step()
def gru_cell_with_carried_state() -> Training:
    """Truncated backpropagation: the hidden state continues in the next step, detached."""
    cell = nn.GRUCell(3, 5)
    head = nn.Linear(5, 3)
    model = nn.ModuleDict({"cell": cell, "head": head})
    optimizer = torch.optim.RMSprop(model.parameters())
    x = torch.randn(4, 2, 3)
    kept = {"hidden": torch.zeros(2, 5)}

    def run() -> torch.Tensor:
        hidden, loss = kept["hidden"], torch.zeros(())
        optimizer.zero_grad()
        for now, following in zip(x[:-1], x[1:], strict=True):
            hidden = cell(now, hidden)
            loss = loss + F.mse_loss(head(hidden), following)
        loss.backward()
        optimizer.step()
        kept["hidden"] = hidden.detach()
        return loss

    return Training([model], [optimizer], run, kept)


@step()
def packed_sequence_lstm() -> Training:
    layer = nn.LSTM(4, 6, batch_first=True)
    optimizer = torch.optim.Adam(layer.parameters())
    x, lengths = torch.randn(3, 5, 4), torch.tensor([5, 2, 3])

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
        loss = outputs.square().sum(dim=(1, 2)).div(lengths).mean()
        loss.backward()
        optimizer.step()
        return loss

    return Training([layer], [optimizer], run)


@step()
def embedding_and_bag() -> Training:
    words = nn.Embedding(20, 6, padding_idx=0, max_norm=1.0)
    bag = nn.EmbeddingBag(20, 6, mode="mean")
    head = nn.Linear(12, 2)
    model = nn.ModuleDict({"words": words, "bag": bag, "head": head})
    tokens = torch.randint(0, 20, (4, 5))
    offsets, target = torch.tensor([0, 3, 7, 12]), torch.tensor([0, 1, 1, 0])

    def loss_of() -> torch.Tensor:
        features = torch.cat([words(tokens).mean(1), bag(tokens.flatten(), offsets)], dim=1)
        return F.cross_entropy(head(features), target)

    return trained(model, torch.optim.Adagrad(model.parameters(), lr=0.1), loss_of)


STEPS = steps_of(globals())
