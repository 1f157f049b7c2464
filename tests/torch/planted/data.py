"""NaN and Inf in batches, parameters and buffers that are bad before the step."""

from __future__ import annotations

from itertools import cycle

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.planted.cases import Training, fit, mlp, planted


@planted(
    "data",
    "aten.addmm.default",
    "nan",
    "input-nan",
    "one sample of the third batch is NaN",
    module="first",
    first_bad_step=2,
)
def bad_sample_of_loader() -> Training:
    class First(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight, self.bias)  # origin

    model = nn.Sequential()
    model.add_module("first", First(4, 8))
    model.add_module("head", nn.Linear(8, 1))
    x, y = torch.randn(32, 4), torch.randn(32, 1)
    x[19, 2] = float("nan")
    batches = [tuple(batch) for batch in DataLoader(TensorDataset(x, y), batch_size=8)]
    return fit(model, lambda x, y: F.mse_loss(model(x), y), *batches)


@planted("data", "aten.sub.Tensor", "inf", "input-inf", "a missing value is stored as Inf", first_bad_step=1)
def missing_value_as_inf() -> Training:
    model = mlp(4, 8, 1)
    batches = [(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(2)]
    batches[1][0][2, 3] = float("inf")

    def loss(x, y):
        centered = x - 0.5  # origin
        return F.mse_loss(model(centered), y)

    return fit(model, loss, *batches)


@planted("data", "aten.mse_loss.default", "nan", "input-nan", "a target is NaN", first_bad_step=1)
def target_without_value() -> Training:
    model = mlp(3, 8, 1)
    batches = [(torch.randn(6, 3), torch.randn(6, 1)) for _ in range(2)]
    batches[1][1][4] = float("nan")

    def loss(x, y):
        predicted = model(x)
        return F.mse_loss(predicted, y)  # origin

    return fit(model, loss, *batches)


@planted(
    "data",
    "aten.stack.default",
    "nan",
    "input-nan",
    "the loader collates a NaN inside the step",
    first_bad_step=2,
)
def loader_in_the_step() -> Training:
    class Samples(torch.utils.data.Dataset):
        def __init__(self):
            self.rows = list(torch.randn(12, 3).unbind(0))
            self.rows[9] = torch.tensor([0.5, float("nan"), 0.5])

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]

    model = mlp(3, 4, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    iterator = cycle(DataLoader(Samples(), batch_size=4))

    def train():
        x = next(iterator)  # origin
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return Training(model, [optimizer], train)


@planted(
    "data", "aten.embedding.default", "nan", "bad-parameter", "a row of the embedding is NaN", module="words"
)
def bad_row_of_embedding() -> Training:
    class Words(nn.Embedding):
        def forward(self, words):
            return F.embedding(words, self.weight)  # origin

    model = nn.ModuleDict({"words": Words(10, 4), "head": nn.Linear(4, 2)})
    with torch.no_grad():
        model["words"].weight[7] = float("nan")
    return fit(
        model, lambda words: model["head"](model["words"](words)).pow(2).mean(), (torch.tensor([3, 7]),)
    )


@planted(
    "data",
    "aten.mul.Tensor",
    "inf",
    "bad-parameter",
    "a gain was saved in float16 and is Inf",
    module="scale",
)
def infinite_gain_of_checkpoint() -> Training:
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.tensor([1.0, 1e6, 1.0]).half().float())

        def forward(self, x):
            return torch.tanh(x * self.gain)  # origin

    model = nn.Sequential()
    model.add_module("linear", nn.Linear(3, 3))
    model.add_module("scale", Scale())
    return fit(model, lambda x: model(x).mean(), (torch.randn(4, 3),))


@planted(
    "data", "aten.sub.Tensor", "nan", "bad-parameter", "a buffer of running means is NaN", module="center"
)
def bad_buffer() -> Training:
    class Center(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.0, float("nan"), 0.0]))

        def forward(self, x):
            return x - self.mean  # origin

    model = nn.Sequential()
    model.add_module("center", Center())
    model.add_module("head", nn.Linear(3, 1))
    return fit(model, lambda x: model(x).pow(2).mean(), (torch.randn(4, 3),))


@planted(
    "forward",
    "aten.native_batch_norm.default",
    "nan",
    "bad-parameter",
    "a frozen batch norm was loaded with a running variance of -1",
    module="norm",
    also=("sqrt-of-negative", "zero-variance-norm"),
)
def negative_running_variance() -> Training:
    class Norm(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x)  # origin

    model = nn.ModuleDict({"conv": nn.Conv2d(1, 3, 3), "norm": Norm(3).eval(), "head": nn.Linear(3, 1)})
    model["norm"].running_var[1] = -1

    def loss(image):
        return model["head"](model["norm"](model["conv"](image)).mean((2, 3))).pow(2).mean()

    return fit(model, loss, (torch.randn(2, 1, 6, 6),))


@planted(
    "forward",
    "aten.div.Tensor",
    "nan",
    "bad-batch",
    "a blank image has the deviation 0",
    first_bad_step=1,
    also=("zero-over-zero", "zero-variance-norm"),
)
def blank_image() -> Training:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    images = [torch.rand(4, 1, 6, 6), torch.rand(4, 1, 6, 6)]
    images[1][2] = 0.25

    def loss(image):
        centered = image - image.mean((2, 3), keepdim=True)
        standard = centered / image.std((2, 3), keepdim=True)  # origin
        return model(standard).pow(2).mean()

    return fit(model, loss, *[(image,) for image in images])
