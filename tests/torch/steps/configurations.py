"""Models of the package transformers, built from small configurations with random weights."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from tests.torch.steps.training import Training, step, steps_of


def built(kind: str, head: str, **options: Any) -> nn.Module:
    """Return the model `kind + head` for the configuration `kind + "Config"` with these options."""
    transformers = importlib.import_module("transformers")
    configuration = getattr(transformers, f"{kind}Config")(**options)
    model: nn.Module = getattr(transformers, f"{kind}{head}")(configuration).train()
    return model


def language_model(model: nn.Module, vocabulary: int, batch: int, time: int) -> Training:
    """Return a step that predicts the next token of random text; the model computes the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens = torch.randint(3, vocabulary, (batch, time))

    def run() -> torch.Tensor:
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step(needs="transformers")
def transformers_gpt2() -> Training:
    model = built(
        "GPT2",
        "LMHeadModel",
        vocab_size=32,
        n_positions=8,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return language_model(model, 32, 2, 8)


@step(needs="transformers")
def transformers_llama() -> Training:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = built("Llama", "ForCausalLM", vocab_size=32, num_key_value_heads=2, use_cache=False, **sizes)
    return language_model(model, 32, 2, 8)


@step(heavy=True, needs="transformers")
def transformers_llama_wide() -> Training:
    sizes = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3, "num_attention_heads": 8}
    model = built("Llama", "ForCausalLM", vocab_size=256, num_key_value_heads=4, use_cache=False, **sizes)
    return language_model(model, 256, 4, 64)


@step(needs="transformers")
def transformers_qwen3_with_eager_attention() -> Training:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = built(
        "Qwen3",
        "ForCausalLM",
        vocab_size=32,
        num_key_value_heads=1,
        head_dim=8,
        use_cache=False,
        attn_implementation="eager",
        **sizes,
    )
    return language_model(model, 32, 2, 8)


@step(needs="transformers")
def transformers_bert_masked_lm() -> Training:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = built("Bert", "ForMaskedLM", vocab_size=32, max_position_embeddings=16, **sizes)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens = torch.randint(3, 32, (2, 8))
    padding = (torch.arange(8)[None, :] < torch.tensor([[8], [5]])).long()

    def run() -> torch.Tensor:
        hidden = torch.rand(tokens.shape) < 0.3
        hidden[:, 0] = True
        inputs = tokens.masked_fill(hidden, 1)
        labels = tokens.masked_fill(~hidden, -100)
        loss: torch.Tensor = model(input_ids=inputs, attention_mask=padding, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step(needs="transformers")
def transformers_t5() -> Training:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    model = built("T5", "ForConditionalGeneration", vocab_size=32, decoder_start_token_id=0, **sizes)
    optimizer = torch.optim.Adafactor(model.parameters())
    source, target = torch.randint(3, 32, (2, 6)), torch.randint(3, 32, (2, 5))

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(input_ids=source, labels=target).loss
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


@step(needs="transformers")
def transformers_vit() -> Training:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = built("ViT", "ForImageClassification", image_size=8, patch_size=4, num_labels=3, **sizes)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    pictures, labels = torch.randn(2, 3, 8, 8), torch.tensor([0, 2])

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(pixel_values=pictures, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss

    return Training([model], [optimizer], run)


STEPS = steps_of(globals())
