"""A script has only the models and optimizers that it makes."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.torch import named_models  # noqa: E402
from nncdbg.torch.guard import Guard  # noqa: E402
from nncdbg.torch.guard_findings import GuardTrip  # noqa: E402
from nncdbg.torch.named_models import live_objects, models_of, objects_of_script  # noqa: E402


def test_objects_before_a_script_are_not_its_own():
    earlier = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(earlier.parameters(), lr=0.1)
    with objects_of_script():
        assert live_objects(torch.optim.Optimizer) == []
        model = torch.nn.Sequential(torch.nn.Linear(2, 1))
        own = torch.optim.SGD(model.parameters(), lr=0.1)
        assert live_objects(torch.optim.Optimizer) == [own]
        assert models_of([own]) == {"": model}
    assert {*map(id, live_objects(torch.optim.Optimizer))} >= {id(optimizer), id(own)}


def test_a_module_whose_constructor_has_failed_is_left_out() -> None:
    class Failing(torch.nn.Linear):  # type: ignore[name-defined]
        def __init__(self) -> None:
            raise ValueError("before Module.__init__")

    with pytest.raises(ValueError, match="before") as caught:  # keeps the traceback, and so the module
        Failing()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert list(models_of([optimizer]).values()).count(model) == 1
    assert caught.tb is not None


def test_a_finding_searches_all_objects_once_before_and_once_after_the_update(monkeypatch):
    searches = []

    def searched(optimizers):
        searches.append(1)
        return models_of(optimizers)

    monkeypatch.setattr(named_models, "models_of", searched)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trips: list[GuardTrip] = []
    with Guard(None, optimizer, trips.append, tier="hooks"):
        for factor in (1.0, 1e30, float("nan"), 1.0):
            searches.append(0)
            (model(torch.ones(3, 2)).sum() * factor).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [(trip.step, trip.follows) for trip in trips] == [(3, False), (4, True)]
    assert trips[0].bad["weight.grad"] == "2 NaN of 2"
    by_step = "".join(map(str, searches)).split("0")[1:]
    assert by_step[:2] == ["", ""]
    assert by_step[2] == "11", "before the update, and for the parameters that it has spoiled"
