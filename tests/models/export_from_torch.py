"""Write `exported/*.onnx`: small PyTorch models from the TorchScript and the torch.export exporter.

python -m tests.models.export_from_torch        # torch 2.13 and onnxscript
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

FOLDER = Path(__file__).with_name("exported")


class Attention(nn.Module):
    """One encoder layer of torch.nn, f32[1,5,8]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Convolutional(nn.Module):
    """Conv, BatchNorm, SiLU and adaptive pooling, f32[1,3,8,8]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return torch.log_softmax(self.head(self.body(x).mean((2, 3))), -1)


class Recurrent(nn.Module):
    """A GRU and a gated output, f32[4,1,6]."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 5)
        self.gate = nn.Linear(5, 5)

    def forward(self, x: Any) -> Any:
        h, _ = self.gru(x)
        return h * torch.sigmoid(self.gate(h)) + torch.where(h > 0, h, 0.1 * h)


class Normalized(nn.Module):
    """GroupNorm, interpolation, einsum and cumulative sums, f32[1,4,6,6]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)
        self.mix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Any) -> Any:
        h = nn.functional.interpolate(self.norm(x), scale_factor=2.0, mode="bilinear", align_corners=False)
        h = torch.einsum("bchw,cd->bdhw", h, self.mix)
        return nn.functional.gelu(h).cumsum(-1)


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "attention": (Attention, (1, 5, 8)),
    "convolutional": (Convolutional, (1, 3, 8, 8)),
    "recurrent": (Recurrent, (4, 1, 6)),
    "normalized": (Normalized, (1, 4, 6, 6)),
}


def main() -> None:
    """Write every model with both exporters."""
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    for name, (make, shape) in MODELS.items():
        torch.manual_seed(0)
        model = make().eval()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 1.5)
        x = torch.randn(shape)
        for kind, dynamo in (("script", False), ("dynamo", True)):
            path = FOLDER / f"{name}_{kind}.onnx"
            fields = {"external_data": False} if dynamo else {}
            torch.onnx.export(
                model,
                (x,),
                path,
                dynamo=dynamo,
                input_names=["x"],
                output_names=["y"],
                opset_version=18,
                **fields,
            )
            made = onnx.load(path)
            for node in made.graph.node:
                # These properties contain file paths of the exporting machine.
                del node.metadata_props[:]
            onnx.save(made, path)


if __name__ == "__main__":
    main()
