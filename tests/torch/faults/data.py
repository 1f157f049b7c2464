"""NaN and Inf in batches, labels and weights of samples."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, Dataset

from tests.torch.faults.cases import fault


@fault(step=3, op="smooth_l1_loss", value="nan", cause="bad input")
def missing_target() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 1))
    optimizer = Adam(model.parameters(), lr=1e-3)
    targets = np.random.default_rng(0).normal(size=(4, 5, 1)).astype(np.float32)
    targets[2, 3] = np.nan
    for target in torch.from_numpy(targets):
        prediction = model(torch.randn(5, 1, 8))
        loss = F.smooth_l1_loss(prediction, target)  # FAULT
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="convolution", value="inf", cause="bad input", also=("bad batch",))
def image_divided_by_its_maximum() -> None:
    class Images(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            image = np.full((1, 6, 6), index + 1, np.float32)
            with np.errstate(divide="ignore"):
                return torch.from_numpy(image / (0.0 if index == 6 else image.max())), index % 2

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution, self.head = nn.Conv2d(1, 3, 3), nn.Linear(48, 2)

        def forward(self, x):
            x = self.convolution(x)  # FAULT
            return self.head(x.relu().flatten(1))

    model = Net()
    optimizer = SGD(model.parameters(), lr=0.01)
    for images, labels in DataLoader(Images(), batch_size=4):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="div", value="nan", cause="zero divided by zero")
def dataset_of_tensors() -> None:
    class Series(Dataset):
        def __init__(self):
            self.values = torch.randn(6, 8)
            self.values[4] = 1.5

        def __len__(self):
            return len(self.values)

        def __getitem__(self, index):
            series = self.values[index]
            return (series - series.mean()) / series.std()  # FAULT

    model = nn.GRU(1, 4, batch_first=True)
    optimizer = Adam(model.parameters(), lr=1e-3)
    for batch in DataLoader(Series(), batch_size=3):
        hidden = model(batch[:, :, None])[1]
        optimizer.zero_grad()
        hidden.square().mean().backward()
        optimizer.step()


@fault(step=2, op="mul", value="nan", cause="bad input")
def weights_of_samples() -> None:
    table = np.ones((3, 6), np.float32)
    table[1, 2] = np.nan
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    for weights in torch.from_numpy(table):
        losses = F.cross_entropy(model(torch.randn(6, 4)), torch.randint(0, 3, (6,)), reduction="none")
        loss = (losses * weights).mean()  # FAULT
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="mse_loss", value="inf", cause="bad input")
def infinite_label() -> None:
    class Forecast(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(2, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.out(self.lstm(x)[0][-1])

    labels = torch.from_numpy(np.array([[1.0, 2.0], [3.0, np.inf], [0.5, 0.5]], np.float32))
    model = Forecast()
    optimizer = Adam(model.parameters(), lr=1e-2)
    for label in labels:
        loss = nn.functional.mse_loss(model(torch.randn(5, 2, 2)), label[:, None])  # FAULT
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=1, op="sum", value="nan", cause="bad input")
def padding_that_is_read() -> None:
    padded = np.full((4, 6, 3), np.nan, np.float32)
    for row, length in enumerate((6, 4, 5, 3)):
        padded[row, :length] = np.random.default_rng(row).normal(size=(length, 3))
    sequences = torch.from_numpy(padded)
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        pooled = sequences.sum(1) / 6  # FAULT
        optimizer.zero_grad()
        model(pooled).square().mean().backward()
        optimizer.step()


@fault(step=3, op="mul", value="inf", cause="bad input")
def edges_of_graph() -> None:
    class GraphConvolution(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x, edges, weight):
            messages = self.linear(x)[edges[0]] * weight[:, None]  # FAULT
            return torch.zeros(len(x), 4).index_add(0, edges[1], messages)

    model = GraphConvolution()
    optimizer = Adam(model.parameters(), lr=1e-2)
    edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    distances = np.ones((4, 5), np.float32)
    distances[2, 1] = 0
    with np.errstate(divide="ignore"):
        weights = torch.from_numpy(1 / distances)
    for weight in weights:
        loss = model(torch.randn(5, 3), edges, weight).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=2, op="sin", value="nan", cause="bad input")
def features_of_time() -> None:
    class Clock(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, time):
            features = torch.stack([torch.sin(time), time / 24], -1)  # FAULT
            return self.linear(features)

    model = Clock()
    optimizer = SGD(model.parameters(), lr=0.1)
    for hours in ([1.0, 5.0], [2.0, float("nan")], [3.0, 9.0]):
        time = torch.from_numpy(np.array(hours, np.float32))
        optimizer.zero_grad()
        model(time).square().mean().backward()
        optimizer.step()


@fault(step=2, op="nll_loss_forward", value="inf", cause="bad input")
def weight_of_rare_class() -> None:
    counts = np.array([40, 25, 0], np.float32)
    with np.errstate(divide="ignore"):
        weight = torch.from_numpy(counts.sum() / counts)
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=1e-3)
    for labels in ([0, 1, 0], [1, 2, 0], [0, 0, 1]):
        logits = model(torch.randn(3, 4))
        loss = F.cross_entropy(logits, torch.tensor(labels), weight=weight)  # FAULT
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault(step=3, op="div", value="nan", cause="zero divided by zero")
def augmented_image() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    optimizer = Adam(model.parameters(), lr=1e-3)
    for step in range(1, 5):
        image = torch.rand(2, 1, 8, 8)
        if step == 3:
            image[:] = 0.25
        contrast = (image - image.mean()) / image.std()  # FAULT
        optimizer.zero_grad()
        model(contrast).square().mean().backward()
        optimizer.step()
