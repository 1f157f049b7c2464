"""The declared types of the graph that `run` calls are checked against its data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg

TEXT = """graph @train(%x: f32[SIZE,3]) -> (%l: f32[]) {
  %y = Exp(%x)
  %l: f32[] = ReduceMean(%y, keepdims=0)
  return %l
}
run @train for %x batch BATCH epochs 1
"""


def _run(size: str, batch: str, samples: int = 16) -> nncdbg.Outputs:
    text = TEXT.replace("SIZE", size).replace("BATCH", batch)
    return nncdbg.run(nncdbg.parse(text), {"x": np.ones((samples, 3), np.float32)})


@pytest.mark.parametrize(
    ("size", "batch", "steps"),
    [
        ("4", "4", 4),
        ("N", "4", 4),
        ("N", "3", 6),
        ("3", "3 drop_last", 5),
        ("16", "16", 1),
        ("3", "3 steps 2", 2),
    ],
)
def test_batches_that_fit_run(size: str, batch: str, steps: int) -> None:
    assert _run(size, batch)["l"].shape == (steps,)


@pytest.mark.parametrize(
    ("size", "batch", "message"),
    [
        ("4", "2", r"@train declares %x: f32\[4,3\], but the run passes batches of 2 samples"),
        ("4", "8", r"batches of 8 samples"),
        ("3", "3", r"the last batch of %x has 1 sample"),
    ],
)
def test_a_declared_size_that_the_batches_do_not_have_is_refused(size: str, batch: str, message: str) -> None:
    with pytest.raises(nncdbg.GraphError, match=message):
        _run(size, batch)


def test_a_scalar_input_takes_no_batches() -> None:
    text = TEXT.replace("f32[SIZE,3]", "f32[]").replace("BATCH", "2")
    with pytest.raises(nncdbg.GraphError, match="passes batches of 2 samples"):
        nncdbg.run(nncdbg.parse(text), {"x": np.ones(4, np.float32)})


@pytest.mark.parametrize("declared", ["f32[N,4]", "f32[N,3,1]", "f32[N]"])
def test_samples_of_a_store_that_have_another_shape_are_refused(declared: str, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.ones((4, 3), np.float32)}, tmp_path / "data.safetensors")
    text = TEXT.replace("f32[SIZE,3]", declared).replace("for %x batch BATCH", 'for %x in data("x") batch 2')
    (tmp_path / "train.nnc").write_text(f'store "data.safetensors"\n\n{text}')
    with pytest.raises(nncdbg.GraphError, match=r'the samples of data\("x"\) have the shape \[3\]'):
        nncdbg.run(tmp_path / "train.nnc")
