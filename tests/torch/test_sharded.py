"""Trainings with shards on two ranks: watched without a change of a bit, and recorded."""

from contextlib import nullcontext
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.distributed.is_available():
    pytest.skip("torch has no distributed package", allow_module_level=True)

import nncdbg  # noqa: E402
import nncdbg.journal  # noqa: E402
import nncdbg.torch  # noqa: E402
from nncdbg.engine.ops.aten.arrays import host_array  # noqa: E402
from nncdbg.process.rank_notes import SHARD, find_divergences, read_digests  # noqa: E402
from nncdbg.process.ranks import journal_of_rank  # noqa: E402
from nncdbg.torch.named_models import named_models, tensors_by_name  # noqa: E402
from nncdbg.torch.operator_watch import BadOperator  # noqa: E402
from nncdbg.torch.ranks import RankDigests  # noqa: E402
from nncdbg.torch.sharded_tensors import local_part, placement, shard_of  # noqa: E402
from tests.torch.steps.distributed import in_processes  # noqa: E402

STEPS = 2
BAD_RANK = 1
SPOILING = 9
TIERS = ("guard", "hooks", "live")


class Net(torch.nn.Module):  # type: ignore[name-defined]
    """Two layers; a log spoils the output of the first one, in one step and rank."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4), torch.nn.LayerNorm(4)
        self.spoils = False

    def forward(self, x):
        h = torch.relu(self.up(x))
        return self.norm(self.down(torch.log(h - 100) if self.spoils or x[0, 0] == SPOILING else h))


class Sums(torch.nn.Module):  # type: ignore[name-defined]
    """A product of tensors that are sharded differently, so that ranks redistribute them."""

    def __init__(self, mesh):
        super().__init__()
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        self.mesh, self.shard, self.whole = mesh, Shard(1), Replicate()
        self.up = torch.nn.Module()
        self.up.weight = torch.nn.Parameter(distribute_tensor(torch.randn(6, 4), mesh, [Shard(0)]))
        self.bias = torch.nn.Parameter(distribute_tensor(torch.randn(4), mesh, [Replicate()]))
        self.spoils = False

    def forward(self, x):
        from torch.distributed.tensor import distribute_tensor

        shards = distribute_tensor(x, self.mesh, [self.shard])
        y = torch.tanh(shards @ self.up.weight + self.bias)
        return y.redistribute(self.mesh, [self.whole]).to_local()


def training(kind, rank):
    """Return a model with shards, its optimizer, and a function that runs a step."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = Sums(mesh) if kind == "dtensor" else Net()
    if kind == "fsdp":
        for each in (model.up, model.down, model):
            fully_shard(each, mesh=mesh)
    elif kind == "tensor parallel":
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    # Parameters of both kinds cannot be updated together.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=kind != "tensor parallel")
    torch.manual_seed(rank if kind == "fsdp" else 0)

    def run():
        optimizer.zero_grad()
        x, target = torch.randn(5, 6), torch.randn(5, 4)
        loss = torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()

    return model, optimizer, run


def bits(model, optimizer):
    named = tensors_by_name(named_models(model), [optimizer])
    return {name: host_array(each).tobytes() for name, each in named.items()}


def watched(kind, rank, tier):
    """Return the bits after a training, watched or not, and whether the watch reports anything."""
    model, optimizer, run = training(kind, rank)
    watch = nncdbg.torch.watch(model, optimizer, tier=tier, on_nan="report") if tier else nullcontext()
    with watch as report:
        for _ in range(STEPS):
            run()
    return bits(model, optimizer), [] if report is None else [str(each) for each in report.bad_steps]


def recorded(kind, rank):
    """Record the second step; return text, bits after the training, and what a run of the program gives."""
    model, optimizer, run = training(kind, rank)
    run()
    with nncdbg.torch.record(model, optimizer) as step:
        run()
    named = tensors_by_name(named_models(model), [optimizer])
    changed = {name: value for name, value in step.changed.items() if name in named}
    after = {name: host_array(named[name]).tobytes() for name in changed}
    program = nncdbg.Program.parse(step.program.text())
    assert program == step.program
    debugger = nncdbg.Debugger(program, step.inputs, backend="torch")
    debugger.run()
    assert debugger.outputs is not None
    again = {name: host_array(debugger.outputs[value]).tobytes() for name, value in changed.items()}
    return program.text(), bits(model, optimizer), after, again


