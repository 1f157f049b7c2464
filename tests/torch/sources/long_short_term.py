"""An LSTM with a hidden state over chunks of a sequence, with `*args` and failures that are caught."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.fc = nn.Linear(4, 2)

    def forward(self, *args, **kwargs):
        x, hidden = args
        output, (h, c) = self.lstm(x, hidden)
        scores = self.fc(output)
        if kwargs.get("log"): scores = scores.log_softmax(-1)
        return scores, (h, c)


def safe_solve(a, b):
    try:
        return torch.linalg.solve(a, b)
    except RuntimeError as error:
        jitter = torch.eye(a.shape[0]) * 0.1
        a = a + jitter
        return torch.linalg.solve(a, b) + len(str(error)) * 0


def merge(a, b):
    try:
        c = a + b
    except RuntimeError:
        c = a.sum() + b.sum()
    return c


def setup():
    torch.manual_seed(0)
    model = Tagger()
    return model, torch.optim.Adagrad(model.parameters(), 0.1), torch.randn(2, 6, 3)


def step(state):
    model, opt, xs = state
    hidden = (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
    total = 0
    for chunk in xs.split(3, dim=1):
        hidden = tuple(h.detach() for h in hidden)
        scores, hidden = model(chunk, hidden, log=True)
        loss = -scores[..., 0].mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        opt.step()
        total += loss.detach()
    solved = safe_solve(torch.zeros(2, 2), torch.ones(2, 1))
    merged = merge(torch.ones(2), torch.ones(3))
    return total + solved.sum() + merged
