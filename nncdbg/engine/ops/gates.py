"""Activations that other ops name in their attributes, as kernels and as graph text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.declaration import declared
from nncdbg.engine.ops.types import Attributes

_LINES: dict[str, tuple[str, ...]] = {
    "Affine": ("{y}.scaled = Mul({x}, {alpha})", "{y} = Add({y}.scaled, {beta})"),
    "Elu": ("{y} = Elu({x}, alpha={alpha})",),
    "HardSigmoid": ("{y} = HardSigmoid({x}, alpha={alpha}, beta={beta})",),
    "LeakyRelu": ("{y} = LeakyRelu({x}, alpha={alpha})",),
    "Relu": ("{y} = Relu({x})",),
    "ScaledTanh": (
        "{y}.inner = Mul({x}, {beta})",
        "{y}.tanh = Tanh({y}.inner)",
        "{y} = Mul({y}.tanh, {alpha})",
    ),
    "Sigmoid": ("{y} = Sigmoid({x})",),
    "Softplus": ("{y} = Softplus({x})",),
    "Softsign": ("{y} = Softsign({x})",),
    "Tanh": ("{y} = Tanh({x})",),
    "ThresholdedRelu": ("{y} = ThresholdedRelu({x}, alpha={alpha})",),
}
"""The activations of recurrent layers as graph text.  Names are case-insensitive."""

_FUSED_LINES = {
    **_LINES,
    "HardSwish": ("{y} = HardSwish({x})",),
    "Clip": ("{y} = Clip({x}, {alpha}, {beta})",),
    "ParametricSoftplus": (
        "{y}.inner = Mul({x}, {beta})",
        "{y}.soft = Softplus({y}.inner)",
        "{y} = Mul({y}.soft, {alpha})",
    ),
}
"""The activations that onnxruntime fuses after another op."""

_DEFAULTS = {
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, 0.0),
    "ScaledTanh": (1.0, 1.0),
    "ParametricSoftplus": (1.0, 1.0),
    "Clip": (0.0, 0.0),
}
"""Name to the defaults of alpha and beta; (1.0, 0.0) for others."""


def activation_lines(name: str | None, x: str, y: str, parameters: Sequence[float | None] = ()) -> list[str]:
    """Return lines that compute `y` from `x` by a fused activation of onnxruntime; Identity without one.

    `parameters` are alpha and beta.  Raises GraphError for an unknown activation.
    """
    if not name:
        return [f"{y} = Identity({x})"]
    if name not in _FUSED_LINES:
        raise GraphError(f"unknown fused activation {name!r}", hint=f"use one of: {', '.join(_FUSED_LINES)}")
    given = [*parameters, None, None][:2]
    defaults = _DEFAULTS.get(name, (1.0, 0.0))
    alpha, beta = (
        default if stated is None else stated for stated, default in zip(given, defaults, strict=True)
    )
    return [line.format(x=x, y=y, alpha=alpha, beta=beta) for line in _FUSED_LINES[name]]


@dataclass(frozen=True, slots=True)
class Gate:
    """One activation with its parameters, after an optional clip to ``[-clip, clip]``."""

    name: str
    alpha: float | None = None
    beta: float | None = None
    clip: float | None = None

    def __call__(self, xp: ModuleType, x: Any) -> Any:
        """Apply the activation to an array of f32 or f64."""
        if self.clip:
            x = xp.minimum(xp.maximum(x, -self.clip), self.clip)
        match self.name:
            case "ScaledTanh":
                return self.alpha * xp.tanh(self.beta * x)
            case "Affine":
                return self.alpha * x + self.beta
        numbers = {"alpha": self.alpha, "beta": self.beta}
        given = {key: n for key, n in numbers.items() if n is not None}
        return declared(self.name)[-1].bind(xp, given)(x)

    def lines(self, target: str, source: str) -> list[str]:
        """Return the same activation as statements from ``%source`` to ``%target``."""
        lines = []
        if self.clip:
            lines.append(f"%{target}.clipped = Clip(%{source}, {-self.clip}, {self.clip})")
            source = f"{target}.clipped"
        return [*lines, *activation_lines(self.name, f"%{source}", f"%{target}", (self.alpha, self.beta))]


def gates_of(attributes: Attributes, defaults: Sequence[str], directions: int) -> list[list[Gate]]:
    """Return the activations of each direction; alphas and betas go, in order, to those that take one."""
    names = attributes["activations"] or [*defaults] * directions
    if len(names) != len(defaults) * directions:
        # The default of RNN's schema names both directions.
        if tuple(names[: len(defaults)]) != tuple(names[len(defaults) :]):
            raise GraphError(
                f"expected {len(defaults) * directions} activations, got {len(names)}",
                attribute="activations",
            )
        names = [*names[: len(defaults)]] * directions
    alphas, betas = iter(attributes["activation_alpha"] or ()), iter(attributes["activation_beta"] or ())
    gates = [_gate(name, alphas, betas, attributes["clip"]) for name in names]
    # The third activation of an LSTM acts on the cell, which ONNX Runtime does not clip.
    gates = [replace(gate, clip=None) if i % len(defaults) == 2 else gate for i, gate in enumerate(gates)]
    return [gates[i : i + len(defaults)] for i in range(0, len(gates), len(defaults))]


def _gate(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> Gate:
    known = {key.lower(): key for key in _LINES}
    found = known.get(name.lower())
    if found is None:
        raise GraphError(f"unknown activation {name!r}", hint=f"use one of: {', '.join(_LINES)}")
    text, (alpha, beta) = "".join(_LINES[found]), _DEFAULTS.get(found, (1.0, 0.0))
    return Gate(
        found,
        next(alphas, alpha) if "{alpha}" in text else None,
        next(betas, beta) if "{beta}" in text else None,
        clip,
    )
