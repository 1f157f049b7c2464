"""Perceptrons, convolutional and residual networks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.steps.training import Training, step, steps_of, trained


class Perceptron(nn.Module):
    """Two layers with ReLU, f32[batch, inputs] to f32[batch, classes]."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, classes)

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        h = torch.relu(h)
        return self.second(h)


class Convolutional(nn.Module):
    """Two blocks of Conv, BatchNorm and ReLU, dropout and a classifier."""

    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        x = F.max_pool2d(x, 2)
        x = F.relu(self.norm2(self.conv2(x)), inplace=True)
        x = x.mean((2, 3))
        return self.head(self.dropout(x))


class Residual(nn.Module):
    """A basic block of ResNet, with a projection where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Any) -> Any:
        h = self.relu(self.norm1(self.conv1(x)))
        h = self.norm2(self.conv2(h))
        h += self.shortcut(x)
        return self.relu(h)


def residual_network(width: int) -> nn.Sequential:
    """Return a ResNet of three blocks for 3-channel images and 10 classes."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(width, width, 1),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def classified(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> Training:
    """Return a step that classifies `x` into random classes out of 10."""
    target = torch.randint(0, 10, (len(x),))

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def mlp() -> Training:
    model = Perceptron(16, 32, 10)
    return classified(model, torch.randn(8, 16), torch.optim.SGD(model.parameters(), lr=0.1))


@step(heavy=True)
def mlp_wide() -> Training:
    model = Perceptron(256, 4096, 10)
    return classified(model, torch.randn(64, 256), torch.optim.AdamW(model.parameters(), foreach=False))


@step()
def cnn_batch_norm() -> Training:
    model = Convolutional(4)
    return classified(model, torch.randn(4, 3, 8, 8), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


@step(heavy=True)
def cnn_wide() -> Training:
    model = Convolutional(16)
    return classified(model, torch.randn(16, 3, 32, 32), torch.optim.AdamW(model.parameters()))


@step()
def resnet() -> Training:
    model = residual_network(4)
    return classified(
        model, torch.randn(4, 3, 16, 16), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    )


@step(heavy=True)
def resnet_wide() -> Training:
    model = residual_network(16)
    return classified(model, torch.randn(8, 3, 32, 32), torch.optim.AdamW(model.parameters()))


@step()
def cnn_channels_last() -> Training:
    model = Convolutional(4).to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    return classified(model, x, torch.optim.AdamW(model.parameters()))


@step()
def unet_with_transposed_convolution() -> Training:
    down = nn.Conv2d(1, 4, 3, 2, 1)
    up = nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1)
    out = nn.Conv2d(4, 1, 1)
    model = nn.ModuleDict({"down": down, "up": up, "out": out})
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(2, 1, 8, 8)
    mask = torch.rand(2, 1, 8, 8) > 0.5

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        h = F.leaky_relu(down(x), 0.1)
        h = torch.cat([F.silu(up(h)), x], dim=1)
        loss = F.binary_cross_entropy_with_logits(out(h), mask.float())
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def conv1d_with_dilation() -> Training:
    model = nn.Sequential(
        nn.Conv1d(2, 6, 3, padding=2, dilation=2),
        nn.GroupNorm(2, 6),
        nn.GELU(),
        nn.Conv1d(6, 6, 3, groups=3, padding="same"),
        nn.PReLU(6),
        nn.AvgPool1d(2),
    )
    x, target = torch.randn(3, 2, 16), torch.randn(3, 6, 8)
    return trained(model, torch.optim.Adam(model.parameters()), lambda: F.smooth_l1_loss(model(x), target))


@step()
def conv3d_with_instance_norm() -> Training:
    model = nn.Sequential(
        nn.Conv3d(1, 3, 3, padding=1),
        nn.InstanceNorm3d(3, affine=True),
        nn.ELU(),
        nn.MaxPool3d(2),
        nn.Conv3d(3, 2, 2),
    )
    x = torch.randn(2, 1, 6, 6, 6)
    return trained(model, torch.optim.SGD(model.parameters(), 0.01), lambda: model(x).square().mean())


@step()
def interpolate_and_pad() -> Training:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.PixelShuffle(2))
    optimizer = torch.optim.Adam(model.parameters())
    x, target = torch.randn(2, 2, 6, 6), torch.randn(2, 1, 12, 12)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        h = F.pad(x, (1, 1, 1, 1), mode="reflect")
        h = model(h)
        h = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)
        h = F.interpolate(h, size=(12, 12), mode="nearest")
        loss = F.huber_loss(h, target)
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def spatial_transformer_grid_sample() -> Training:
    locate = nn.Linear(36, 6)
    head = nn.Linear(36, 3)
    model = nn.ModuleDict({"locate": locate, "head": head})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, target = torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 2, 1])

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        theta = locate(x.flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, [4, 1, 6, 6], align_corners=False)
        warped = F.grid_sample(x, grid, align_corners=False)
        loss = F.nll_loss(F.log_softmax(head(warped.flatten(1)), dim=-1), target)
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


STEPS = steps_of(globals())
