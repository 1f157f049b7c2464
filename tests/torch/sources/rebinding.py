"""Names that get other tensors: in loops, by unpacking, in place, by `del` and by walrus."""

import torch


def setup():
    torch.manual_seed(0)
    return torch.randn(4, 4, requires_grad=True), torch.randn(6, 4)


def step(state):
    w, x = state
    for i in range(3):
        x = x + 1
        x = x * 0.5
    a, b = x.chunk(2)
    a, b = b, a
    (c, d), *rest = (a, b), a + b, a - b
    y = c.clone()
    y += d
    y *= 2
    y[:, 0] = 0
    y[1] = d[2]
    z = y @ w
    h = z.relu()
    del z
    if (m := h.mean()) > 0:
        h = h / m
    scale = h.max() if h.sum() > 0 else h.min()
    x = y = h * scale
    x, y = x + rest[0], y - rest[1]; z = x * y
    out = z.sum() + x.norm() - y.norm()
    out.backward()
    buffer = torch.zeros(4, 4)
    buffer.copy_(w.grad)
    buffer.mul_(0.1).neg_()
    with torch.no_grad():
        w += buffer
    w.grad = None
    return out
