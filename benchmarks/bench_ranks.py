"""200 steps of a training on 4 ranks, under the debugger with a client attached, against a plain job.

Jobs of both kinds run in turn, with one thread of torch per rank.  Each rank times its steps after the first
ones.  The figure of CPU time counts all ranks, and is the one to read where ranks share cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BAR = 1.05
RANKS, STEPS, WARM, ROUNDS = 4, 200, 10, 3

_TRAINING = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch import nn

warm, steps, results = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(256, 1))
parallel = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)
for step in range(warm + steps):
    if step == warm:
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
    optimizer.zero_grad()
    parallel(torch.randn(8, 64, 256)).square().mean().backward()
    optimizer.step()
times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
with open(os.path.join(results, f"{rank}.json"), "w") as file:
    json.dump(times, file)
dist.barrier()
dist.destroy_process_group()
# Torch sometimes aborts when Python frees the threads of the group.
os._exit(0)
"""


def job(folder: Path, *, attached: bool) -> dict[str, float]:
    """Run a job; return the wall time of its slowest rank, and the CPU time of all ranks."""
    script = folder / "training.py"
    script.write_text(_TRAINING)
    results = Path(tempfile.mkdtemp(dir=folder))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    debug = ["-m", "nncdbg", "debug", "--ranks", "--wait"] if attached else []
    arguments = [str(script), str(WARM), str(STEPS), str(results)]
    command = [sys.executable, *torchrun, *debug, *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            if attached:
                _attach(environment)
            process.wait(timeout=600)
        finally:
            process.terminate()
    times = [json.loads(path.read_text()) for path in results.glob("*.json")]
    assert len(times) == RANKS, f"{len(times)} of {RANKS} ranks ended"
    return {"wall": max(each["wall"] for each in times), "cpu": sum(each["cpu"] for each in times)}


def _attach(environment: dict[str, str]) -> None:
    """Attach to all ranks, start them, and stay attached until they have ended."""
    attach = [sys.executable, "-m", "nncdbg", "attach", "--ranks"]
    ending = time.monotonic() + 120
    while True:
        report = subprocess.run([*attach, "--json"], env=environment, capture_output=True, text=True)
        ranks = json.loads(report.stdout)["ranks"] if report.returncode == 0 else []
        if [each["state"] for each in ranks] == ["waiting"] * RANKS:
            break
        assert time.monotonic() < ending, "the ranks did not start"
        time.sleep(0.5)
    commands = "\n".join(["continue", *["wait"] * RANKS])
    subprocess.run(attach, env=environment, input=commands, text=True, stdout=subprocess.DEVNULL, check=True)


def figures() -> Iterator[dict[str, Any]]:
    """Yield the figures of wall time and of CPU time."""
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            pairs.append((job(Path(folder), attached=True), job(Path(folder), attached=False)))
    for kind in ("wall", "cpu"):
        yield {
            "figure": f"{RANKS} ranks, {STEPS} steps, attached / plain job, {kind} time",
            "ours": statistics.median(ours[kind] for ours, _ in pairs),
            "peer": statistics.median(plain[kind] for _, plain in pairs),
            "ratio": round(statistics.median(ours[kind] / plain[kind] for ours, plain in pairs), 3),
            "bar": BAR,
        }


def measure() -> list[dict[str, Any]]:
    """Return all figures."""
    return [*figures()]


if __name__ == "__main__":
    for row in figures():
        print(json.dumps(row), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
