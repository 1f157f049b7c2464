"""Clean training with NaN, Inf or uninitialized memory inside of gradients, scores and formulas."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam
from torch.utils.checkpoint import checkpoint

from tests.torch.planted.cases import Training, Weights, clean, fit, mlp

INF = float("inf")


@clean("the gradient of a norm at 0 is 0: PyTorch masks its division 0 / 0")
def norm_at_zero() -> Training:
    model = Weights(torch.zeros(3, 4))
    return fit(model, lambda: model.weight.norm(dim=-1).sum() + model.weight.sum())


@clean("the gradient of a deviation of 0 is 0: PyTorch masks its division")
def deviation_at_zero() -> Training:
    model = Weights(torch.ones(3, 4))
    return fit(model, lambda: model.weight.std(dim=-1).sum())


@clean("a product with a zero factor has a gradient without a division")
def product_with_zero() -> Training:
    model = Weights(torch.tensor([[2.0, 0.0, 3.0], [1.0, 2.0, 0.5]]))
    bound = torch.tensor([INF, INF])
    return fit(model, lambda: torch.minimum(model.weight.prod(-1), bound).sum())


@clean("the gradient of sqrt at 0 is Inf, and ReLU drops it")
def root_of_rectified() -> Training:
    model = nn.Linear(3, 4)
    return fit(model, lambda x: torch.relu(model(x)).sqrt().mean(), (torch.randn(6, 3),))


@clean("the angle of the vector (0, 0): PyTorch masks the Inf of its gradient")
def heading_of_zero_velocity() -> Training:
    model = nn.Linear(3, 2, bias=False)
    x = torch.randn(5, 3)
    x[2] = 0

    def loss(x):
        across, along = model(x).unbind(-1)
        return torch.atan2(across, along).mean()

    return fit(model, loss, (x,))


@clean("equal points have a distance of 0 and a gradient of 0")
def distance_of_equal_points() -> Training:
    model = nn.Linear(3, 2)
    x = torch.randn(6, 3)
    x[4] = x[0]

    def loss(x):
        z = model(x)
        return torch.cdist(z, z).masked_fill(torch.eye(6, dtype=torch.bool), INF).amin(-1).mean()

    return fit(model, loss, (x,))


@clean("many equal points: distances by matrix products")
def distance_by_matrix_product() -> Training:
    model = nn.Linear(3, 2)
    x = torch.randn(5, 3).repeat(6, 1)

    def loss(x):
        z = model(x)
        return torch.cdist(z, z, compute_mode="use_mm_for_euclid_dist").clamp(max=INF).mean()

    return fit(model, loss, (x,))


@clean("`F.normalize` of a zero vector divides by its eps")
def normalized_zero_vector() -> Training:
    model = nn.Linear(3, 2, bias=False)
    x = torch.randn(4, 3)
    x[0] = 0
    return fit(model, lambda x: F.normalize(model(x), dim=-1).sum(), (x,))


@clean("cosine similarity with a zero vector")
def cosine_of_zero_vector() -> Training:
    model = nn.Linear(3, 2, bias=False)
    x = torch.randn(4, 3)
    x[0] = 0
    return fit(model, lambda x: F.cosine_similarity(model(x), model(x.flip(0)).detach()).mean(), (x,))


@clean("the loss keeps -100 where log(0) would be")
def saturated_binary_cross_entropy() -> Training:
    model = Weights(torch.tensor([0.0, 50.0, -50.0, 500.0]))
    y = torch.tensor([1.0, 1.0, 0.0, 1.0])

    def loss(y):
        p = torch.sigmoid(model.weight)
        best = torch.full_like(p, INF)
        return torch.minimum(F.binary_cross_entropy(p, y, reduction="none"), best).mean()

    return fit(model, loss, (y,))


@clean("a divergence from a one-hot target: 0 * log(0) counts as 0")
def divergence_of_one_hot() -> Training:
    model = mlp(4, 8, 3)
    x, y = torch.randn(6, 4), F.one_hot(torch.randint(3, (6,)), 3).float()

    def loss(x, y):
        entropy = torch.xlogy(y, y).sum() - torch.where(y > 0, y.log(), 0.0).sum()
        return F.kl_div(F.log_softmax(model(x), -1), y, reduction="batchmean") + entropy

    return fit(model, loss, (x, y))


@clean("unreachable states of the alignment have a log probability of -inf")
def connectionist_loss() -> Training:
    model = nn.Linear(4, 5)
    frames, labels = torch.randn(8, 2, 4), torch.randint(1, 5, (2, 3))

    def loss(frames, labels):
        logs = F.log_softmax(model(frames), -1)
        return F.ctc_loss(logs, labels, torch.tensor([8, 8]), torch.tensor([3, 2]))

    return fit(model, loss, (frames, labels))


@clean("`zero_infinity` replaces the loss of a transcript that is too long")
def connectionist_loss_with_zero_infinity() -> Training:
    model = nn.Linear(4, 5)
    frames, labels = torch.randn(3, 2, 4), torch.randint(1, 5, (2, 6))

    def loss(frames, labels):
        logs = F.log_softmax(model(frames), -1)
        return F.ctc_loss(logs, labels, torch.tensor([3, 3]), torch.tensor([6, 1]), zero_infinity=True)

    return fit(model, loss, (frames, labels))


@clean("the forward algorithm starts with a log probability of -inf")
def hidden_markov_model() -> Training:
    model = nn.ParameterDict({"move": torch.randn(3, 3), "emit": torch.randn(3, 4)})
    symbols = torch.randint(4, (6,))

    def loss(symbols):
        move, emit = model["move"].log_softmax(-1), model["emit"].log_softmax(-1)
        state = torch.tensor([0.0, -INF, -INF])
        for symbol in symbols:
            state = torch.logsumexp(state[:, None] + move, 0) + emit[:, symbol]
        return -state.logsumexp(0)

    return fit(model, loss, (symbols,))


@clean("a hook replaces the NaN of a gradient on purpose")
def cleaned_gradient() -> Training:
    model = Weights(torch.tensor([0.0, 1.0, 4.0]))
    model.weight.register_hook(lambda gradient: torch.nan_to_num(gradient, nan=0.0))

    def loss():
        return torch.where(model.weight > 0, model.weight.clamp(min=0).sqrt(), 0.0).sum()

    return fit(model, loss)


@clean("clipping with a limit of Inf only measures the norm")
def clip_without_limit() -> Training:
    model = mlp(3, 8, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    limit = torch.tensor(INF)

    def train(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=INF)
        torch.minimum(norm, limit)
        optimizer.step()
        return loss

    return Training(model, [optimizer], train, [(torch.randn(5, 3),)])


@clean("GradScaler skips two steps whose gradients overflow, then lowers its scale")
def skipped_steps_of_scaler() -> Training:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**32, backoff_factor=2.0**-8)

    def train(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(x).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(model, [optimizer], train, [(torch.rand(4, 4),)])


@clean("GradScaler skips one step before a clip of the unscaled gradients")
def skipped_step_with_clip() -> Training:
    model = mlp(4, 8, 1)
    optimizer = Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, backoff_factor=2.0**-10)

    def train(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(x).float().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(model, [optimizer], train, [(torch.rand(4, 4),)])


@clean("the line search compares with a best loss of Inf")
def best_loss_in_closure() -> Training:
    model = Weights(torch.tensor([2.0, -1.0]))
    optimizer = LBFGS(model.parameters(), lr=0.5, max_iter=3)

    def train():
        best = torch.tensor(INF)

        def closure():
            nonlocal best
            optimizer.zero_grad()
            loss = (model.weight - 1).pow(2).sum()
            loss.backward()
            best = torch.minimum(best, loss.detach())
            return loss

        optimizer.step(closure)
        return best

    return Training(model, [optimizer], train)


@clean("a checkpointed block with dropout and a mask of -inf")
def checkpointed_attention() -> Training:
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.dropout = nn.Linear(6, 18), nn.Dropout(0.2)

        def forward(self, x):
            query, key, value = self.project(x).chunk(3, dim=-1)
            scores = query @ key.transpose(1, 2) + torch.full((4, 4), -INF).triu(1)
            return self.dropout(scores.softmax(-1)) @ value

    model = Block()
    return fit(
        model, lambda x: checkpoint(model, x, use_reentrant=False).pow(2).mean(), (torch.randn(2, 4, 6),)
    )


@clean("the mask of -inf of each micro-batch is written in place")
def accumulated_attention() -> Training:
    model = nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.01)

    def train(x):
        optimizer.zero_grad()
        total = torch.zeros(())
        for rows in x:
            scores = model(rows) @ rows.T
            scores[:, 0] = -INF
            loss = -scores.log_softmax(-1)[:, 1].mean() / len(x)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return Training(model, [optimizer], train, [(torch.randn(3, 5, 4),)])
