"""Transformers written by hand, and attention with each backend of the CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.torch.steps.training import Training, step, steps_of, trained


class Block(nn.Module):
    """A decoder block: causal attention by hand, then two layers; f32[batch, time, width]."""

    def __init__(self, width: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.heads = heads
        self.dropout = nn.Dropout(dropout)

    def attention(self, x: Any) -> Any:
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        causal = torch.ones(time, time, dtype=torch.bool).tril()
        scores = scores.masked_fill(~causal, float("-inf"))
        weights = self.dropout(torch.softmax(scores, dim=-1))
        y = (weights @ v).transpose(1, 2).contiguous().view(batch, time, width)
        return self.proj(y)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        h = F.gelu(self.up(self.norm2(x)))
        return x + self.dropout(self.down(h))


class Decoder(nn.Module):
    """A language model of decoder blocks with learned positions; tied output weights on request."""

    def __init__(
        self, vocabulary: int, width: int, layers: int, heads: int, time: int, tied: bool = False
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, tokens: Any) -> Any:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_model(model: nn.Module, vocabulary: int, batch: int, time: int) -> Training:
    """Return a step that predicts the next token of random text, with clipped gradients."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    text = torch.randint(0, vocabulary, (batch, time + 1))

    def run() -> torch.Tensor:
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def decoder_lm() -> Training:
    return language_model(Decoder(32, 16, 2, 2, 8), vocabulary=32, batch=2, time=8)


@step()
def decoder_lm_tied_weights() -> Training:
    return language_model(Decoder(32, 16, 1, 2, 8, tied=True), vocabulary=32, batch=2, time=8)


@step(heavy=True)
def decoder_lm_30ms() -> Training:
    return language_model(Decoder(256, 128, 2, 4, 64), vocabulary=256, batch=8, time=64)


@step(heavy=True)
def decoder_lm_large() -> Training:
    return language_model(Decoder(512, 256, 4, 8, 128), vocabulary=512, batch=8, time=128)


@step()
def encoder_with_padding_mask() -> Training:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x, target = torch.randn(3, 5, 8), torch.randn(3, 5, 8)
    padding = torch.arange(5)[None, :] >= torch.tensor([5, 3, 4])[:, None]
    encode = model[0]
    return trained(
        model,
        torch.optim.AdamW(model.parameters()),
        lambda: F.mse_loss(encode(x, src_key_padding_mask=padding)[~padding], target[~padding]),
    )


@step()
def encoder_decoder_transformer() -> Training:
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
    source, target = torch.randn(2, 5, 8), torch.randn(2, 4, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(3)
    return trained(
        model,
        torch.optim.Adam(model.parameters()),
        lambda: F.l1_loss(model(source, target[:, :-1], tgt_mask=causal), target[:, 1:]),
    )


class VisionTransformer(nn.Module):
    """Patches by a convolution, a class token, encoder layers and a head."""

    def __init__(self, width: int, layers: int, patches: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, patches + 1, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(layers))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


@step()
def vision_transformer() -> Training:
    model = VisionTransformer(8, 2, 4)
    x, target = torch.randn(3, 3, 8, 8), torch.tensor([0, 4, 2])
    return trained(model, torch.optim.AdamW(model.parameters()), lambda: F.cross_entropy(model(x), target))


def attention(backend: SDPBackend, masked: bool) -> Training:
    """Return a step through `scaled_dot_product_attention` with one backend, causal or with a mask."""
    project, out = nn.Linear(8, 24), nn.Linear(8, 8)
    model = nn.ModuleDict({"project": project, "out": out})
    optimizer = torch.optim.AdamW(model.parameters())
    x, target = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    allowed = torch.ones(6, 6, dtype=torch.bool).tril() | (torch.rand(2, 1, 6, 6) > 0.5)

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        q, k, v = (part.view(2, 6, 2, 4).transpose(1, 2) for part in project(x).chunk(3, dim=-1))
        with sdpa_kernel(backend):
            if masked:
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
            else:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        loss = F.mse_loss(out(y.transpose(1, 2).reshape(2, 6, 8)), target)
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step()
def attention_math_masked() -> Training:
    return attention(SDPBackend.MATH, masked=True)


@step()
def attention_flash_causal() -> Training:
    return attention(SDPBackend.FLASH_ATTENTION, masked=False)


@step()
def attention_flash_masked() -> Training:
    return attention(SDPBackend.FLASH_ATTENTION, masked=True)


@step()
def multihead_attention_module() -> Training:
    model = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True, add_bias_kv=True)
    x, y = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    return trained(model, torch.optim.SGD(model.parameters(), 0.1), lambda: model(y, x, x)[0].square().mean())


STEPS = steps_of(globals())
