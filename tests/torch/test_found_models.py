"""A script has only the models and optimizers that it makes."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from nncdbg.torch.found_models import live_objects, models_of, objects_of_script  # noqa: E402


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
