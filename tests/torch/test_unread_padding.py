"""NaN in the padding of a batch is no finding of a recorded step that does not read it."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402

MASK = torch.arange(6).expand(4, 6) < 4

UNREAD = {
    "slice": lambda x: x[:, :4],
    "split": lambda x: x.split([4, 2], 1)[0],
    "unbind": lambda x: torch.stack(x.unbind(1)[:4], 1),
    "copy": lambda x: x.clone()[:, :4],
    "cast": lambda x: x.double()[:, :4].float(),
    "transpose": lambda x: x.t().reshape(6, 4)[:4].t(),
    "index": lambda x: x[MASK].reshape(4, 4),
    "where": lambda x: torch.where(MASK, x, torch.zeros(()))[:, :4],
    "overwritten": lambda x: x.clone().masked_fill_(~MASK, 0.0)[:, :4],
}
READ = {
    "mean": lambda x: x.nanmean(1, keepdim=True).expand(4, 4),
    "product": lambda x: (x * MASK)[:, :4] + 0 * x.sum(),
}


def watched(select):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    x = torch.randn(4, 6)
    x[:, 4:] = torch.nan
    with nncdbg.torch.record(model, torch.optim.SGD(model.parameters(), 0.1)) as step:
        model(select(x)).square().mean().backward()
    return nncdbg.watch(step, strict=True)


@pytest.mark.parametrize("name", UNREAD)
def test_padding_that_is_not_read_is_no_finding(name):
    report = watched(UNREAD[name])
    assert (report.ok, report.findings) == (True, [])


@pytest.mark.parametrize("name", READ)
def test_padding_that_is_read_is_a_finding(name):
    assert watched(READ[name]).findings[0].cause == "bad input"
