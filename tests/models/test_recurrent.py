"""Recurrent networks: the published form is plain torch, the default form remembers from the start."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.models.registry import build

LAYERS: dict[str, type[nn.LSTM | nn.GRU | nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
SIZE: dict[str, Any] = {"vocab_size": 23, "dim": 16, "depth": 3, "heads": 1}


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_published_form_is_plain_torch(name: str) -> None:
    model = build(name, **SIZE, published=True, tie_embeddings=False).double()
    embedding, head = nn.Embedding(23, 16), nn.Linear(16, 23, bias=False)
    stacked = LAYERS[name](16, 16, num_layers=3, batch_first=True)
    plain = nn.ModuleList([embedding, stacked, head]).double()
    embedding.load_state_dict(model.embedding.state_dict())
    head.load_state_dict(model.head.state_dict())
    stacked.load_state_dict(stacked_weights(model.state_dict()))
    tokens = torch.randint(23, (4, 19), generator=torch.Generator().manual_seed(0))
    expected = head(stacked(embedding(tokens))[0])
    assert torch.allclose(model(tokens), expected, rtol=0, atol=1e-12)
    counted = sum(parameter.numel() for parameter in plain.parameters())
    assert model.cost(19).parameters == counted


def stacked_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """One-layer weights under the names that a stack of layers gives them."""
    found = {}
    for name, weight in weights.items():
        if name.startswith("blocks."):
            _, layer, *_, leaf = name.split(".")
            found[leaf.replace("_l0", f"_l{layer}")] = weight
    return found


def test_default_lstm_remembers_from_the_start() -> None:
    model = build("lstm", **SIZE)
    biases = [model.get_parameter(f"blocks.0.mixer.layer.bias_{part}_l0") for part in ("ih", "hh")]
    forget = slice(16, 32)
    assert torch.equal((biases[0] + biases[1])[forget], torch.ones(16))


@pytest.mark.parametrize("name", LAYERS)
def test_default_recurrence_is_orthogonal(name: str) -> None:
    weight = build(name, **SIZE).get_parameter("blocks.1.mixer.layer.weight_hh_l0")
    for gate in weight.split(16):
        assert torch.allclose(gate @ gate.T, torch.eye(16), atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_state_does_not_grow(name: str) -> None:
    model = build(name, **SIZE)
    assert model.cost(10).state_bytes == model.cost(10_000).state_bytes
