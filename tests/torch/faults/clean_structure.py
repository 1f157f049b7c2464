"""Clean trainings with compiled code, operators with bodies, transformations and parallel models."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

from tests.torch.faults.cases import clean
from tests.torch.faults.clean_masks import INF, train


@clean("a compiled model with a mask of -inf")
def compiled_attention() -> None:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            mask = torch.full((3, 3), -INF).triu(1)
            return torch.softmax(q @ k.transpose(-1, -2) + mask, -1) @ v

    torch.compiler.reset()
    model = Attention()
    compiled = torch.compile(model, backend="aot_eager")
    train(model, lambda step: compiled(torch.randn(2, 3, 4)).square().mean())


@clean("a compiled function whose infinity is clamped")
def compiled_clamp() -> None:
    @torch.compile(backend="eager")
    def bounded(z):
        return torch.log(z.detach().relu()).clamp(min=-9.0) * z

    torch.compiler.reset()
    model = nn.Linear(3, 2)
    train(model, lambda step: bounded(model(torch.randn(4, 3))).mean())


@clean("a compiled module in training and in evaluation")
def compiled_evaluation() -> None:
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = Adam(model.parameters())
    for _ in range(2):
        compiled.train()
        optimizer.zero_grad()
        compiled(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        compiled.eval()
        with torch.no_grad():
            (1 / compiled(torch.zeros(1, 3)).mul(0)).isinf()


@clean("the branch of cond that is not taken would take the log of 0")
def guarded_branch() -> None:
    model = nn.Linear(3, 2)

    def loss(step):
        z = model(torch.randn(4, 3))
        return torch.cond(z.min() > 0, lambda t: t.log(), lambda t: (t * t + 1).log(), (z,)).mean()

    train(model, loss)


@clean("a loop of cond whose maximum starts at -inf")
def maximum_in_loop() -> None:
    model = nn.Linear(3, 1)

    def loss(step):
        x = torch.randn(4, 3)
        with torch.no_grad():
            best = while_loop(
                lambda i, b: i < 4,
                lambda i, b: (i + 1, torch.maximum(b, x.amax())),
                (torch.tensor(0), torch.tensor(-INF)),
            )[1]
        return model(x / best.abs()).square().mean()

    train(model, loss)


@clean("a scan whose carry starts at -inf")
def scan_of_maximum() -> None:
    model = nn.Linear(3, 2)

    def combine(carry, row):
        best = torch.maximum(carry, row)
        return best, best * 1.0

    def loss(step):
        _, best = scan(combine, torch.full((2,), -INF), model(torch.randn(4, 3)), dim=0)
        return best.square().mean()

    train(model, loss)


@clean("flexible attention with a causal score")
def causal_score() -> None:
    model = nn.Linear(4, 1)

    def loss(step):
        x = torch.randn(1, 1, 5, 4)
        with torch.no_grad():
            found = flex_attention(x, x, x, lambda s, b, h, i, j: torch.where(i >= j, s, -INF))
        return model(found[0, 0]).square().mean()

    train(model, loss)


@clean("a checkpoint around attention with a mask")
def checkpoint_with_mask() -> None:
    model = nn.Linear(4, 4)

    def block(x):
        return (model(x) + torch.full((3, 4), -INF).triu(1)).softmax(-1)

    train(model, lambda step: checkpoint(block, torch.randn(3, 4), use_reentrant=False).square().mean())


@clean("gradients of single samples by vmap")
def gradients_of_samples() -> None:
    model = nn.Linear(3, 1)
    weights = dict(model.named_parameters())

    def loss_of_sample(values, x):
        return functional_call(model, values, (x,)).square().sum()

    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        each = vmap(grad(loss_of_sample), (None, 0))(weights, torch.randn(4, 3))
        for name, parameter in model.named_parameters():
            norm = each[name].flatten(1).norm(dim=1)
            factor = (1 / norm).clamp(max=1.0)
            parameter.grad = torch.einsum("n...,n->...", each[name], factor) / 4
        optimizer.step()


@clean("a model with complex numbers")
def complex_model() -> None:
    weight = nn.Parameter(torch.randn(3, dtype=torch.complex64))
    optimizer = Adam([weight])
    for _ in range(3):
        optimizer.zero_grad()
        (weight * torch.randn(4, 3)).abs().mean().backward()
        optimizer.step()


@clean("fake quantization with infinite bounds before calibration")
def fake_quantization() -> None:
    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("low", torch.tensor(-INF))
            self.register_buffer("high", torch.tensor(INF))

        def forward(self, x):
            return self.linear(x.clamp(self.low, self.high))

    model = Quantized()
    train(model, lambda step: model(torch.randn(4, 3)).square().mean())


@clean("a temperature of 0: the division by it is in the branch that is not used")
def greedy_sampling() -> None:
    model = nn.Linear(3, 4)

    def loss(step):
        logits = model(torch.randn(2, 3))
        with torch.no_grad():
            scaled = logits / torch.tensor(0.0)
            chosen = torch.where(torch.tensor(True), logits.argmax(-1), scaled.argmax(-1))
        return F.cross_entropy(logits, chosen)

    train(model, loss)


@clean("beam search: the scores of finished beams are -inf")
def beam_search() -> None:
    model = nn.Linear(3, 5)

    def loss(step):
        log_probabilities = model(torch.randn(2, 3)).log_softmax(-1)
        with torch.no_grad():
            scores = torch.tensor([0.0, -INF])[:, None] + log_probabilities
            best = scores.flatten().topk(2).indices % 5
        return F.nll_loss(log_probabilities, best)

    train(model, loss)


@clean("a mixture whose weight underflows: its logarithm is -inf in logsumexp")
def mixture_of_densities() -> None:
    model = nn.Linear(2, 2)

    def loss(step):
        log_weights = torch.tensor([1.0, 0.0]).log()
        densities = -model(torch.randn(4, 2)).square()
        return -torch.logsumexp(log_weights + densities, -1).mean()

    train(model, loss)


@clean("the log of a variance has a floor")
def floor_of_variance() -> None:
    model = nn.Linear(3, 2)

    def loss(step):
        z = model(torch.zeros(4, 3))
        return (z.var(0).clamp_min(1e-6).log() + z.square().mean()).mean()

    train(model, loss)


@clean("an exponential under a clamp: its gradient is 0, not NaN")
def clamped_exponential() -> None:
    model = nn.Linear(3, 2)
    train(model, lambda step: torch.exp(model(torch.randn(4, 3) * 1e3).clamp(max=5.0)).mean())


@clean("ratios of PPO with a clip")
def clipped_ratio() -> None:
    policy = nn.Linear(3, 4)
    old = torch.randn(5, 4).log_softmax(-1)

    def loss(step):
        actions = torch.randint(0, 4, (5, 1))
        new = policy(torch.randn(5, 3)).log_softmax(-1).gather(1, actions)
        ratio = (new - old.gather(1, actions)).exp()
        advantage = torch.randn(5, 1)
        return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()

    train(policy, loss, optimizer=Adam(policy.parameters()))


@clean("a tensor of `torch.empty` as output of an operator")
def output_memory() -> None:
    model = nn.Linear(3, 2)
    memory = torch.empty(4, 2)

    def loss(step):
        with torch.no_grad():
            torch.mm(torch.randn(4, 3), model.weight.t(), out=memory)
        return (model(torch.randn(4, 3)) - memory).square().mean()

    train(model, loss)


@clean("data parallel modules of one process")
def data_parallel() -> None:
    model = nn.DataParallel(nn.Linear(3, 1))
    train(model, lambda step: model(torch.randn(4, 3)).square().mean())


@clean("distributed data parallel on one rank")
def distributed_on_one_rank() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
        train(model, lambda step: model(torch.randn(4, 3)).square().mean())
        # The destructor of the group waits for its thread, with the GIL, which the thread needs to forget the
        # last collective.  Without nncdbg too, one of 100 such scripts hangs.
        time.sleep(0.1)
    finally:
        dist.destroy_process_group()


@clean("a mean of an empty selection that weighs 0 is left out")
def optional_loss() -> None:
    model = nn.Linear(3, 2)

    def loss(step):
        z = model(torch.randn(4, 3))
        extra = z[z[:, 0] > 1e9].detach().mean()
        value = z.square().mean()
        return value if extra.isnan() else value + extra

    train(model, loss)


@clean("the ranks of equal numbers: correlation 0 / 0 is only printed")
def printed_correlation() -> None:
    model = nn.Linear(3, 1)

    def loss(step):
        prediction = model(torch.zeros(4, 3))
        with torch.no_grad():
            f"{float(torch.corrcoef(torch.cat([prediction, torch.ones(4, 1)], 1).t())[0, 1])}"
        return (prediction - torch.randn(4, 1)).square().mean()

    train(model, loss)
