"""Clean trainings with exceptions, half precision, several optimizers and loops of their own."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, Adamax, SparseAdam
from torch.utils.data import DataLoader, IterableDataset

import nncdbg.torch
from tests.torch.faults.cases import clean
from tests.torch.faults.clean_masks import INF, train


def step_of(model, optimizer, size=3):
    """Run one usual step and return the loss."""
    optimizer.zero_grad()
    loss = model(torch.randn(4, size)).square().mean()
    loss.backward()
    optimizer.step()
    return loss


@clean("early stopping by an exception")
def early_stopping() -> None:
    class Stop(Exception):
        pass

    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    best = INF
    for step in range(5):
        best = min(best, float(step_of(model, optimizer)))
        if step == 3:
            raise Stop(f"no progress, the best loss is {best}")


@clean("the data ends with StopIteration")
def end_of_data() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    batches = iter([torch.randn(4, 3) for _ in range(3)])
    while True:
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()


@clean("a KeyError in the script, beside a mask of -inf")
def missing_key() -> None:
    model = nn.Linear(3, 3)
    settings = {"steps": 2}
    mask = torch.full((3,), 0.0).index_fill(0, torch.tensor([1]), -INF)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(settings["steps"]):
        optimizer.zero_grad()
        (model(torch.randn(2, 3)) + mask).softmax(-1).square().mean().backward()
        optimizer.step()
    settings["patience"]


@clean("a batch of a wrong shape raises, and is skipped")
def wrong_shape() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for size in (3, 4, 3):
        with suppress(RuntimeError):
            step_of(model, optimizer, size)


@clean("an exception with NaN in its message that is no tensor's")
def message_about_nan() -> None:
    model = nn.Linear(3, 1)
    step_of(model, SGD(model.parameters(), lr=0.1))
    raise ValueError("the column `price` has NaN in row 7")


@clean("a NaN of the first try is thrown away: the script tries again with a smaller number")
def second_try() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        x = torch.randn(4, 3)
        for scale in (1e30, 1.0):
            loss = (model(x) * scale).square().mean()
            if torch.isfinite(loss):
                break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean("the script skips batches whose loss is NaN")
def skipped_batches() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    for step in range(4):
        x = torch.randn(4, 3)
        if step == 2:
            x[0, 0] = float("nan")
        loss = model(x).square().mean()
        if not loss.isfinite():
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean("a scaler finds a scale: it skips the first steps")
def scaler_with_large_scale() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return (gradient.half() * 2 * ctx.saved_tensors[0].half()).float()

    model = nn.Linear(3, 1)
    optimizer = Adam(model.parameters())
    scaler = GradScaler("cpu", init_scale=2.0**18)
    for _ in range(6):
        optimizer.zero_grad()
        scaler.scale(Square.apply(model(torch.randn(4, 3) + 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0**18


@clean("a scaler and clipping of the gradients after `unscale_`")
def scaler_with_clipping() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(4, 3)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@clean("autocast with bfloat16 and a mask of the smallest number")
def mask_of_smallest_number() -> None:
    model = nn.Linear(4, 4)

    def loss(step):
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(torch.randn(3, 4))
        scores = scores.masked_fill(torch.eye(3, 4).bool(), torch.finfo(scores.dtype).min)
        return scores.float().softmax(-1).square().mean()

    train(model, loss)


@clean("clipping of gradients without a limit: the norm is only measured")
def measured_norm() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), INF)
        optimizer.step()


@clean("a model without gradients in one step: clipping returns 0")
def no_gradients() -> None:
    model, head = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = Adamax([*model.parameters(), *head.parameters()])
    for step in range(4):
        optimizer.zero_grad()
        (model if step % 2 else head)(torch.randn(4, 3)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@clean("a GAN with logits")
def gan_with_logits() -> None:
    generator, discriminator = nn.Linear(2, 3), nn.Linear(3, 1)
    g_optimizer, d_optimizer = Adam(generator.parameters()), Adam(discriminator.parameters())
    for _ in range(3):
        fake = generator(torch.randn(4, 2))
        logits = discriminator(torch.cat([torch.randn(4, 3), fake.detach()])) * 100
        d_optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, torch.ones(8, 1)).backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        F.softplus(-discriminator(fake)).mean().backward()
        g_optimizer.step()


@clean("a gradient penalty with an epsilon")
def safe_gradient_penalty() -> None:
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    nn.init.zeros_(critic[2].weight)

    def loss(step):
        x = torch.randn(4, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        return ((slope.square().sum(1) + 1e-12).sqrt() - 1).square().mean()

    train(critic, loss)


@clean("the norm of a zero vector has the gradient 0")
def norm_of_zero() -> None:
    model = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(model.weight)
    train(model, lambda step: model(torch.randn(4, 3)).norm(dim=1).mean())


@clean("LBFGS with a line search")
def strong_wolfe() -> None:
    model = nn.Linear(2, 1)
    optimizer = LBFGS(model.parameters(), line_search_fn="strong_wolfe", max_iter=4)
    x, y = torch.randn(6, 2), torch.randn(6, 1)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


@clean("sparse gradients of unused rows")
def sparse_embedding() -> None:
    model = nn.Embedding(8, 3, sparse=True)
    optimizer = SparseAdam(model.parameters())
    train(model, lambda step: model(torch.tensor([1, 1, 4])).square().mean(), optimizer=optimizer)


@clean("an update by hand, without an optimizer")
def update_by_hand() -> None:
    model = nn.Linear(3, 1)
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad


@clean("a weight that is new in each step, and a best loss of Inf")
def new_weights() -> None:
    weight, best = torch.randn(3, 1, requires_grad=True), torch.tensor(INF)
    for _ in range(3):
        loss = (torch.randn(4, 3) @ weight).square().mean()
        best = torch.minimum(best, loss.detach())
        (gradient,) = torch.autograd.grad(loss, weight)
        weight = (weight - 0.1 * gradient).detach().requires_grad_()


@clean("marked steps without a gradient, and a champion of -inf")
def evolution() -> None:
    model, champion = nn.Linear(3, 2), -INF
    for _ in range(3):
        with nncdbg.torch.step(), torch.no_grad():
            noise = torch.randn(2, 3) * 0.1
            model.weight += noise
            fitness = -model(torch.randn(4, 3)).square().mean()
            if fitness > champion:
                champion = float(fitness)
            else:
                model.weight -= noise


@clean("gradient accumulation with an empty last part")
def empty_part() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for size in (4, 4, 0):
            loss = model(torch.randn(size, 3)).square().sum() / max(size, 1)
            (loss / 3).backward()
        optimizer.step()


@clean("a stream of data")
def stream_of_data() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            for number in count():
                yield torch.full((3,), float(number) / 10)

    model = nn.Linear(3, 1)
    optimizer = Adam(model.parameters())
    for step, x in enumerate(DataLoader(Stream(), batch_size=2)):
        if step == 3:
            break
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@clean("a function of autograd whose backward replaces NaN")
def repaired_gradient() -> None:
    class SafeRoot(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.clamp_min(0).sqrt()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            (y,) = ctx.saved_tensors
            return torch.nan_to_num(gradient / (2 * y), nan=0.0, posinf=0.0, neginf=0.0)

    model = nn.Linear(3, 3)
    train(model, lambda step: SafeRoot.apply(model(torch.randn(4, 3))).mean())


@clean("a hook replaces infinite gradients by 0")
def hook_that_repairs() -> None:
    model = nn.Linear(3, 2)

    def loss(step):
        z = model(torch.randn(4, 3))
        z.register_hook(lambda gradient: gradient.nan_to_num(0.0, 0.0, 0.0))
        return (z - z.detach()).abs().sqrt().sum() + z.square().mean()

    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.nan_to_num(0.0, 0.0, 0.0))
    train(model, loss)
