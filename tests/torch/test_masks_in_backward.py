"""`where trap` is the cause only for a mask of the user, and the first Inf of a backward pass comes first."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import nncdbg  # noqa: E402
import nncdbg.torch  # noqa: E402

F = torch.nn.functional
ZERO, TRAP = "square root at zero in backward", "where trap in backward"


def penalty(function, of_gradient):
    """Return the gradient penalty of a function, as in WGAN-GP."""

    def loss(z):
        x = z.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(function(x @ W).sum(), x, create_graph=True)
        return ((of_gradient(gradient) - 1) ** 2).mean()

    return loss


MODEL = torch.nn.Linear(4, 4, bias=False)
W = MODEL.weight

OWN_MASKS = {
    "power of a norm": (lambda z: z.norm(dim=1) ** 0.5, "power at zero in backward"),
    "root of a norm": (lambda z: z.norm(dim=1).sqrt(), ZERO),
    "root of a vector norm": (lambda z: torch.linalg.vector_norm(z, dim=1).sqrt(), ZERO),
    "root of a distance": (lambda z: F.pairwise_distance(z, z, eps=0).sqrt(), ZERO),
    "arccosine of a norm": (lambda z: torch.acos(1 - z.norm(dim=1)), "outside of the domain"),
    "root of a magnitude": (lambda z: z.abs().sqrt(), ZERO),
    "root of a clamped value": (lambda z: z.clamp_min(-1).sqrt(), ZERO),
    "root of a maximum": (lambda z: torch.maximum(z, torch.zeros(())).sqrt(), ZERO),
    "root of a pooled value": (lambda z: F.max_pool1d(z[:, None], 2).sqrt(), ZERO),
    "maximum of a root": (lambda z: torch.maximum(z.sqrt(), torch.ones(())), ZERO),
    "clamped root": (lambda z: z.sqrt().clamp_min(1e-3), ZERO),
    "gradient penalty": (penalty(lambda y: y, lambda g: g.norm(dim=1).sqrt()), ZERO),
    "gradient penalty of a norm": (penalty(lambda y: y.norm(dim=1), lambda g: g.norm(dim=1).sqrt()), ZERO),
}

USERS_MASKS = {
    "where": lambda z: torch.where(z > 0, z.sqrt(), 0.0),
    "masked_fill": lambda z: z.sqrt().masked_fill(z <= 0, 0.0),
    "index": lambda z: torch.cat([z.sqrt()[z > 0], z.new_ones(1)]),
    "masked_select": lambda z: torch.cat([z.sqrt().masked_select(z > 0), z.new_ones(1)]),
}


def first_finding(loss, values=None):
    """Return the first finding of a step with the weights `values`, by default 0."""
    W.grad = None
    W.data = torch.zeros(4, 4) if values is None else values
    x = torch.ones(3, 4)
    with nncdbg.torch.record(MODEL, torch.optim.SGD([W], 0.1)) as step:
        loss(x).mean().backward()
    assert not W.grad.isfinite().all()
    findings = nncdbg.watch(step, strict=True).findings
    return next(each for each in findings if each.first), findings


@pytest.mark.parametrize("name", OWN_MASKS)
def test_a_mask_in_a_formula_of_autograd_is_no_trap(name):
    function, cause = OWN_MASKS[name]
    first, findings = first_finding(function if "penalty" in name else lambda x: function(x @ W))
    assert first.cause == cause
    assert TRAP not in {each.cause for each in findings}


@pytest.mark.parametrize("name", USERS_MASKS)
def test_a_mask_of_the_user_is_a_trap(name):
    first, _ = first_finding(lambda x: USERS_MASKS[name](x @ W))
    assert first.cause == TRAP


def test_a_nan_that_a_mask_drops_in_forward_is_named_with_the_mask():
    first, _ = first_finding(lambda x: torch.where(x @ W > 0, (x @ W).sqrt(), 0.0), torch.full((4, 4), -1.0))
    assert first.cause == "square root of a negative number"
    assert "aten.where." in first.evidence
    assert first.evidence.endswith("drops the NaN in forward, and a gradient is NaN")


def test_a_nan_in_the_loss_was_not_dropped():
    def loss(x):
        y = (x @ W).sqrt()
        return torch.where(x @ W > 0, y, 0.0).sum() + y.sum()

    assert "drops" not in first_finding(loss, torch.full((4, 4), -1.0))[0].evidence


def test_a_double_backward_pass_has_the_node_whose_formula_it_derives():
    _, findings = first_finding(OWN_MASKS["gradient penalty of a norm"][0])
    assert "LinalgVectorNormBackward0 DivBackward0" in {each.site.node for each in findings}
