"""The watch on two ranks of a data-parallel training, in processes of their own."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg.torch  # noqa: E402
from tests.torch.steps.distributed import in_ranks  # noqa: E402

BAD_RANK = 1


def poisoned(rank, training):
    """Train one step with NaN in the input of `BAD_RANK`; return origin, notes and rank."""
    first = training.models[0].module[0]
    if rank == BAD_RANK:
        first.register_forward_pre_hook(lambda _, args: (torch.log(args[0] - args[0] - 1),))
    with nncdbg.torch.watch(training.models, training.optimizers, on_nan="report") as report:
        training.run()
    bad = report.bad_steps[0]
    return None if bad.origin is None else bad.origin.op, bad.notes, rank


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package")
def test_each_rank_names_itself_and_only_the_bad_one_has_the_origin():
    for origin, notes, rank in in_ranks(poisoned):
        assert any(f"found on rank {rank} of 2" in note for note in notes)
        assert origin == ("aten.log.default" if rank == BAD_RANK else None)
