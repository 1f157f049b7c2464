"""Clean training with memory that is uninitialized until it is filled, and other ordinary steps."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.torch.planted.cases import Training, Weights, clean, fit, mlp

INF = float("inf")


@clean("`torch.empty` is filled row by row")
def filled_buffer() -> Training:
    model = nn.Linear(3, 2)

    def loss(x):
        buffer = torch.empty(4, 2)
        for index, row in enumerate(x):
            buffer[index] = model(row)
        return buffer.pow(2).mean()

    return fit(model, loss, (torch.randn(4, 3),))


@clean("`torch.empty_like` is filled with a constant")
def filled_like() -> Training:
    model = nn.Linear(3, 2)

    def loss(x):
        scale = torch.empty_like(x).fill_(0.5)
        return model(x * scale).pow(2).mean()

    return fit(model, loss, (torch.randn(4, 3),))


@clean("noise is written into uninitialized memory")
def noise_in_place() -> Training:
    model = nn.Linear(3, 2)

    def loss(x):
        noise = torch.empty(4, 3).normal_(0, 0.1)
        return model(x + noise).pow(2).mean()

    return fit(model, loss, (torch.randn(4, 3),))


@clean("dropout draws its mask with `bernoulli_` into uninitialized memory")
def dropout() -> Training:
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    return fit(model, lambda x: model(x).pow(2).mean(), (torch.randn(6, 4),))


@clean("a mask of connections drawn with `bernoulli_`")
def dropped_connections() -> Training:
    model = nn.Linear(4, 3)

    def loss(x):
        mask = torch.empty_like(model.weight).bernoulli_(0.5)
        return F.linear(x, model.weight * mask, model.bias).pow(2).mean()

    return fit(model, loss, (torch.randn(6, 4),))


@clean("a channel dropout of feature maps")
def channel_dropout() -> Training:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(64, 1))
    return fit(model, lambda x: model(x).pow(2).mean(), (torch.randn(3, 1, 6, 6),))


@clean("`gumbel_softmax` takes the log of exponential noise in uninitialized memory")
def gumbel_softmax() -> Training:
    model = mlp(4, 8, 3)
    return fit(model, lambda x: F.gumbel_softmax(model(x), hard=True)[:, 0].mean(), (torch.randn(6, 4),))


@clean("a product is written into `out=`")
def product_into_buffer() -> Training:
    model = nn.Linear(3, 2)

    def loss(x):
        gram = torch.empty(4, 4)
        torch.mm(x, x.T, out=gram)
        return (gram @ model(x)).pow(2).mean()

    return fit(model, loss, (torch.randn(4, 3),))


@clean("each element of an uninitialized permutation is scattered")
def scattered_permutation() -> Training:
    model = nn.Linear(6, 1)

    def loss(x):
        target = x.new_empty(x.shape)
        target.scatter_(1, torch.tensor([[3, 0, 5, 1, 4, 2]]).expand(4, 6), x)
        return model(target).pow(2).mean()

    return fit(model, loss, (torch.randn(4, 6),))


@clean("strided memory is copied into")
def copied_columns() -> Training:
    model = nn.Linear(3, 2)

    def loss(x):
        columns = torch.empty_strided((4, 3), (1, 4))
        columns.copy_(x)
        return model(columns).pow(2).mean()

    return fit(model, loss, (torch.randn(4, 3),))


@clean("a part of uninitialized memory is never read")
def partly_used_buffer() -> Training:
    model = nn.Linear(3, 2)

    def loss(x):
        padded = torch.empty(8, 3)
        padded[:4] = x
        return model(padded[:4]).pow(2).mean()

    return fit(model, loss, (torch.randn(4, 3),))


@clean("batch norm with its running statistics, and a best loss that starts at Inf")
def network_with_batch_norm() -> Training:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    model.register_buffer("best", torch.tensor(1e30))

    def loss(image, y):
        result = F.cross_entropy(model(image), y)
        model.best.copy_(torch.minimum(torch.tensor(INF), result.detach()))
        return result

    return fit(model, loss, (torch.randn(4, 1, 6, 6), torch.randint(2, (4,))))


@clean("batch norm of a constant channel: eps keeps the division finite")
def batch_norm_of_constant_channel() -> Training:
    model = nn.Sequential(nn.Dropout(0.1), nn.BatchNorm1d(3), nn.Linear(3, 1))
    x = torch.randn(6, 3)
    x[:, 1] = 0
    return fit(model, lambda x: model(x).pow(2).mean(), (x,))


@clean("a recurrent network with dropout between its layers")
def recurrent_network() -> Training:
    model = nn.ModuleDict({"lstm": nn.LSTM(3, 4, 2, dropout=0.3), "head": nn.Linear(4, 1)})
    return fit(model, lambda x: model["head"](model["lstm"](x)[0]).pow(2).mean(), (torch.randn(5, 2, 3),))


@clean("a GRU over sequences of different lengths, with -inf for the padding of its maximum")
def packed_sequences() -> Training:
    model = nn.GRU(3, 4)

    def loss(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(model(packed)[0], padding_value=-INF)
        return padded.amax(0).mean()

    return fit(model, loss, (torch.randn(5, 2, 3), torch.tensor([5, 3])))


@clean("two optimizers, and noise drawn into uninitialized memory")
def generative_adversarial_network() -> Training:
    model = nn.ModuleDict({"generator": mlp(2, 8, 2), "discriminator": mlp(2, 8, 1)})
    optimizers = [Adam(part.parameters(), lr=1e-3) for part in model.values()]

    def train(real):
        fake = model["generator"](torch.empty(6, 2).uniform_(-1, 1))
        optimizers[1].zero_grad()
        doubt = F.softplus(model["discriminator"](fake.detach())) + F.softplus(-model["discriminator"](real))
        doubt.mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss = F.softplus(-model["discriminator"](fake)).mean()
        loss.backward()
        optimizers[0].step()
        return loss

    return Training(model, optimizers, train, [(torch.randn(6, 2),)])


@clean("the log variance of a prior is -inf where a unit is deterministic")
def deterministic_units() -> Training:
    model = nn.Linear(3, 4)
    logs = torch.tensor([-INF, 0.0, -INF, -1.0])

    def loss(x):
        mean = model(x)
        return (mean + (0.5 * logs).exp() * torch.randn_like(mean)).pow(2).mean()

    return fit(model, loss, (torch.randn(5, 3),))


@clean("labels of `ignore_index` next to valid ones, with a class weight of 0 and -inf for its logit")
def partly_ignored_labels() -> Training:
    model = mlp(4, 8, 3)
    y = torch.tensor([0, -100, 1, -100])
    unused = torch.tensor([False, False, True])
    return fit(model, lambda x: F.cross_entropy(model(x).masked_fill(unused, -INF), y), (torch.randn(4, 4),))


@clean("an average of weights starts from uninitialized memory that is overwritten")
def moving_average_of_weights() -> Training:
    model = nn.Linear(3, 1)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = SGD(model.parameters(), lr=0.01)

    def train(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        flat = torch.empty(4)
        torch.cat([value.detach().flatten() for value in average.module.parameters()], out=flat)
        return loss + 0 * flat.sum()

    return Training(model, [optimizer], train, [(torch.randn(5, 3),)])


@clean("shortest paths: missing edges have the length Inf")
def shortest_paths() -> Training:
    model = Weights(torch.rand(4, 4) + 0.1)
    missing = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1]], dtype=torch.bool)

    def loss():
        edges = model.weight.masked_fill(missing, INF)
        paths = edges
        for _ in range(3):
            longer = (paths[:, :, None] + edges).amin(1)
            paths = torch.minimum(paths, longer)
        return paths[0, 3] + paths[0, 1]

    return fit(model, loss)


@clean("a histogram's outer bins reach to -inf and Inf")
def open_bins() -> Training:
    model = nn.Linear(3, 1)
    edges = torch.tensor([-INF, -1.0, 1.0, INF])

    def loss(x):
        z = model(x)
        return torch.sigmoid(z - edges[:-1]).mul(torch.sigmoid(edges[1:] - z)).sum(0).pow(2).mean()

    return fit(model, loss, (torch.randn(6, 3),))


@clean("a margin of -inf turns a hinge off")
def disabled_hinge() -> Training:
    model = nn.Linear(3, 3)
    margins = torch.tensor([1.0, -INF, 0.5])
    return fit(model, lambda x: torch.relu(model(x) + margins).pow(2).mean(), (torch.randn(6, 3),))


@clean("a softplus with a threshold: exp overflows in the branch not taken, on data without gradient")
def overflow_in_branch_not_taken() -> Training:
    model = nn.Linear(3, 1)

    def loss(x):
        features = torch.where(x > 20, x, torch.log1p(torch.exp(x)))
        return model(features / 100).pow(2).mean()

    return fit(model, loss, (torch.randn(6, 3) * 200,))
