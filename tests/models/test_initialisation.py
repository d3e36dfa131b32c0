"""Initialisation: normal matrices, zero biases, residual writers that shrink with depth, as GPT-2's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lockstep.models.language_model import INITIAL_STD, LanguageModel
from lockstep.models.registry import build

DEPTH = 8


@pytest.fixture(params=["gpt2", "transformer++", "bert"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    torch.manual_seed(0)
    return build(request.param, vocab_size=300, dim=128, depth=DEPTH, heads=4)


def test_standard_deviations(model: LanguageModel) -> None:
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        writes = name.endswith((".mixer.output", ".mlp.output"))
        expected = INITIAL_STD / math.sqrt(2 * DEPTH) if writes else INITIAL_STD
        assert float(module.weight.detach().std()) == pytest.approx(expected, rel=0.05), name
        assert float(module.weight.detach().mean()) == pytest.approx(0, abs=0.1 * INITIAL_STD), name


def test_biases_are_zero_and_norms_one(model: LanguageModel) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            assert not module.bias.any()
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            assert bool((module.weight == 1).all())


def test_a_fresh_model_guesses_evenly(model: LanguageModel) -> None:
    tokens = torch.randint(300, (2, 32), generator=torch.Generator().manual_seed(0))
    targets = torch.randint(300, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model.eval()(tokens).flatten(0, 1), targets.flatten())
    assert float(loss) == pytest.approx(math.log(300), abs=0.15)


@pytest.mark.parametrize("name", ["gpt2", "transformer++", "lstm"])
def test_tied_tables_are_one_parameter(name: str) -> None:
    tied, untied = (build(name, vocab_size=300, dim=128, depth=1, heads=4, tie_embeddings=tie) for tie in (True, False))
    assert tied.head.weight is tied.embedding.weight
    assert untied.cost(8).parameters == tied.cost(8).parameters + 300 * 128
    assert untied.cost(8).non_embedding_parameters == tied.cost(8).non_embedding_parameters


def test_published_recurrence_keeps_torch_initialisation() -> None:
    weight = build("lstm", vocab_size=9, dim=64, depth=1, heads=1, published=True).get_parameter(
        "blocks.0.mixer.layer.weight_hh_l0"
    )
    bound = 1 / math.sqrt(64)
    assert float(weight.detach().abs().amax()) <= bound
    assert float(weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
