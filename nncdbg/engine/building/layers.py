"""Layers for programs built in Python: each declares its parameters as states, with initializers.

Names and layouts of the parameters are those of PyTorch, so that its weights can be loaded by name:
``linear("fc", ...)`` declares ``%fc.weight: f32[outputs,inputs]`` and ``%fc.bias``.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from nncdbg.dtypes import NUMPY, ONNX
from nncdbg.engine.building.builder import Builder
from nncdbg.engine.building.values import GraphValue
from nncdbg.errors import GraphError
from nncdbg.ir.records import TensorType
from nncdbg.text.lexemes import name_text

Initializer: TypeAlias = (
    "Literal['he_uniform', 'he_normal', 'xavier_uniform', 'normal', 'zeros', 'ones'] | tuple[float, float]"
)
"""How a weight begins: He et al. (2015), Glorot and Bengio (2010), a normal distribution with deviation
0.02, a constant, or the limits of a uniform distribution, such as ``(-1, 1)``."""


class Layers:
    """Appends layers to the open graph of a builder.

        b = nncdbg.Builder()
        layers = nncdbg.Layers(b, seed=1)
        with b.graph("net"):
            x = b.input("x", "f32[N,8]")
            h = b.Relu(layers.linear("hidden", x, 16))
            b.returns(layers.linear("out", h, 2))
        layers.parameters        # the states %hidden.weight, %hidden.bias, %out.weight, %out.bias

    A layer that is called again with the same name uses the same parameters.  The attribute `seed` of a first
    value depends on `seed` and the name of the parameter only, so other layers do not change its numbers.
    """

    def __init__(self, builder: Builder, *, seed: int = 0, dtype: str = "f32") -> None:
        self.builder = builder
        self.parameters: list[GraphValue] = []
        """The states that a training changes, in the order of their declaration."""
        self.statistics: list[GraphValue] = []
        """The running means and variances of `batch_norm`."""
        self._seed = seed
        self._dtype = dtype
        self._known: dict[str, GraphValue] = {}
        self._scope: list[str] = []

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Begin the names of the layers in the `with` block with ``name.``."""
        self._scope.append(name)
        yield
        self._scope.pop()

    # -- layers --------------------------------------------------------------------------------

    def linear(
        self, name: str, x: GraphValue, outputs: int, *, bias: bool = True, init: Initializer = "he_uniform"
    ) -> GraphValue:
        """``x @ weight.T + bias`` for `x` of shape ``[..., inputs]``; the result is ``[..., outputs]``."""
        b, inputs = self.builder, self._size(name, x, -1)
        weight = self.weight(f"{name}.weight", (outputs, inputs), inputs, outputs, init)
        y = x @ b.Transpose(weight, perm=[1, 0])
        return y + self.weight(f"{name}.bias", (outputs,), inputs, outputs, "zeros") if bias else y

    def conv(
        self,
        name: str,
        x: GraphValue,
        outputs: int,
        kernel: Sequence[int],
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = True,
        init: Initializer = "he_uniform",
    ) -> GraphValue:
        """Convolution of `x`, ``[N, channels, ...]``, by ``[outputs, channels / groups, *kernel]``."""
        b, channels = self.builder, self._size(name, x, 1)
        taps = math.prod(kernel)
        incoming, outgoing = channels // groups * taps, outputs // groups * taps
        shape = (outputs, channels // groups, *kernel)
        operands = [x, self.weight(f"{name}.weight", shape, incoming, outgoing, init)]
        if bias:
            operands.append(self.weight(f"{name}.bias", (outputs,), incoming, outgoing, "zeros"))
        return b.Conv(
            *operands, strides=[stride] * len(kernel), pads=[padding] * 2 * len(kernel), group=groups
        )

    def batch_norm(
        self, name: str, x: GraphValue, *, training: bool, momentum: float = 0.1, epsilon: float = 1e-5
    ) -> GraphValue:
        """Batch normalization of `x`, ``[N, channels, ...]``, by axis 1 (Ioffe and Szegedy, 2015).

        With `training` it uses the statistics of the batch, and updates ``%name.running_mean`` and
        ``%name.running_var`` with the share `momentum` of the new ones; without, it uses the running ones.
        """
        b, channels = self.builder, self._size(name, x, 1)
        scale = self.weight(f"{name}.weight", (channels,), channels, channels, "ones")
        shift = self.weight(f"{name}.bias", (channels,), channels, channels, "zeros")
        mean = self._constant(f"{name}.running_mean", (channels,), 0.0, self.statistics)
        variance = self._constant(f"{name}.running_var", (channels,), 1.0, self.statistics)
        operands = (x, scale, shift, mean, variance)
        if not training:
            return b.BatchNormalization(*operands, epsilon=epsilon)
        # ONNX's momentum is the share of the old statistics.
        y, new_mean, new_variance = b.several(
            "BatchNormalization",
            *operands,
            names=[self._full(f"{name}.{part}") for part in ("y", "mean", "var")],
            epsilon=epsilon,
            momentum=1 - momentum,
            training_mode=1,
        )
        b.update({mean: new_mean, variance: new_variance})
        return y

    def layer_norm(self, name: str, x: GraphValue, *, epsilon: float = 1e-5) -> GraphValue:
        """Layer normalization of `x` over its last axis (Ba et al., 2016)."""
        size = self._size(name, x, -1)
        scale = self.weight(f"{name}.weight", (size,), size, size, "ones")
        shift = self.weight(f"{name}.bias", (size,), size, size, "zeros")
        return self.builder.LayerNormalization(x, scale, shift, axis=-1, epsilon=epsilon)

    def embedding(
        self, name: str, tokens: GraphValue, count: int, size: int, *, init: Initializer = "normal"
    ) -> GraphValue:
        """The rows of a weight ``[count, size]`` at the integers `tokens`, ``[...]``: ``[..., size]``."""
        weight = self.weight(f"{name}.weight", (count, size), count, size, init)
        return self.builder.Gather(weight, tokens, axis=0)

    # -- states --------------------------------------------------------------------------------

    def weight(
        self, name: str, shape: Sequence[int], incoming: int, outgoing: int, init: Initializer
    ) -> GraphValue:
        """Return the parameter of a name, declared at its first use.

        `incoming` is the number of values that an element of the layer's result depends on, and `outgoing`
        the number of results that depend on an element of its input: the initializer's "fan" in and out.
        Raises GraphError if the parameter exists with another shape.
        """
        if init in ("zeros", "ones"):
            return self._constant(name, shape, float(init == "ones"), self.parameters)
        op, attributes = _distribution(init, incoming, outgoing)
        # The seed depends on the name alone, so that other layers do not change it.
        seed = float(self._seed + zlib.crc32(self._full(name).encode()) % 2**20)
        attributes |= {"seed": seed, "shape": list(shape), "dtype": ONNX[self._dtype]}
        return self._declared(name, shape, self.parameters, op, (), attributes)

    def _constant(self, name: str, shape: Sequence[int], value: float, group: list[GraphValue]) -> GraphValue:
        data = np.array([value], NUMPY[self._dtype])
        return self._declared(name, shape, group, "ConstantOfShape", (list(shape),), {"value": data})

    def _declared(
        self,
        name: str,
        shape: Sequence[int],
        group: list[GraphValue],
        op: str,
        operands: Sequence[Any],
        attributes: Mapping[str, Any],
    ) -> GraphValue:
        full, type_ = self._full(name), TensorType(self._dtype, tuple(shape))
        known = self._known.get(full)
        if known is None:
            known = self._known[full] = self.builder.state(full, type_, op, *operands, **attributes)
            group.append(known)
        elif known.type != type_:
            raise GraphError(
                f"%{name_text(full)} is {known.type}, but this layer needs {type_}",
                hint="give the layer another name",
            )
        return known

    def _full(self, name: str) -> str:
        return ".".join((*self._scope, name))

    def _size(self, name: str, x: GraphValue, axis: int) -> int:
        """Return the known size of an axis of a layer's input."""
        shape = x.type.shape if isinstance(x.type, TensorType) else None
        at = axis if axis < 0 else axis - len(shape or ())
        size = shape[at] if shape is not None and len(shape) >= -at and at < 0 else None
        if not isinstance(size, int):
            raise GraphError(
                f'the layer "{self._full(name)}" needs the size of axis {axis} '
                f"of %{name_text(x.name)}: {x.type}",
                hint='give it in the type of the input, such as "f32[N,3,32,32]"',
            )
        return size


def _distribution(init: Initializer, incoming: int, outgoing: int) -> tuple[str, dict[str, Any]]:
    """Return the random op of an initializer, with its attributes."""
    if isinstance(init, tuple):
        return "RandomUniform", {"low": float(init[0]), "high": float(init[1])}
    bound = math.sqrt(6 / (incoming if init == "he_uniform" else incoming + outgoing))
    choices: dict[str, tuple[str, dict[str, Any]]] = {
        "he_uniform": ("RandomUniform", {"low": -bound, "high": bound}),
        "xavier_uniform": ("RandomUniform", {"low": -bound, "high": bound}),
        "he_normal": ("RandomNormal", {"scale": math.sqrt(2 / incoming)}),
        "normal": ("RandomNormal", {"scale": 0.02}),
    }
    return choices[init]
