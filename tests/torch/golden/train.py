"""Each number is a multiple of a power of two, so that the step is exact on each machine."""

import torch

net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.25, momentum=0.5)
with torch.no_grad():
    for number, parameter in enumerate(net.parameters()):
        parameter.copy_((torch.arange(parameter.numel()).reshape(parameter.shape) + number) / 8)
batch = torch.tensor([[1.0, 0.5], [-1.0, 0.0], [0.5, 2.0], [0.0, -0.5]])
target = torch.tensor([[1.0], [0.0], [0.5], [-0.5]])
for _ in range(2):
    optimizer.zero_grad()
    (net(batch) - target).abs().mean().backward()
    optimizer.step()
