"""Optimizers: what is decayed, by how much, and that their state survives being saved."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.config.training import TrainingSpec
from lockstep.training.optimizers import build_optimizers, set_learning_rate

NAMES = ("adamw", "muon", "adopt-atan2")
RATE, DECAY = 1e-2, 0.1


class Toy(nn.Module):
    """An embedding, a matrix, a convolution, a norm, a frozen bias and a head that may be tied."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.head = nn.Linear(8, 16, bias=False)
        self.embedding = nn.Embedding(16, 8)
        self.mix = nn.Linear(8, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.ones(()))
        self.frozen = nn.Parameter(torch.ones(8, 8), requires_grad=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.conv(self.mix(self.norm(x)).transpose(1, 2)).transpose(1, 2) * self.scale
        logits: Tensor = self.head(x @ self.frozen)
        return logits


def toy(tied: bool = True) -> Toy:
    torch.manual_seed(0)
    return Toy(tied)


def spec(name: str, **fields: Any) -> TrainingSpec:
    return TrainingSpec(**{"optimizer": name, "learning_rate": RATE, "weight_decay": DECAY, **fields})


def names_of(model: nn.Module, parameters: list[nn.Parameter]) -> set[str]:
    names = {id(one): name for name, one in model.named_parameters()}
    return {names[id(one)] for one in parameters}


def decayed(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> set[str]:
    groups = [group for one in optimizers for group in one.param_groups if group["weight_decay"] > 0]
    return set().union(*(names_of(model, group["params"]) for group in groups))


def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], steps: range) -> None:
    for step in steps:
        tokens = torch.randint(0, 16, (4, 12), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        set_learning_rate(optimizers, RATE / (step + 1))
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tied", [True, False])
def test_every_trainable_parameter_is_in_one_group(name: str, tied: bool) -> None:
    model = toy(tied)
    groups = [group for one in build_optimizers(model, spec(name)) for group in one.param_groups]
    members = [id(one) for group in groups for one in group["params"]]
    assert sorted(members) == sorted(id(one) for one in model.parameters() if one.requires_grad)


@pytest.mark.parametrize("name", NAMES)
def test_matrices_are_decayed_and_embeddings_are_not(name: str) -> None:
    tied, untied = toy(), toy(tied=False)
    assert decayed(tied, build_optimizers(tied, spec(name))) == {"mix.weight", "conv.weight"}
    expected = {"mix.weight", "conv.weight", "head.weight"}
    assert decayed(untied, build_optimizers(untied, spec(name))) == expected


def test_muon_takes_the_hidden_matrices_only() -> None:
    model = toy(tied=False)
    muon, adamw = build_optimizers(model, spec("muon"))
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    assert names_of(model, muon.param_groups[0]["params"]) == {"mix.weight"}


def test_muon_needs_neither_kind_of_parameter() -> None:
    assert [type(one) for one in build_optimizers(nn.Embedding(4, 2), spec("muon"))] == [torch.optim.AdamW]
    matrix = nn.Linear(4, 2, bias=False)
    assert [type(one) for one in build_optimizers(matrix, spec("muon"))] == [torch.optim.Muon]


def test_muon_moves_a_matrix_about_as_far_as_adamw() -> None:
    """One learning rate serves both: Adam's typical update is 0.2 to 0.4 of it, root mean square."""
    matrix = nn.Linear(64, 32, bias=False)
    before = matrix.weight.detach().clone()
    [muon] = build_optimizers(matrix, spec("muon", weight_decay=0))
    matrix.weight.grad = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    muon.step()
    moved = (matrix.weight.detach() - before).square().mean().sqrt().item()
    assert 0.1 * RATE < moved < 0.4 * RATE


@pytest.mark.parametrize("name", NAMES)
def test_decay_is_decoupled_and_scaled_by_the_current_rate(name: str) -> None:
    """Without a gradient all that happens to a matrix is a multiplication by 1 - rate × decay."""
    model = nn.Linear(6, 6)
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    optimizers = build_optimizers(model, spec(name))
    for rate in (RATE, RATE / 4):
        model.weight.grad, model.bias.grad = torch.zeros(6, 6), torch.zeros(6)
        set_learning_rate(optimizers, rate)
        for optimizer in optimizers:
            optimizer.step()
        weight = weight * (1 - rate * DECAY)
    torch.testing.assert_close(model.weight.detach(), weight, rtol=1e-6, atol=0)
    assert torch.equal(model.bias.detach(), bias)


def test_betas_and_epsilon_reach_adamw() -> None:
    fields = {"adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-6}
    [adamw] = build_optimizers(toy(), spec("adamw", **fields))
    assert all((one["betas"], one["eps"]) == ((0.8, 0.9), 1e-6) for one in adamw.param_groups)
    [adopt] = build_optimizers(toy(), spec("adopt-atan2", **fields))
    assert all(one["betas"] == (0.8, 0.9) for one in adopt.param_groups)


@pytest.mark.parametrize("name", NAMES)
def test_every_group_gets_the_learning_rate(name: str) -> None:
    optimizers = build_optimizers(toy(tied=False), spec(name))
    assert {group["lr"] for one in optimizers for group in one.param_groups} == {RATE}
    set_learning_rate(optimizers, 0.5)
    assert {group["lr"] for one in optimizers for group in one.param_groups} == {0.5}


@pytest.mark.parametrize("name", NAMES)
def test_five_steps_are_three_a_save_and_two(name: str) -> None:
    whole = toy()
    train(whole, build_optimizers(whole, spec(name)), range(5))

    first = toy()
    optimizers = build_optimizers(first, spec(name))
    train(first, optimizers, range(3))
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizers": [one.state_dict() for one in optimizers]}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    second = Toy(tied=True)
    second.load_state_dict(saved["model"])
    resumed = build_optimizers(second, spec(name))
    for optimizer, state in zip(resumed, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    train(second, resumed, range(3, 5))
    for key, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key
    # The steps in between did something, or the equality would say nothing.
    assert not torch.equal(first.mix.weight, second.mix.weight)
