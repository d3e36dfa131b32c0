"""GPT-2 with the same weights gives the logits of the transformers library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.laws.subject import randomise
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build

transformers = pytest.importorskip("transformers", reason="the other implementation is not installed")

ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}
PRECISIONS = [(torch.float64, 1e-10), (torch.float32, 1e-5)]


def theirs(activation: str, attention: str) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=41,
        n_positions=40,
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_inner=48,
        activation_function=ACTIVATIONS[activation],
        attn_implementation=attention,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config).to(torch.float64).eval()
    randomise(model, seed=0)
    return model


def ours(activation: str, source: nn.Module) -> LanguageModel:
    model = build(
        "gpt2", vocab_size=41, max_length=40, dim=32, depth=3, heads=4, hidden=48, activation=activation
    ).eval()
    weights = source.state_dict()
    copied = {
        "embedding.weight": weights["transformer.wte.weight"],
        "head.weight": weights["transformer.wte.weight"],
        "positions.weight": weights["transformer.wpe.weight"],
        "norm.weight": weights["transformer.ln_f.weight"],
        "norm.bias": weights["transformer.ln_f.bias"],
    }
    for layer in range(3):
        copied |= layer_weights(weights, layer)
    model.to(torch.float64).load_state_dict(copied)
    return model


def layer_weights(weights: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The library keeps its matrices transposed."""
    names = {
        "mixer_norm": "ln_1",
        "mixer.qkv": "attn.c_attn",
        "mixer.output": "attn.c_proj",
        "mlp_norm": "ln_2",
        "mlp.input": "mlp.c_fc",
        "mlp.output": "mlp.c_proj",
    }
    copied = {}
    for mine, other in names.items():
        copied[f"blocks.{layer}.{mine}.weight"] = weights[f"transformer.h.{layer}.{other}.weight"].t()
        copied[f"blocks.{layer}.{mine}.bias"] = weights[f"transformer.h.{layer}.{other}.bias"]
    return copied


def sequences() -> Tensor:
    return torch.randint(41, (3, 40), generator=torch.Generator().manual_seed(1))


def difference(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().amax() / expected.abs().amax())


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS, ids=str)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "relu"])
def test_same_logits(activation: str, attention: str, dtype: torch.dtype, tolerance: float) -> None:
    source = theirs(activation, attention)
    model = ours(activation, source).to(dtype)
    with torch.no_grad():
        assert difference(model(sequences()), source.to(dtype)(sequences()).logits) < tolerance


@torch.no_grad()
def test_same_cached_decoding() -> None:
    source = theirs("gelu_tanh", "eager")
    model = ours("gelu_tanh", source)
    tokens = sequences()
    past: Any = None
    state: Any = None
    for piece in tokens.split([11, *(1,) * 29], dim=1):
        answer = source(piece, past_key_values=past, use_cache=True)
        past = answer.past_key_values
        logits, state = model.step(piece, state)
        assert difference(logits, answer.logits) < 1e-10


def test_same_size() -> None:
    source = theirs("gelu_tanh", "eager")
    model = ours("gelu_tanh", source)
    assert model.cost(40).parameters == sum(parameter.numel() for parameter in source.parameters())
