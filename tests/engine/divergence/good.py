"""Pairs of equivalent runs: models of exporters, optimizers and quantizers.

Each pair is a model against onnxruntime or against another form of the model.  None may be reported.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import nncdbg
from tests.conformance.cases import cases
from tests.models.forms import inputs_of, optimized, quantized, quantized_dynamically, renamed, reordered
from tests.models.making import ARCHITECTURES


@dataclass(frozen=True, slots=True)
class Good:
    """Two runs: of `a` and `b`, or of `a` on NumPy and on `backend`."""

    name: str
    a: Callable[[], Any]
    b: Callable[[], Any] | None = None
    backend: str | None = None
    inputs: Callable[[Any], dict[str, Any] | None] = inputs_of

    def report(self) -> Any:
        """The report of `nncdbg.diff`."""
        one = self.a()
        b = None if self.b is None else nncdbg.load(self.b())
        # Ops without a kernel in a backend run on NumPy, on both sides.
        fields: dict[str, Any] = {} if self.backend is None else {"backend_b": self.backend, "fallback": True}
        return nncdbg.diff(nncdbg.load(one), b, self.inputs(one), **fields)


@cache
def _made(name: str, *forms: Callable[[Any], Any]) -> Any:
    model = ARCHITECTURES[name]()
    for form in forms:
        model = form(model)
    return model


def good() -> Iterator[Good]:
    """All pairs with models that exist on this machine."""
    yield from architectures()
    yield from wheel("light")
    yield from wheel("pytorch-converted", step=4)
    yield from wheel("simple", step=3)
    yield from exported()
    yield from shared()


def architectures() -> Iterator[Good]:
    """nncdbg's own models, their optimized and quantized forms, against onnxruntime and each other."""
    int8 = partial(quantized, per_channel=True)
    for name in ARCHITECTURES:
        forms: dict[str, tuple[Callable[[Any], Any], ...]] = {
            "": (),
            ", QDQ": (quantized,),
            ", QDQ per channel": (int8,),
            ", dynamic": (quantized_dynamically,),
        }
        if name == "recurrent":
            # The quantizer writes com.microsoft.DynamicQuantizeLSTM.
            del forms[", dynamic"]
        for title, form in forms.items():
            made = partial(_made, name, *form)
            yield Good(f"{name}{title} on onnxruntime", made, backend="onnxruntime")
            yield Good(f"{name}{title}, optimized", made, partial(_made, name, *form, optimized))
        fused = partial(optimized, level="extended")
        yield Good(f"{name}, fused", partial(_made, name), partial(_made, name, fused))
        yield Good(f"{name}, fused on onnxruntime", partial(_made, name, fused), backend="onnxruntime")
        # onnxruntime's Resize truncates 8-bit integers, but ONNX rounds them: a real difference.
        if name not in ("recurrent", "decoder"):
            made = partial(_made, name, partial(quantized, form="QOperator"))
            yield Good(f"{name}, QOperator on onnxruntime", made, backend="onnxruntime")
        yield Good(
            f"{name}, renamed and reordered", partial(_made, name), partial(_made, name, reordered, renamed)
        )
        both = (quantized, optimized, reordered, renamed)
        yield Good(f"{name}, QDQ, all forms", partial(_made, name, quantized), partial(_made, name, *both))


def wheel(kind: str, step: int = 1) -> Iterator[Good]:
    """Models of the `onnx` wheel, with their own data, against onnxruntime."""
    for case in cases(kind)[::step]:
        yield Good(
            f"{case.name} on onnxruntime", partial(_model, case), None, "onnxruntime", partial(_data, case)
        )


def _model(case: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case.model


def _data(case: Any, model: Any) -> dict[str, Any] | None:
    weights = {weight.name for weight in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in weights]
    return dict(zip(names, case.sets[0][0], strict=False)) if case.sets else None


EXPORTED = Path(__file__).parents[2] / "models" / "exported"


def _optimized(path: Path) -> Any:
    return optimized(onnx.load(path))


def exported() -> Iterator[Good]:
    """Models of PyTorch's exporters, against onnxruntime, their optimized form and each other."""
    for path in sorted(EXPORTED.glob("*.onnx")):
        load = partial(onnx.load, path)
        yield Good(f"{path.stem} on onnxruntime", load, backend="onnxruntime")
        yield Good(f"{path.stem}, optimized", load, partial(_optimized, path))
        other = path.with_name(path.name.replace("_dynamo.", "_script."))
        if other != path and other.exists():
            yield Good(f"{path.stem} and {other.stem}", load, partial(onnx.load, other))


def shared() -> Iterator[Good]:
    """Larger models, if they exist on this machine."""
    repository = Path(__file__).parents[3]
    folder = Path(os.environ.get("NNCDBG_SHARED", repository.parent / "shared")) / "models"
    paths = [folder / name for name in ("silero_vad.onnx", "silero_vad_16k_op15.onnx")]
    if not all(path.exists() for path in paths):
        return
    inputs = {
        "input": np.random.default_rng(3).standard_normal((1, 576)).astype(np.float32) * 0.1,
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000),
    }
    for path in paths:
        yield Good(
            f"{path.stem} on onnxruntime", partial(onnx.load, path), None, "onnxruntime", lambda _: inputs
        )
    yield Good(
        "both silero models",
        partial(onnx.load, paths[0]),
        partial(onnx.load, paths[1]),
        None,
        lambda _: inputs,
    )
