"""BERT with the same weights gives the logits of the transformers library."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lockstep.laws.subject import randomise
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build

transformers = pytest.importorskip("transformers", reason="the other implementation is not installed")

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
LAYER_NAMES = {
    "mixer.output": "attention.output.dense",
    "mixer_norm": "attention.output.LayerNorm",
    "mlp.input": "intermediate.dense",
    "mlp.output": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
OUTER_NAMES = {
    "embedding_norm": "bert.embeddings.LayerNorm",
    "output_transform.0": "cls.predictions.transform.dense",
    "output_transform.2": "cls.predictions.transform.LayerNorm",
}


def theirs(activation: str) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=41,
        max_position_embeddings=40,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        hidden_act=ACTIVATIONS[activation],
    )
    model: nn.Module = transformers.BertForMaskedLM(config).to(torch.float64).eval()
    if activation != "gelu":
        # Ours follows the paper: the head's own activation is the exact GELU, whatever the layers use.
        model.get_submodule("cls.predictions.transform").transform_act_fn = nn.GELU()
    randomise(model, seed=0)
    return model


def ours(activation: str, source: nn.Module) -> LanguageModel:
    model = build(
        "bert", vocab_size=41, max_length=40, dim=32, depth=3, heads=4, hidden=48, activation=activation
    ).eval()
    model.to(torch.float64).load_state_dict(translated(source.state_dict()))
    return model


def translated(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    embeddings = "bert.embeddings."
    tokens = weights[embeddings + "word_embeddings.weight"]
    # One segment: its vector is part of every position.
    segment = weights[embeddings + "token_type_embeddings.weight"][0]
    copied = {
        "embedding.weight": tokens,
        "head.weight": tokens,
        "head.bias": weights["cls.predictions.bias"],
        "positions.weight": weights[embeddings + "position_embeddings.weight"] + segment,
    }
    for kind in ("weight", "bias"):
        for mine, other in OUTER_NAMES.items():
            copied[f"{mine}.{kind}"] = weights[f"{other}.{kind}"]
        for layer in range(3):
            ours_at, theirs_at = f"blocks.{layer}.", f"bert.encoder.layer.{layer}."
            parts = [weights[f"{theirs_at}attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            copied[f"{ours_at}mixer.qkv.{kind}"] = torch.cat(parts)
            for mine, other in LAYER_NAMES.items():
                copied[f"{ours_at}{mine}.{kind}"] = weights[f"{theirs_at}{other}.{kind}"]
    return copied


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@torch.no_grad()
def test_same_logits(activation: str, dtype: torch.dtype, tolerance: float) -> None:
    source = theirs(activation)
    model = ours(activation, source).to(dtype)
    tokens = torch.randint(41, (3, 40), generator=torch.Generator().manual_seed(1))
    expected = source.to(dtype)(tokens).logits
    assert float((model(tokens) - expected).abs().amax() / expected.abs().amax()) < tolerance


def test_cannot_step() -> None:
    model = build("bert", vocab_size=41, dim=32, depth=1, heads=4)
    with pytest.raises(ValueError, match="bert is bidirectional and cannot go token by token"):
        model.step(torch.zeros(1, 3, dtype=torch.int64))
