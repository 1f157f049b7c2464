"""NaN and Inf that a loss makes in the forward pass."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.torch.planted.cases import Training, Weights, fit, mlp, planted


@planted("forward", "aten.log.default", "inf", "log-of-zero", "ReLU returns 0 and the loss takes its log")
def log_of_relu() -> Training:
    model = mlp(4, 16, 3)
    x = torch.randn(32, 4)

    def loss(x):
        rate = torch.relu(model(x))
        likelihood = rate.log()  # origin
        return (rate - likelihood).mean()

    return fit(model, loss, (x,))


@planted("forward", "aten.log.default", "inf", "log-of-zero", "a softmax of far logits underflows to 0")
def log_softmax_by_hand() -> Training:
    model = mlp(4, 8, 3)
    x, y = torch.randn(16, 4), torch.randint(3, (16,))

    def loss(x, y):
        probabilities = torch.softmax(model(x) * 5000, dim=-1)
        logs = torch.log(probabilities)  # origin
        return F.nll_loss(logs, y)

    return fit(model, loss, (x, y))


@planted("forward", "aten.exp.default", "inf", "exp-overflow", "exp of 120, without the maximum subtracted")
def logsumexp_by_hand() -> Training:
    model = Weights(torch.randn(5, 3))
    x = torch.randn(8, 5)

    def loss(x):
        logits = x @ model.weight + 120
        sums = logits.exp().sum(dim=-1)  # origin
        return sums.log().mean()

    return fit(model, loss, (x,))


@planted("forward", "aten.log.default", "inf", "log-of-zero", "sigmoid saturates at 1, so that 1 - p is 0")
def focal_loss() -> Training:
    model = mlp(2, 8, 1)
    x, y = torch.randn(16, 2), torch.randint(2, (16, 1)).float()

    def loss(x, y):
        p = torch.sigmoid(model(x) * 10 + 40)
        positive = y * (1 - p) ** 2 * torch.log(p)
        negative = (1 - y) * p**2 * torch.log(1 - p)  # origin
        return -(positive + negative).mean()

    return fit(model, loss, (x, y))


@planted(
    "forward", "aten.log.default", "inf", "log-of-zero", "the target distribution is one-hot: 0 * log(0)"
)
def divergence_with_zeros() -> Training:
    model = mlp(4, 8, 3)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))

    def loss(x, y):
        target = F.one_hot(y, 3).float()
        predicted = F.log_softmax(model(x), dim=-1)
        return (target * (target.log() - predicted)).sum(-1).mean()  # origin

    return fit(model, loss, (x, y))


@planted("forward", "aten.div.Tensor", "nan", "zero-over-zero", "dice score of an empty mask: 0 / 0")
def dice_loss_of_empty_mask() -> Training:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1), nn.ReLU())
    with torch.no_grad():
        model[2].bias.fill_(-5)
    image, mask = torch.randn(2, 1, 8, 8), torch.zeros(2, 1, 8, 8)

    def loss(image, mask):
        found = model(image)
        overlap = 2 * (found * mask).sum()
        return 1 - overlap / (found.sum() + mask.sum())  # origin

    return fit(model, loss, (image, mask))


@planted("forward", "aten.div.Tensor", "nan", "zero-over-zero", "cosine of a zero vector, written by hand")
def cosine_by_hand() -> Training:
    model = nn.Linear(4, 4, bias=False)
    a, b = torch.randn(6, 4), torch.randn(6, 4)
    a[3] = 0

    def loss(a, b):
        left, right = model(a), model(b)
        cosine = (left * right).sum(-1) / (left.norm(dim=-1) * right.norm(dim=-1))  # origin
        return 1 - cosine.mean()

    return fit(model, loss, (a, b))


@planted(
    "forward", "aten.log.default", "inf", "log-of-zero", "far from each center the densities underflow to 0"
)
def mixture_density() -> Training:
    model = nn.ModuleDict({"logits": nn.Linear(2, 4), "means": nn.Linear(2, 4)})
    x, y = torch.randn(16, 2), torch.randn(16, 1) + 100

    def loss(x, y):
        weights = torch.softmax(model["logits"](x), dim=-1)
        density = torch.exp(-0.5 * (y - model["means"](x)) ** 2)
        return -torch.log((weights * density).sum(-1)).mean()  # origin

    return fit(model, loss, (x, y))


@planted("forward", "aten.div.Tensor", "inf", "division-by-zero", "a predicted variance of 0 from ReLU")
def gaussian_likelihood() -> Training:
    model = mlp(3, 16, 2)
    x, y = torch.randn(16, 3), torch.randn(16)

    def loss(x, y):
        mean, variance = model(x).unbind(-1)
        error = (y - mean) ** 2 / torch.relu(variance)  # origin
        return error.mean()

    return fit(model, loss, (x, y))


@planted("forward", "aten.mean.default", "nan", "empty-mean", "no element is selected", first_bad_step=2)
def mean_of_empty_selection() -> Training:
    model = nn.Linear(3, 1)
    batches = [(torch.randn(8, 3), torch.randn(8, 1), torch.arange(8) < count) for count in (5, 3, 0)]

    def loss(x, y, valid):
        errors = (model(x) - y) ** 2
        return errors[valid].mean()  # origin

    return fit(model, loss, *batches)


@planted(
    "forward",
    "aten.nll_loss_forward.default",
    "nan",
    "empty-mean",
    "each label is `ignore_index`",
    first_bad_step=1,
    also=("bad-batch", "zero-over-zero"),
)
def every_label_ignored() -> Training:
    model = mlp(4, 8, 5)
    good, padded = torch.randint(5, (6,)), torch.full((6,), -100)
    batches = [(torch.randn(6, 4), labels) for labels in (good, padded)]

    def loss(x, labels):
        return F.cross_entropy(model(x), labels)  # origin

    return fit(model, loss, *batches)


@planted(
    "forward", "aten.std.correction", "nan", "variance-of-one", "the last batch has one row", first_bad_step=2
)
def deviation_of_one_row() -> Training:
    model = nn.Linear(3, 2)
    batches = [(torch.randn(rows, 3),) for rows in (8, 8, 1)]

    def loss(x):
        spread = model(x).std(dim=0)  # origin
        return torch.relu(1 - spread).mean()

    return fit(model, loss, *batches)


@planted("forward", "aten.log.default", "nan", "log-of-negative", "the predicted rate is not kept positive")
def poisson_rate() -> Training:
    model = nn.Linear(4, 1)
    x, counts = torch.randn(32, 4), torch.randint(5, (32, 1)).float()

    def loss(x, counts):
        rate = model(x)
        return (rate - counts * rate.log()).mean()  # origin

    return fit(model, loss, (x, counts))


@planted("forward", "aten.log1p.default", "nan", "log-of-negative", "log1p of a relative error below -1")
def relative_error() -> Training:
    model = mlp(3, 8, 1)
    x, y = torch.randn(16, 3), torch.rand(16, 1) + 5

    def loss(x, y):
        relative = 3 * (model(x) - y) / y
        return torch.log1p(relative).abs().mean()  # origin

    return fit(model, loss, (x, y))


@planted(
    "forward",
    "aten._ctc_loss.Tensor",
    "inf",
    "bad-batch",
    "a target longer than its input has no alignment",
    first_bad_step=1,
    also=("log-of-zero",),
    naive=False,
    naive_reason="the second output has a legal -inf for states that cannot be reached, in each batch",
)
def transcript_longer_than_audio() -> Training:
    model = nn.Linear(4, 5)
    batches = [(torch.randn(6, 2, 4), torch.randint(1, 5, (2, length))) for length in (3, 9)]

    def loss(frames, labels):
        logs = F.log_softmax(model(frames), dim=-1)
        sizes = [6, 6], [labels.shape[1]] * 2
        return F.ctc_loss(logs, labels, torch.tensor(sizes[0]), torch.tensor(sizes[1]))  # origin

    return fit(model, loss, *batches)


@planted("forward", "aten.log.default", "inf", "log-of-zero", "the chosen action has probability 0")
def policy_gradient_by_hand() -> Training:
    model = mlp(4, 8, 3)
    states, actions, returns = torch.randn(8, 4), torch.zeros(8, dtype=torch.long), torch.randn(8)

    def loss(states, actions, returns):
        shift = torch.tensor([-200.0, 0.0, 0.0])
        policy = torch.softmax(model(states) + shift, dim=-1)
        chosen = policy.gather(1, actions[:, None]).squeeze(1)
        return -(chosen.log() * returns).mean()  # origin

    return fit(model, loss, (states, actions, returns))


@planted(
    "forward",
    "aten._log_softmax.default",
    "nan",
    "softmax-all-masked",
    "no action is legal in the last state",
)
def no_legal_action() -> Training:
    model = mlp(4, 8, 3)
    states, legal = torch.randn(4, 4), torch.rand(4, 3) > 0.3
    legal[:, 0], legal[3] = True, False

    def loss(states, legal):
        scores = model(states).masked_fill(~legal, float("-inf"))
        return -F.log_softmax(scores, dim=-1)[:, 0].mean()  # origin

    return fit(model, loss, (states, legal))


@planted(
    "forward",
    "aten.logit.default",
    "inf",
    "log-of-zero",
    "logit of a probability of 1",
    also=("division-by-zero",),
)
def distilled_logit() -> Training:
    model = mlp(3, 8, 1)
    x, teacher = torch.randn(8, 3), torch.rand(8, 1)
    teacher[2] = 1

    def loss(x, teacher):
        wanted = torch.logit(teacher)  # origin
        return F.mse_loss(model(x), wanted)

    return fit(model, loss, (x, teacher))