def poisoned(kind, rank):
    """Return the operator of the origin, and the notes, of a NaN that one rank makes in its last step."""
    model, optimizer, run = training(kind, rank)
    with nncdbg.torch.watch(model, optimizer, on_nan="skip") as report:
        for number in range(STEPS):
            model.spoils = number == 1 and rank == BAD_RANK
            run()
    [bad] = report.bad_steps
    finite = all(bool(torch.isfinite(local_part(each)).all()) for each in model.parameters())
    return bad.origin and bad.origin.op, bad.notes, bad.step, finite


def accumulated(rank):
    """Return what `poisoned` does if the NaN is in the second of three parts of a gradient."""
    model, optimizer, _ = training("fsdp", rank)
    with nncdbg.torch.watch(model, optimizer, on_nan="report") as report:
        for part in range(3):
            x = torch.randn(5, 6)
            if part == 1 and rank == BAD_RANK:
                x[0, 0] = SPOILING
            model(x).square().mean().backward()
        optimizer.step()
    [bad] = report.bad_steps
    return bad.origin and bad.origin.op, bad.notes


def event(rank, folder):
    """Return the kind of the event in the journal of a rank, if one rank makes a NaN."""
    model, optimizer, run = training("fsdp", rank)
    with nncdbg.torch.flight_recorder(model, optimizer, folder / "run.db"):
        run()
        model.spoils = rank == BAD_RANK
        run()
    with nncdbg.journal.open(journal_of_rank(str(folder / "run.db"), rank)) as journal:
        return [each.kind for each in journal.events(journal.run())]


def update(rank):
    """Return what a watch reports on an update that makes a NaN in the shard of one rank."""
    model, optimizer, run = training("fsdp", rank)
    with nncdbg.torch.watch(model, optimizer, on_nan="report", keep_update=True) as report:
        run()
        if rank == BAD_RANK:
            local_part(optimizer.state[model.down.weight]["exp_avg_sq"]).fill_(-1)
        run()
    return [(each.where, [*each.bad], each.notes) for each in report.bad_steps]


def digested(rank, folder):
    """Return the names of the tensors of a tensor-parallel training that are compared between ranks."""
    model, optimizer, run = training("tensor parallel", rank)
    names = {id(each): name for name, each in model.named_parameters()}
    digests = RankDigests(folder, rank, lambda: names, lambda: 1)
    run()
    digests.end()
    return {name: (placement(each), shard_of(each)) for name, each in model.named_parameters()}


