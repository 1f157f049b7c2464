"""Versions of torch: an older one is refused, a newer one works unless it lacks what nncdbg uses."""

import warnings

import pytest

from nncdbg.engine.backends import backend
from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten import internals, versions
from nncdbg.torch.installation import check_torch

torch = pytest.importorskip("torch")
INSTALLED = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.fixture(autouse=True)
def checks_anew():
    versions._check.cache_clear()
    yield
    versions._check.cache_clear()


@pytest.mark.parametrize("check", [check_torch, lambda: backend("torch")], ids=["training", "backend"])
@pytest.mark.parametrize("version", ["2.9.1", "2.1.0+cpu", "1.13"])
def test_an_older_version_is_refused(version, check, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(UsageError) as caught:
        check()
    assert f"torch {version} is not supported: nncdbg works with torch 2.10 or newer" in str(caught.value)
    assert caught.value.hint == "pip install 'torch>=2.10'"


@pytest.mark.parametrize("version", ["2.10.0", "2.15.0+cu132", "2.15.1"])
def test_a_known_version_gives_no_warning(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_torch()


@pytest.mark.skipif(INSTALLED < (2, 12), reason="a compiled call keeps its result nowhere before torch 2.12")
@pytest.mark.parametrize("version", ["2.16.0", "2.16.0.dev20261129+cpu", "3.0.0a0"])
def test_a_newer_version_works_with_one_warning(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    random = torch.get_rng_state()
    with pytest.warns(UserWarning, match="is newer than the versions that nncdbg was tested with") as caught:
        check_torch()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_torch()
    assert torch.equal(torch.get_rng_state(), random)


def remove_variable(monkeypatch):
    monkeypatch.setattr(internals, "_COMPILED_CALL", {"renamed"})


def remove_function(monkeypatch):
    monkeypatch.delattr(torch._dynamo.eval_frame, "_maybe_set_eval_frame")


def replace_meaning(monkeypatch):
    monkeypatch.setattr(internals, "next_sequence_number", lambda: -1)


@pytest.mark.parametrize("change", [remove_variable, remove_function, replace_meaning])
def test_a_newer_version_that_lacks_what_nncdbg_uses_is_refused(change, monkeypatch):
    import torch._dynamo

    monkeypatch.setattr(torch, "__version__", "2.16.0")
    change(monkeypatch)
    with pytest.raises(UsageError, match=r"nncdbg does not work with torch 2\.16\.0") as caught:
        check_torch()
    assert caught.value.hint is not None
    assert "2.10 to 2.15" in caught.value.hint
