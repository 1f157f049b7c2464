"""The watch on two ranks of a data-parallel training, in processes of their own."""

import subprocess
import sys
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg.torch  # noqa: E402
from nncdbg.engine.ops.aten.internals import gradient_buckets  # noqa: E402
from nncdbg.engine.ops.aten.signatures import signature  # noqa: E402
from nncdbg.torch import ranks  # noqa: E402
from tests.torch.steps.distributed import in_ranks  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_processes")

BAD_RANK = 1


def poisoned(rank, training, *, clean=0):
    """Train with NaN in the input of `BAD_RANK` after `clean` steps; return origin, notes and rank."""
    first = training.models[0].module[0]
    with nncdbg.torch.watch(training.models, training.optimizers, on_nan="report") as report:
        for _ in range(clean):
            training.run()
        if rank == BAD_RANK:
            first.register_forward_pre_hook(lambda _, args: (torch.log(args[0] - args[0] - 1),))
        training.run()
    bad = report.bad_steps[0]
    return None if bad.origin is None else bad.origin.op, bad.notes, rank


def parameters_of_buckets(rank, training):
    """Return the names in each bucket of the first and the third step."""
    parallel = training.models[0]
    names = {id(each): name for name, each in parallel.module.named_parameters()}
    found = []
    for _ in range(3):
        training.run()
        found.append([[names[id(each)] for each in bucket] for bucket in gradient_buckets(parallel)])
    return found[0], found[2]


needs_distributed = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch has no distributed package"
)


@needs_distributed
@pytest.mark.parametrize(("clean", "bucket"), [(0, "bucket 1 of 1"), (2, "bucket 1 of 2")])
def test_each_rank_names_itself_and_its_bucket_and_only_the_bad_one_has_the_origin(clean, bucket):
    for origin, notes, rank in in_ranks(partial(poisoned, clean=clean)):
        assert any(f"found on rank {rank} of 2" in note for note in notes)
        [named] = [note for note in notes if bucket in note]
        assert "module.4.bias.grad, module.4.weight.grad" in named
        assert origin == ("aten.log.default" if rank == BAD_RANK else None)
        assert any("they come from rank 1, whose" in note for note in notes) == (rank != BAD_RANK)


@needs_distributed
def test_buckets_hold_all_parameters_in_the_order_of_the_backward_pass():
    for first, later in in_ranks(parameters_of_buckets):
        order = ["4.bias", "4.weight", "3.bias", "3.weight", "1.bias", "1.weight", "0.bias", "0.weight"]
        assert [sum(first, []), len(first)] == [order, 1]
        assert sorted(sum(later, [])) == sorted(order)
        assert len(later) == 2


SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    x = torch.ones(2, 3)
    if step == 1 and dist.get_rank() == 1:
        x[0] = torch.tensor([1, float("nan"), 1])
    model(x).mean().backward()
    optimizer.step()
"""


def on_two_ranks(folder, *command):
    """Run `nncdbg` with a command and `train.py` on two ranks; return what both print."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "nncdbg"]
    done = subprocess.run(
        [sys.executable, *launch, *command, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
    )
    return done.stdout + done.stderr


@needs_distributed
def test_torchrun_shows_the_report_of_each_rank_and_keeps_a_folder_for_each(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    output = on_two_ranks(tmp_path, "watch", "--on-nan", "raise", "--bundle", "found")
    assert output.count("cause: bad input: input %input has 1 NaN among 3 elements") == 1
    assert output.count("they come from rank 1, whose report names the operator") == 1
    on_two_ranks(tmp_path, "record", "-o", "step")
    assert {each.name for each in tmp_path.iterdir() if each.is_dir()} >= {
        "found-rank1",
        "step-rank0",
        "step-rank1",
    }


SHARDED = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
for part in (model[0], model[2], model):
    fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for scale in (1, 0):
    optimizer.zero_grad()
    (model(torch.ones(5, 3)) * scale).square().sum(-1).sqrt().mean().backward()
    optimizer.step()
"""


@needs_distributed
def test_gathered_weights_of_fsdp_are_no_uninitialized_read(tmp_path):
    (tmp_path / "train.py").write_text(SHARDED)
    output = on_two_ranks(tmp_path, "watch")
    assert output.count("cause: square root at zero in backward") == 2
    assert "uninitialized read" not in output


@pytest.mark.parametrize(
    ("operator", "written"),
    [
        ("_allgather_base_", ("output_tensor",)),
        ("allgather_", ("output_tensors",)),
        ("allreduce_", ("tensors",)),
        ("alltoall_base_", ("output",)),
        ("recv_", ("tensors",)),
        ("send", ()),
        ("barrier", ()),
    ],
)
@needs_distributed
def test_collectives_write_what_they_receive(operator, written):
    found = signature(f"torch.c10d.{operator}.default")
    assert found is not None
    assert found.writes == written


class Store:
    """A store of a process group whose `check` raises `error`."""

    def __init__(self, error):
        self.error = error
        self.written = {}

    def set(self, key, value):
        self.written[key] = value

    def check(self, keys):
        raise self.error


@pytest.fixture
def store(monkeypatch):
    """Let this process be rank 1 of 2, and return a function that sets the error of the store."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)

    def use(error):
        found = Store(error)
        monkeypatch.setattr(ranks, "default_store", lambda: found)
        return found

    return use


def test_rank_does_not_wait_when_the_process_with_the_store_has_ended(store):
    used = store(torch.distributed.DistNetworkError("Broken pipe"))
    assert ranks.await_ranks() is None
    assert used.written == {"nncdbg/reported/1": "1"}


@pytest.mark.parametrize("error", [RuntimeError("check is not implemented\ntrace"), ValueError("no group")])
def test_other_errors_of_the_store_are_reported(store, error):
    store(error)
    first = str(error).partition("\n")[0]
    assert ranks.await_ranks() == (
        f"other ranks may end without a report: this rank cannot wait for them: {first}"
    )
