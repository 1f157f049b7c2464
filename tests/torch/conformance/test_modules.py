"""torch's samples of modules replay to the same bits: outputs, gradients, parameters and buffers."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="torch's samples need the package expecttest")

from torch import nn  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402

import nncdbg.torch  # noqa: E402
from nncdbg.torch.named_models import tensors_by_name  # noqa: E402
from tests.torch.conformance.exemptions import EXEMPT_MODULES  # noqa: E402
from tests.torch.conformance.replaying import (  # noqa: E402
    FAILURES,
    copies,
    differing,
    replayed,
    run_backward,
    tensors_in,
)

pytestmark = pytest.mark.conformance_torch

MODULES = [info for info in module_db if torch.float32 in info.dtypes]

IN_F64 = {"nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"}
"""Modules with samples of f64 random numbers, which torch refuses together with f32."""


class Keeping(nn.Module):
    """Runs a module; the tensors that it gets and returns are buffers, and so have names."""

    def __init__(self, module: Any, given: Any) -> None:
        super().__init__()
        self.module = module
        for index, each in enumerate(tensors_in(given)):
            self.register_buffer(f"given{index}", each)

    def forward(self, *positional: Any, **keywords: Any) -> list[Any]:
        # A module may return what it was given.
        outputs = [each.clone() for each in tensors_in(self.module(*positional, **keywords))]
        for index, each in enumerate(outputs):
            self.register_buffer(f"output{index}", each)
        return outputs


def samples(info: Any, training: bool) -> list[Any]:
    """Return torch's samples of a module; some only construct it."""
    torch.manual_seed(0)
    found = info.module_inputs_func(
        info,
        device="cpu",
        dtype=torch.float64 if info.name in IN_F64 else torch.float32,
        requires_grad=True,
        training=training,
    )
    return [each for each in found if each.forward_input is not None]


def failure(info: Any, training: bool, sample: Any) -> str:
    """Return why a sample does not replay to the same bits, empty if it does."""
    given, options = sample.forward_input.args, sample.forward_input.kwargs
    torch.manual_seed(0)
    module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
    model = Keeping(module.to(torch.float64 if info.name in IN_F64 else torch.float32), (given, options))
    model.train(training)
    before = copies(tensors_by_name({"": model}, []).items())
    try:
        with nncdbg.torch.record(model) as step:
            run_backward(model(*given, **options))
        return ", ".join(differing(tensors_by_name({"": model}, []), step.changed, replayed(step), before))
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.name)
def test_module_replays_to_the_same_bits(info: Any, training: bool, tally: Any) -> None:
    found = [failure(info, training, sample) for sample in samples(info, training)]
    exempt, _ = EXEMPT_MODULES.get((info.name, training), ((), ""))
    tally("module_db", len(found), found.count(""))
    assert [reason for index, reason in enumerate(found) if reason and index not in exempt] == []
    assert [index for index in exempt if not found[index]] == [], "these replay now: shorten the table"


def test_table_names_modules() -> None:
    assert {name for name, _ in EXEMPT_MODULES} <= {info.name for info in MODULES}
