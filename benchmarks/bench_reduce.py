"""Seconds of `nncdbg reduce` for defects planted in densenet121, and the number of remaining statements.

The model is the light model of the onnx wheel (1746 nodes).  The command reduces each defect in a separate
process, up to the bundle that a second process has verified:

* a variance of an inner BatchNormalization is negative;
* an inner Div divides zero by zero;
* an Add reads an uninitialized buffer; no input value can replace it, so the finding needs two statements.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

SECONDS, STATEMENTS = 60.0, 5
DEEP = 70
"""The index of the changed node among those with the same op."""

Change = Callable[[Any], Any]


def models() -> Path:
    """Return the folder of the light models in the onnx wheel."""
    import onnx.backend.test

    return Path(onnx.backend.test.__file__).parent / "data" / "light"


def planted(change: Change) -> Any:
    """Return the program with a change of its entry graph."""
    import nncdbg

    program = nncdbg.load(models() / "light_densenet121.onnx", flat=True)
    entry = program.graphs[program.entry]
    return replace(program, graphs={program.entry: replace(entry, nodes=tuple(change(entry.nodes)))})


def after_deep(op: str, added: Callable[[str, str], Sequence[Any]]) -> Change:
    """Return a change that inserts `added(new name, old name)` behind the result of the DEEP-th `op`."""

    def change(nodes: Sequence[Any]) -> list[Any]:
        from nncdbg.ir.records import Value

        at = [index for index, node in enumerate(nodes) if node.op == op][DEEP]
        name = nodes[at].outputs[0].name
        moved = replace(nodes[at], outputs=(Value(f"{name}.before"),))
        return [*nodes[:at], moved, *added(f"{name}.before", name), *nodes[at + 1 :]]

    return change


def negative_variance(nodes: Sequence[Any]) -> list[Any]:
    """Change one ConstantOfShape that computes variances of the light model, to -1."""
    from nncdbg.ir.records import Inline

    variances = [node.inputs[4] for node in nodes if node.op == "BatchNormalization"]
    makers = {node.outputs[0].name: node for node in nodes if node.op == "ConstantOfShape"}
    wrong = [makers[name] for name in variances if name in makers][DEEP]
    value = {"value": Inline(np.array([-1], np.float32))}
    return [replace(node, attributes=value) if node is wrong else node for node in nodes]


def zero_by_zero(before: str, after: str) -> list[Any]:
    from nncdbg.ir.records import Node, Value

    return [
        Node("Sub", (before, before), (Value("zero"),)),
        Node("Div", ("zero", "zero"), (Value(after),)),
    ]


def uninitialized(before: str, after: str) -> list[Any]:
    from nncdbg.ir.records import Attribute, Node, Value

    empty: dict[str, Attribute] = {"dtype": "f32", "init": "none", "shape": (1,)}
    return [
        Node("nncdbg.Empty", (), (Value("buffer"),), empty),
        Node("Add", (before, "buffer"), (Value(after),)),
    ]


DEFECTS: dict[str, Change] = {
    "negative variance": negative_variance,
    "zero divided by zero": after_deep("Relu", zero_by_zero),
    "uninitialized memory": after_deep("Relu", uninitialized),
}


def reduced(name: str) -> tuple[float, dict[str, Any]]:
    """Return the seconds of the whole process, and the document that it prints."""
    from nncdbg.opening.program_text import stores_from, write_text

    with TemporaryDirectory() as folder:
        path = Path(folder) / "planted.nnc"
        write_text(path, str(stores_from(planted(DEFECTS[name]), path.parent)))
        command = [sys.executable, "-m", "nncdbg", "reduce", str(path), "--json"]
        command += ["--allow-store", str(models())]
        before = perf_counter()
        done = subprocess.run(
            [*command, "-o", os.path.join(folder, "out")], stdout=subprocess.PIPE, check=True, text=True
        )
        return perf_counter() - before, json.loads(done.stdout)


def measure(chosen: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the seconds and the remaining statements per defect."""
    figures = []
    for name in chosen or DEFECTS:
        seconds, document = reduced(name)
        for what, value, bar in (
            ("seconds", seconds, SECONDS),
            ("statements left", document["statements"], STATEMENTS),
        ):
            title = f"reduce densenet121, {name}: {what}"
            figures.append(
                {"figure": title, "ours": value, "peer": None, "ratio": round(float(value), 3), "bar": bar}
            )
    return figures


if __name__ == "__main__":
    for figure in measure(sys.argv[1:]):
        print(json.dumps(figure))
