"""A data-parallel training under the flight recorder, which fails on the rank and step of its arguments."""

import argparse
import datetime
import os
import signal
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import nncdbg.torch


def fail(fault, x):
    """Do what the fault is, before the forward pass of the batch `x`."""
    if fault == "nan":
        x[0, 1] = float("nan")
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "hang":
        time.sleep(100)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("journal")
    parser.add_argument("--fault")
    parser.add_argument("--ranks", type=int, nargs="*", default=[])
    parser.add_argument("--step", type=int, default=5)
    parser.add_argument("--resume")
    parser.add_argument("--only-rank-0", action="store_true")
    parser.add_argument("--timeout", type=float, default=60)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=arguments.timeout))
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 3), torch.randn(32, 1))
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    loader = nncdbg.torch.track_loader(DataLoader(data, 2, sampler=DistributedSampler(data)))
    start = None
    if arguments.resume:
        start = nncdbg.torch.resume(model, optimizer, arguments.resume, loader=loader)
    step = start.step if start else 0
    recorder = nncdbg.torch.flight_recorder(
        model, optimizer, arguments.journal, loader=loader, checkpoint_every=2, resumed=start
    )
    with nullcontext() if arguments.only_rank_0 and rank else recorder:
        for x, target in loader:
            if step == arguments.step and rank in arguments.ranks:
                fail(arguments.fault, x)
            optimizer.zero_grad()
            output = model(x)
            loss = nn.functional.mse_loss(output, target)
            if step == arguments.step and rank in arguments.ranks and arguments.fault == "gradient":
                loss = loss + (0 * output).sqrt().sum()
            loss.backward()
            optimizer.step()
            step += 1
    torch.save([*model.parameters()], f"{arguments.journal}.parameters{rank}")


if __name__ == "__main__":
    main()
