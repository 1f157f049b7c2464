"""Loss functions, linear algebra, transforms and reductions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.steps.training import Training, step, steps_of, trained


@step()
def ctc_loss() -> Training:
    model = nn.Linear(6, 5)
    x = torch.randn(10, 2, 6)
    targets = torch.tensor([[1, 2, 2], [3, 4, 0]])
    lengths, target_lengths = torch.tensor([10, 8]), torch.tensor([3, 2])
    return trained(
        model,
        torch.optim.Adam(model.parameters()),
        lambda: F.ctc_loss(model(x).log_softmax(-1), targets, lengths, target_lengths, zero_infinity=True),
    )


@step()
def cross_entropy_smoothed_with_ignored_labels() -> Training:
    model = nn.Linear(6, 5)
    x, target = torch.randn(8, 6), torch.tensor([0, -100, 4, 2, -100, 1, 3, 3])
    weight = torch.linspace(0.5, 1.5, 5)
    return trained(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        lambda: F.cross_entropy(model(x), target, weight, ignore_index=-100, label_smoothing=0.1),
    )


@step()
def triplet_and_ranking_losses() -> Training:
    model = nn.Linear(6, 4)
    anchor, positive, negative = torch.randn(3, 5, 6)
    order = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])

    def loss_of() -> torch.Tensor:
        a, p, n = model(anchor), model(positive), model(negative)
        loss = F.triplet_margin_loss(a, p, n, margin=1.0, swap=True)
        loss = loss + F.cosine_embedding_loss(a, n, order) + F.hinge_embedding_loss(a.sum(1), order)
        return loss + F.margin_ranking_loss(p.mean(1), n.mean(1), order, margin=0.5)

    return trained(model, torch.optim.Adam(model.parameters()), loss_of)


@step()
def contrastive_loss_with_cdist() -> Training:
    model = nn.Linear(6, 4)
    x, y = torch.randn(5, 6), torch.randn(5, 6)

    def loss_of() -> torch.Tensor:
        a, b = F.normalize(model(x), dim=-1), F.normalize(model(y), dim=-1)
        logits = (a @ b.t()) * 5
        labels = torch.arange(5)
        both = F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)
        return both / 2 + torch.cdist(a, b).clamp(min=0.1).log().mean() + F.cosine_similarity(a, b).mean()

    return trained(model, torch.optim.AdamW(model.parameters()), loss_of)


@step()
def regression_losses() -> Training:
    model = nn.Linear(4, 3)
    x, target = torch.randn(6, 4), torch.rand(6, 3)

    def loss_of() -> torch.Tensor:
        y = model(x)
        loss = F.poisson_nll_loss(y, target) + F.gaussian_nll_loss(y, target, F.softplus(y) + 0.1)
        loss = loss + F.kl_div(y.log_softmax(1), target.softmax(1), reduction="batchmean")
        loss = loss + F.soft_margin_loss(y, target.sign()) + F.multi_margin_loss(y, target.argmax(1))
        return loss + F.multilabel_soft_margin_loss(y, (target > 0.5).float()) + F.l1_loss(y, target)

    return trained(model, torch.optim.SGD(model.parameters(), 0.05), loss_of)


@step()
def sort_topk_and_quantile() -> Training:
    model = nn.Linear(5, 7)
    x = torch.randn(6, 5)

    def loss_of() -> torch.Tensor:
        h = model(x)
        ordered, index = h.sort(dim=1, descending=True)
        top, _ = h.topk(3, dim=1)
        middle = h.median(dim=1).values + h.kthvalue(2, dim=1).values + h.mode(dim=1).values
        bounds = torch.quantile(h, torch.tensor([0.1, 0.5, 0.9]), dim=1)
        largest = h.amax(1) - h.min(dim=1).values + index.float().var()
        return ordered[:, 0].mean() + top.std() + (middle * bounds[1] + largest).square().mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.01), loss_of)


@step()
def einsum_and_batched_products() -> Training:
    left, right = nn.Parameter(torch.randn(3, 4, 5)), nn.Parameter(torch.randn(5, 6))
    model = nn.ParameterList([left, right])
    x = torch.randn(2, 3, 4)

    def loss_of() -> torch.Tensor:
        y = torch.einsum("bij,ijk,kl->bil", x, left, right)
        z = (
            torch.bmm(x, left[:2, :3].transpose(1, 2)[:, :4])
            + torch.tensordot(x, left, dims=([1, 2], [0, 1]))[0, 0]
        )
        w = torch.baddbmm(z, x, left[:2, :, :3]) + torch.outer(left[0, 0, :3], left[0, 0, :3])
        return y.square().mean() + w.mean() + torch.kron(right[:2, :2], right[2:4, :2]).sum()

    return trained(model, torch.optim.Adam(model.parameters()), loss_of)


@step()
def cumulative_ops() -> Training:
    model = nn.Linear(4, 6)
    x = torch.randn(5, 4)

    def loss_of() -> torch.Tensor:
        h = model(x)
        total = h.cumsum(1) + h.sigmoid().cumprod(1) + h.cummax(1).values + torch.logcumsumexp(h, 1)
        return total.diff(dim=1).square().mean() + torch.trapezoid(h, dim=1).mean() + h.logsumexp(1).mean()

    return trained(model, torch.optim.SGD(model.parameters(), 0.05), loss_of)


@step()
def complex_numbers_and_fft() -> Training:
    """A spectral layer with complex weights, then an STFT."""
    weight = nn.Parameter(torch.randn(3, 9, dtype=torch.complex64) * 0.1)
    scale = nn.Parameter(torch.ones(3, 16))
    model = nn.ParameterDict({"weight": weight, "scale": scale})
    x, window = torch.randn(2, 3, 16), torch.hann_window(8)

    def loss_of() -> torch.Tensor:
        spectrum = torch.fft.rfft(x * scale) * weight
        y = torch.fft.irfft(spectrum, n=16)
        picture = torch.stft(y.flatten(0, 1), 8, hop_length=4, window=window, return_complex=True)
        phase = torch.view_as_real(torch.polar(y.abs() + 0.1, y)).sum(-1)
        return (
            picture.abs().add(1e-3).log().mean()
            + spectrum.real.square().mean()
            + (phase * spectrum.imag.mean()).mean()
        )

    return trained(model, torch.optim.Adam(model.parameters(), 1e-2), loss_of)


@step()
def linear_algebra_solve_and_cholesky() -> Training:
    """The negative log likelihood of a Gaussian process."""
    model = nn.ParameterDict(
        {"length": nn.Parameter(torch.tensor(0.3)), "noise": nn.Parameter(torch.tensor(-1.0))}
    )
    x = torch.linspace(0, 1, 6)[:, None]
    y = torch.sin(4 * x[:, 0])

    def loss_of() -> torch.Tensor:
        distance = (x - x.t()) / F.softplus(model["length"])
        kernel = torch.exp(-0.5 * distance.square()) + F.softplus(model["noise"]) * torch.eye(6)
        factor = torch.linalg.cholesky(kernel)
        weights = torch.cholesky_solve(y[:, None], factor)[:, 0]
        mean = kernel @ torch.linalg.solve(kernel + torch.eye(6), y)
        return 0.5 * y @ weights + factor.diagonal().log().sum() + F.mse_loss(mean, y)

    return trained(model, torch.optim.Adam(model.parameters(), 0.05), loss_of)


@step()
def linear_algebra_svd_and_inverse() -> Training:
    model = nn.Linear(4, 4)
    x = torch.randn(5, 4)

    def loss_of() -> torch.Tensor:
        u, s, vh = torch.linalg.svd(model.weight, full_matrices=False)
        low_rank = u[:, :2] @ torch.diag(s[:2]) @ vh[:2]
        q, r = torch.linalg.qr(model.weight + 3 * torch.eye(4))
        eigenvalues = torch.linalg.eigvalsh(model.weight + model.weight.t())
        y = x @ low_rank @ torch.linalg.inv(model.weight + 4 * torch.eye(4))
        norms = torch.linalg.norm(q @ r) + torch.linalg.slogdet(model.weight + 4 * torch.eye(4)).logabsdet
        return (
            y.square().mean()
            + eigenvalues.square().mean()
            + norms
            + torch.linalg.matrix_exp(model.weight).mean()
        )

    return trained(model, torch.optim.SGD(model.parameters(), 0.01), loss_of)


@step()
def pointwise_functions() -> Training:
    model = nn.Linear(4, 8)
    x = torch.randn(5, 4)

    def loss_of() -> torch.Tensor:
        a, b = model(x).chunk(2, dim=1)
        y = (
            torch.where(a > 0, a.sin(), b.cos())
            + torch.atan2(a, b)
            + torch.erf(a) * torch.lgamma(b.abs() + 1)
        )
        y = (
            y
            + torch.maximum(a, b)
            + torch.fmod(a, 0.7)
            + torch.hypot(a, b)
            + torch.logaddexp(a, b)
            + a.expm1()
        )
        y = (
            y
            + torch.clamp(a, b.detach() - 1, b.detach() + 1)
            + a.abs().pow(1.5)
            + a.square().rsqrt().clamp(max=3)
        )
        y = F.glu(torch.cat([y, F.mish(a) + F.selu(b)], dim=1)) + F.softshrink(a) + F.hardtanh(b) + F.celu(a)
        return (
            torch.nan_to_num(y).mean() + torch.stack([a, b]).prod(0).mean() + y.var(dim=0, correction=0).sum()
        )

    return trained(model, torch.optim.SGD(model.parameters(), 0.01), loss_of)


STEPS = steps_of(globals())
