"""The trainings in the examples learn, and the watch finds the planted faults of their twins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg

EXAMPLES = Path(__file__).parents[2] / "examples"


def line_of(name: str, text: str) -> int:
    lines = (EXAMPLES / name).read_text(encoding="utf-8").split("\n")
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("name", ["train_cnn", "train_transformer"])
def test_a_training_learns_without_a_finding(name: str) -> None:
    outputs = nncdbg.run(EXAMPLES / f"{name}.nnc")
    right = np.asarray(outputs["right"])
    assert right[:5].mean() < 24
    assert right[-50:].mean() > 31, "nearly all of 32"
    report = nncdbg.watch(nncdbg.load(EXAMPLES / f"{name}.nnc", steps=40))
    assert report.ok
    assert not [each for each in report.findings if each.trips]


@pytest.mark.parametrize(
    ("name", "statement", "cause"),
    [
        ("train_cnn_nan.nnc", "%x = Div", "zero divided by zero"),
        ("train_mlp_nan.nnc", "%log = Log", "learning rate too high"),
        ("train_transformer_nan.nnc", "%weight = Softmax", "fully masked row"),
    ],
)
def test_the_fault_of_a_twin_is_found_at_its_statement(name: str, statement: str, cause: str) -> None:
    report = nncdbg.watch(EXAMPLES / name)
    first = report.findings[0]
    assert not report.ok
    assert first.site.line == line_of(name, statement)
    assert first.at_step is not None
    assert 0 < first.at_step.step < 50
    assert cause in f"{first.cause}; {first.evidence}"


@pytest.mark.parametrize(
    ("name", "lines"), [("train_mlp", (3, 3)), ("train_cnn", (2, 1)), ("train_transformer", (2, 1))]
)
def test_a_twin_differs_in_the_fault_only(name: str, lines: tuple[int, int]) -> None:
    texts = [(EXAMPLES / f"{each}.nnc").read_text().split("\n") for each in (name, f"{name}_nan")]
    sound, faulty = ([line.strip() for line in text if "##" not in line] for text in texts)
    assert (len(set(sound) - set(faulty)), len(set(faulty) - set(sound))) == lines
