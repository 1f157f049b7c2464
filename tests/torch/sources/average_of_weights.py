"""A teacher that follows the student: copies of modules, `.data`, `lerp_`, views and swaps of memory."""

import copy

import torch
from torch import nn


def setup():
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    teacher = copy.deepcopy(student).requires_grad_(False)
    queue = torch.randn(4, 3)
    return student, teacher, torch.optim.SGD(student.parameters(), 0.1), queue, torch.randn(2, 3)


def enqueue(queue, keys):
    head = queue[:2]
    tail = queue[2:]
    queue[2:] = head.clone()
    head.copy_(keys)
    return tail.mean()


def step(state):
    student, teacher, optimizer, queue, x = state
    q = student(x)
    k = teacher(x + 0.1)
    positive = (q * k).sum(-1, keepdim=True)
    negative = q @ queue.t()
    logits = torch.cat([positive, negative], dim=1)
    loss = nn.functional.cross_entropy(logits, torch.zeros(2, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for s, t in zip(student.parameters(), teacher.parameters()):
        t.lerp_(s.detach(), 0.1)
    old = enqueue(queue, k)
    first = next(student.parameters())
    first.data = first.data * 0.5
    weights = nn.utils.parameters_to_vector(student.parameters())
    row = weights.view(-1)[:6]
    row += 1
    shrunk = weights * 0.9
    nn.utils.vector_to_parameters(shrunk, student.parameters())
    return loss + old + row.sum()
