"""torch's samples of operators replay to the same bits, forward and backward."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="torch's samples need the package expecttest")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

from nncdbg.torch.recorded_step import program_of  # noqa: E402
from nncdbg.torch.recording import Recorder  # noqa: E402
from tests.torch.conformance.exemptions import (  # noqa: E402
    EXEMPT,
    ONLY_ON_DEVICES,
    UNINITIALIZED,
    filled_memory,
)
from tests.torch.conformance.replaying import (  # noqa: E402
    FAILURES,
    differing,
    replayed,
    run_backward,
    tensors_in,
)

pytestmark = pytest.mark.conformance_torch

OPERATORS = [
    info for info in op_db if info.supports_dtype(torch.float32, "cpu") and info.name not in ONLY_ON_DEVICES
]


def name_of(info: Any) -> str:
    return "_".join(part for part in (info.name, info.variant_test_name) if part)


def samples(info: Any) -> list[Any]:
    """Return torch's samples of an operator."""
    torch.manual_seed(0)
    np.random.seed(0)
    return list(info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd))


def record(info: Any, sample: Any) -> tuple[Any, dict[str, Any]]:
    """Return the recorded program of a sample, forward and backward, and what it computed by name."""
    given = tensors_in((sample.input, sample.args, sample.kwargs))
    for each in given:  # samples share tensors
        each.grad = None
    torch.manual_seed(0)
    recorder = Recorder()
    try:
        with recorder:
            outputs = [each.clone() for each in tensors_in(info(sample.input, *sample.args, **sample.kwargs))]
            run_backward(outputs)
        computed = {f"result{index}": each.detach() for index, each in enumerate(outputs)}
        gradients = [each.grad for each in given if each.is_leaf and each.grad is not None]
        computed |= {f"gradient{index}": each for index, each in enumerate(gradients)}
        for name, tensor in computed.items():
            recorder.label(tensor, name)
        recorder.copy_inputs()
        recorded = program_of(recorder.events, recorder.inputs, recorder.labels, {}, {}, {})
    finally:
        recorder.release()
    return recorded, computed


def failure(info: Any, sample: Any) -> str:
    """Return why a sample does not replay to the same bits, empty if it does."""
    try:
        with filled_memory(name_of(info) in UNINITIALIZED):
            recorded, computed = record(info, sample)
            return ", ".join(differing(computed, recorded.changed, replayed(recorded), {}))
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("info", OPERATORS, ids=name_of)
def test_operator_replays_to_the_same_bits(info: Any, tally: Any) -> None:
    found = [failure(info, sample) for sample in samples(info)]
    exempt, _ = EXEMPT.get(name_of(info), ((), ""))
    tally("op_db", len(found), found.count(""))
    assert [reason for index, reason in enumerate(found) if reason and index not in exempt] == []
    assert [index for index in exempt if not found[index]] == [], "these replay now: shorten the table"


def test_tables_name_operators() -> None:
    assert EXEMPT.keys() | UNINITIALIZED.keys() <= {name_of(info) for info in OPERATORS}
    assert {info.name for info in op_db} >= ONLY_ON_DEVICES