def visit(rank, folder):
    """Return all of the above for a rank: starting processes takes longer than the trainings."""
    found = {}
    for kind in ("fsdp", "tensor parallel", "dtensor"):
        found[kind] = {
            "watched": {tier: watched(kind, rank, tier) for tier in ("", *TIERS)},
            "recorded": recorded(kind, rank),
            "poisoned": poisoned(kind, rank) if kind != "dtensor" else None,
        }
    return {
        **found,
        "accumulated": accumulated(rank),
        "event": event(rank, folder),
        "update": update(rank),
        "digested": digested(rank, folder),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digests")
    found = in_processes(partial(visit, folder=folder))
    return [{**each, "folder": folder} for each in found]


KINDS = ("fsdp", "tensor parallel", "dtensor")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tier", TIERS)
def test_a_watch_changes_no_bit_of_shards_and_reports_nothing(ranks, kind, tier):
    for found in ranks:
        plain, _ = found[kind]["watched"][""]
        assert found[kind]["watched"][tier] == (plain, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_step_of_shards_runs_to_the_same_bits(ranks, kind):
    for found in ranks:
        _, after, at_step, again = found[kind]["recorded"]
        assert again == at_step
        assert {"up.weight", "up.weight.grad", "up.weight.exp_avg"} <= {*again}
        assert after == found[kind]["watched"][""][0]


@pytest.mark.parametrize(
    ("kind", "state", "placed", "collectives"),
    [
        (
            "fsdp",
            "state %up.weight: f32[4,6]",
            "Shard(dim=0) of f32[8,6] on mesh [2]",
            ("c10d._allgather_base_", "c10d._reduce_scatter_base_"),
        ),
        (
            "tensor parallel",
            "state %down.weight: f32[4,4]",
            "Shard(dim=1) of f32[4,8] on mesh [2]",
            ("_c10d_functional.all_reduce",),
        ),
        (
            "dtensor",
            "state %up.weight: f32[3,4]",
            "Shard(dim=0) of f32[6,4] on mesh [2]",
            ("_c10d_functional.all_reduce",),
        ),
    ],
)
def test_a_recorded_step_shows_placements_and_collectives(ranks, kind, state, placed, collectives):
    for found in ranks:
        text = found[kind]["recorded"][0]
        name, _, type = state.removeprefix("state %").partition(": ")
        ends = f"%{name}: {type}", f"%.{name.rpartition('.')[2]}: {type}"
        parts = text.split(f"## {placed}\n")[1:]
        lines = [part.split(" = ")[0].strip().removeprefix("state ") for part in parts]
        assert {*ends} & {*lines}
        for each in collectives:
            assert f'op="torch.{each}.default"' in text


@pytest.mark.parametrize("kind", ["fsdp", "tensor parallel"])
def test_only_the_rank_that_makes_a_nan_names_an_operator(ranks, kind):
    for rank, found in enumerate(ranks):
        origin, notes, step, finite = found[kind]["poisoned"]
        assert step == 2
        assert finite, "the update is left out on both ranks"
        assert f"found on rank {rank} of 2; counts are those of its shards" in notes
        assert origin == ("aten.log.default" if rank == BAD_RANK else None)
        assert any("they come from rank 1, whose report" in note for note in notes) == (rank != BAD_RANK)


def test_parts_of_a_gradient_run_again_on_all_ranks(ranks):
    for rank, found in enumerate(ranks):
        origin, notes = found["accumulated"]
        assert origin == ("aten.log.default" if rank == BAD_RANK else None)
        assert any("they come from rank 1, whose report" in note for note in notes) == (rank != BAD_RANK)


def test_the_journal_of_a_clean_rank_says_that_the_nan_was_received(ranks):
    assert [each["event"] for each in ranks] == [["received"], ["nan"]]


def test_an_update_of_a_shard_is_reported_by_its_rank_and_does_not_run_again(ranks):
    clean, bad = (each["update"] for each in ranks)
    assert clean == []
    [(where, names, notes)] = bad
    assert (where, names) == ("update", ["down.weight", "down.weight.exp_avg_sq"][:1])
    assert any("of this shard is nan after the update" in note for note in notes)
    assert any(note.startswith("an update of shards does not run again") for note in notes)


def test_ranks_compare_shards_with_the_same_place(ranks):
    for rank, found in enumerate(ranks):
        assert found["digested"] == {
            "up.weight": ("Shard(dim=0) of f32[8,6] on mesh [2]", f"{SHARD}{rank}]"),
            "up.bias": ("Shard(dim=0) of f32[8] on mesh [2]", f"{SHARD}{rank}]"),
            "down.weight": ("Shard(dim=1) of f32[4,8] on mesh [2]", f"{SHARD}{rank}]"),
            "down.bias": ("Replicate() of f32[4] on mesh [2]", ""),
            "norm.weight": ("", ""),
            "norm.bias": ("", ""),
        }
    digests = read_digests(ranks[0]["folder"], [0, 1])
    assert find_divergences(digests) == []
    names = [{*each[0].tensors} for each in digests.values()]
    assert {"down.bias", "down.bias.grad", "norm.weight"} <= names[0] & names[1]
    assert "up.weight[shard 0]" in names[0] - names[1]


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("torch._c10d_functional.all_reduce.default", "was received by"),
        ("torch.c10d._allgather_base_.default", "was received by"),
        ("aten.log.default", "originates in"),
    ],
)
def test_the_native_tier_says_which_operator_received_a_nan(op, words):
    found = BadOperator(
        phase="forward",
        value="NaN",
        originates=True,
        op=op,
        node="",
        path="down",
        type="Linear",
        counts="20 NaN of 20",
        lines=(),
        of_forward=False,
    )
    assert f"the first NaN of the forward pass {words} {op}, module down (Linear): 20 NaN of 20" in str(found)
