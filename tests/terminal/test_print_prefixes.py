"""`nncdbg print` on names that share prefixes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nncdbg.terminal.one_shot.text import main

MODEL = Path(__file__).parents[1] / "models" / "exported" / "attention_script.onnx"


def printed(*arguments: str, capfd: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 0
    return capfd.readouterr().out


def test_prefixes_are_printed_unless_full_names_are_requested(capfd: pytest.CaptureFixture[str]) -> None:
    short = printed(str(MODEL), capfd=capfd)
    full = printed(str(MODEL), "--full-names", capfd=capfd)
    assert 'prefix self_attn "/layer/self_attn/"' in short
    assert "%self_attn::" in short
    assert "prefix " not in full
    assert "%/layer/self_attn/" in full


def test_a_text_without_prefixes_gets_them_and_one_with_prefixes_keeps_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = [f"/model/decoder/layers.0/self_attn/Relu_{i}" for i in range(12)]
    lines = [f"  %{b} = Relu(%{a})" for a, b in zip(["x", *names], names, strict=False)]
    graph = ["graph @main(%x) -> (%" + names[-1] + ") {", *lines, f"  return %{names[-1]}", "}", ""]
    plain, own = tmp_path / "plain.nnc", tmp_path / "own.nnc"
    plain.write_text("\n".join(graph))
    own.write_text("\n".join(['prefix mine "/model/"', "", *graph]))
    assert 'prefix self_attn "/model/decoder/layers.0/self_attn/"' in printed(str(plain), capfd=capfd)
    kept = printed(str(own), capfd=capfd)
    assert 'prefix mine "/model/"' in kept
    assert "%mine::decoder/layers.0/self_attn/Relu_3 =\n      Relu(" in kept
    assert "self_attn::" not in kept
