"""Mixed precision, gradient scaling and mixed element types."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.steps.attention import Decoder
from tests.torch.steps.classic import Convolutional, Perceptron
from tests.torch.steps.training import Training, step, steps_of, trained


def scaled(initial_scale: float) -> Training:
    """Return a step under float16 autocast with a gradient scaler and clipped gradients."""
    model = Perceptron(16, 32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=initial_scale, growth_interval=2)
    scaler.scale(torch.zeros(()))  # creates the scale, which is lazy
    x, target = torch.randn(8, 16), torch.randint(0, 10, (8,))
    kept = {"scale": scaler._scale, "growth_tracker": scaler._growth_tracker}

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training([model], [optimizer], run, kept)


@step()
def amp_f16_scaled() -> Training:
    return scaled(2.0**10)


@step()
def amp_f16_skipped_by_inf() -> Training:
    """The scale is too large for float16: the scaler skips the update and halves the scale."""
    return scaled(2.0**40)


@step()
def amp_f16_fused_optimizer() -> Training:
    """The fused optimizer divides by the scale and skips the update by itself."""
    model = Perceptron(16, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(torch.zeros(()))
    x, target = torch.randn(8, 16), torch.randint(0, 10, (8,))

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training([model], [optimizer], run, {"scale": scaler._scale})


@step()
def amp_bf16_cnn() -> Training:
    model = Convolutional(4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, target = torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def amp_bf16_decoder() -> Training:
    model = Decoder(32, 16, 1, 2, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    text = torch.randint(0, 32, (2, 9))

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(text[:, :-1])
            with torch.autocast("cpu", enabled=False):
                loss = F.cross_entropy(logits.float().transpose(1, 2), text[:, 1:])
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def pure_bf16() -> Training:
    model = Perceptron(16, 32, 10).to(torch.bfloat16)
    x, target = torch.randn(8, 16, dtype=torch.bfloat16), torch.randint(0, 10, (8,))
    return trained(
        model, torch.optim.AdamW(model.parameters()), lambda: F.cross_entropy(model(x).float(), target)
    )


@step()
def bf16_with_f32_master_weights() -> Training:
    model = Perceptron(8, 16, 4).to(torch.bfloat16)
    masters = [parameter.detach().float() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, 1e-2)
    x, target = torch.randn(6, 8, dtype=torch.bfloat16), torch.randint(0, 4, (6,))
    kept = {f"master{number}": master for number, master in enumerate(masters)}

    def run() -> torch.Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
        return loss

    return Training([model], [optimizer], run, kept)


@step()
def f64_loss() -> Training:
    model = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 2).double())
    first, activation, last = model
    x, target = torch.randn(4, 6), torch.randn(4, 2, dtype=torch.float64)
    return trained(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        lambda: F.mse_loss(last(activation(first(x)).double()), target) / 3,
    )


@step()
def f16_layer_in_f32_model() -> Training:
    first, last = nn.Linear(6, 8).half(), nn.Linear(8, 2)
    model = nn.ModuleList([first, last])
    x, target = torch.randn(4, 6), torch.randint(0, 2, (4,))
    return trained(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        lambda: F.cross_entropy(last(torch.tanh(first(x.half())).float()), target),
    )


@step()
def quantization_aware_fake_quantize() -> Training:
    model = nn.Linear(6, 4)
    x, target = torch.randn(5, 6), torch.randn(5, 4)

    def loss_of() -> torch.Tensor:
        scale = float(model.weight.detach().abs().max()) / 127
        weight = torch.fake_quantize_per_tensor_affine(model.weight, scale, 0, -128, 127)
        return F.mse_loss(F.linear(x, weight, model.bias), target)

    return trained(model, torch.optim.SGD(model.parameters(), 0.1), loss_of)


STEPS = steps_of(globals())
