"""The activations that RNN, GRU and LSTM name in their attributes, as kernels and as graph text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops import activation as plain
from nncdbg.engine.ops.types import Attributes

_DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "Affine": (1.0, 0.0),
    "Elu": (1.0, None),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, None),
    "Relu": (None, None),
    "ScaledTanh": (1.0, 1.0),
    "Sigmoid": (None, None),
    "Softplus": (None, None),
    "Softsign": (None, None),
    "Tanh": (None, None),
    "ThresholdedRelu": (1.0, None),
}
"""Name to (alpha, beta), None where the activation takes none.  Names are read in any case."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One activation with its numbers, behind a clip to ``[-clip, clip]`` if there is one."""

    name: str
    alpha: float | None = None
    beta: float | None = None
    clip: float | None = None

    def __call__(self, xp: ModuleType, x: Any) -> Any:
        """The activation of an array of f32 or f64."""
        if self.clip:
            x = xp.minimum(xp.maximum(x, -self.clip), self.clip)
        match self.name:
            case "Tanh":
                return xp.tanh(x)
            case "ScaledTanh":
                return self.alpha * xp.tanh(self.beta * x)
            case "Affine":
                return self.alpha * x + self.beta
        numbers = {"alpha": self.alpha, "beta": self.beta}
        return _KERNELS[self.name](xp, x, **{key: n for key, n in numbers.items() if n is not None})

    def lines(self, target: str, source: str) -> list[str]:
        """The same as statements from ``%source`` to ``%target``."""
        lines = []
        if self.clip:
            lines.append(f"%{target}.clipped = Clip(%{source}, {-self.clip}, {self.clip})")
            source = f"{target}.clipped"
        match self.name:
            case "Affine":
                steps = [f"%{target}.scaled = Mul(%{source}, {self.alpha})"]
                return [*lines, *steps, f"%{target} = Add(%{target}.scaled, {self.beta})"]
            case "ScaledTanh":
                steps = [
                    f"%{target}.inner = Mul(%{source}, {self.beta})",
                    f"%{target}.tanh = Tanh(%{target}.inner)",
                ]
                return [*lines, *steps, f"%{target} = Mul(%{target}.tanh, {self.alpha})"]
        numbers = {"alpha": self.alpha, "beta": self.beta}
        given = "".join(f", {key}={n}" for key, n in numbers.items() if n is not None)
        return [*lines, f"%{target} = {self.name}(%{source}{given})"]


_KERNELS: dict[str, Any] = {
    "Elu": plain.elu,
    "HardSigmoid": plain.hard_sigmoid,
    "LeakyRelu": plain.leaky_relu,
    "Relu": plain.relu,
    "Sigmoid": plain.sigmoid,
    "Softplus": plain.softplus,
    "Softsign": plain.softsign,
    "ThresholdedRelu": plain.thresholded_relu,
}


def gates_of(attributes: Attributes, defaults: Sequence[str], directions: int) -> list[list[Gate]]:
    """The activations of each direction; alphas and betas go, in order, to those that take one."""
    names = attributes["activations"] or [*defaults] * directions
    if len(names) != len(defaults) * directions:
        # The default of the schema of RNN names both directions.
        if tuple(names[: len(defaults)]) != tuple(names[len(defaults) :]):
            raise GraphError(
                f"expected {len(defaults) * directions} activations, got {len(names)}",
                attribute="activations",
            )
        names = [*names[: len(defaults)]] * directions
    alphas, betas = iter(attributes["activation_alpha"] or ()), iter(attributes["activation_beta"] or ())
    gates = [_gate(name, alphas, betas, attributes["clip"]) for name in names]
    # The third of an LSTM acts on the cell, which ONNX Runtime does not clip.
    gates = [replace(gate, clip=None) if i % len(defaults) == 2 else gate for i, gate in enumerate(gates)]
    return [gates[i : i + len(defaults)] for i in range(0, len(gates), len(defaults))]


def _gate(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> Gate:
    known = {key.lower(): key for key in _DEFAULTS}
    found = known.get(name.lower())
    if found is None:
        raise GraphError(f"unknown activation {name!r}", hint=f"use one of: {', '.join(_DEFAULTS)}")
    alpha, beta = _DEFAULTS[found]
    return Gate(
        found,
        None if alpha is None else next(alphas, alpha),
        None if beta is None else next(betas, beta),
        clip,
    )
