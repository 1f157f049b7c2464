"""Operators of PyTorch in the editor: importing torch does not delay requests about other documents."""

from __future__ import annotations

import pytest

from tests.textual_repr.language_server.client import Client

pytest.importorskip("torch", reason="needs torch")

ONNX = """#nncdbg 1
graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %y = Relu(%x)
  return %y
}
"""
TORCH = """#nncdbg 1
graph @main(%x: f32[2]) -> (%y: f32[2]) {
  %y: f32[2] = aten.relu.default(%x)
  return %y
}
"""


def open_unread(client: Client, uri: str, text: str) -> None:
    """Open a document without waiting for its diagnostics."""
    document = {"uri": uri, "languageId": "nnc", "version": 1, "text": text}
    client.notify("textDocument/didOpen", {"textDocument": document})


def test_another_document_is_answered_while_torch_is_imported() -> None:
    own = Client()
    try:
        open_unread(own, "file:///torch.nnc", TORCH)
        open_unread(own, "file:///onnx.nnc", ONNX)
        at = {"line": 2, "character": 18}
        slow = own.start("textDocument/hover", {"textDocument": {"uri": "file:///torch.nnc"}, "position": at})
        other = {"textDocument": {"uri": "file:///onnx.nnc"}, "position": {"line": 2, "character": 8}}
        assert "Relu" in own.request("textDocument/hover", other)["contents"]["value"]
        assert not own.answered(slow)
        assert "aten::relu(Tensor self) -> Tensor" in own.finish(slow)["contents"]["value"]
    finally:
        assert own.close() == 0
