"""What weight decay and Muon make of a memory's parameters: of titans-mac, and of yaad."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.config.training import TrainingSpec
from lockstep.models.language_model import LanguageModel
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.convolution import ShortConvolution
from lockstep.models.mixers.memory_gate import MemoryGate
from lockstep.models.mixers.neural_memory import NeuralMemory
from lockstep.models.registry import build
from lockstep.training.optimizers import build_optimizers

OPTIMIZERS = ("adamw", "muon", "adopt-atan2")
NAMES = ("titans-mac", "yaad")
FIELDS: dict[str, dict[str, Any]] = {
    "titans-mac": {"chunk": 4, "segment": 8, "persistent": 2},
    "yaad": {"chunk": 4, "expansion": 2},
}
DEPTH = 2


def model(name: str, tied: bool = True) -> LanguageModel:
    sizes = {"vocab_size": 17, "max_length": 32, "dim": 16, "depth": DEPTH, "heads": 2, "tie_embeddings": tied}
    return build(name, **sizes, **FIELDS[name])


def optimizers(model: nn.Module, name: str) -> list[torch.optim.Optimizer]:
    fields: dict[str, Any] = {"optimizer": name, "learning_rate": 1e-2, "weight_decay": 0.1}
    return build_optimizers(model, TrainingSpec(**fields))


def names_of(model: nn.Module, parameters: Iterable[Tensor]) -> set[str]:
    names = {id(one): name for name, one in model.named_parameters()}
    return {names[id(one)] for one in parameters}


def decayed(model: nn.Module, name: str) -> set[str]:
    groups = [group for one in optimizers(model, name) for group in one.param_groups if group["weight_decay"] > 0]
    return names_of(model, [one for group in groups for one in group["params"]])


def with_muon(model: nn.Module) -> set[str]:
    groups = [
        group for one in optimizers(model, "muon") if isinstance(one, torch.optim.Muon) for group in one.param_groups
    ]
    return names_of(model, [one for group in groups for one in group["params"]])


def own(model: nn.Module, kind: type[nn.Module]) -> set[str]:
    """The parameters that modules of one kind hold themselves."""
    held = [one for module in model.modules() if isinstance(module, kind) for one in module.parameters(recurse=False)]
    return names_of(model, held)


def matrices(model: LanguageModel) -> set[str]:
    """Weights of the blocks' linear maps."""
    linear = [one.weight for block in model.layers for one in block.modules() if isinstance(one, nn.Linear)]
    return names_of(model, linear)


def first_weights(model: nn.Module) -> set[str]:
    memories = [one for one in model.modules() if isinstance(one, NeuralMemory)]
    return names_of(model, [weight for memory in memories for weight in memory.weights])


def persistent(model: nn.Module) -> set[str]:
    tables = [one.persistent for one in model.modules() if isinstance(one, Attention)]
    return names_of(model, [table.weight for table in tables if table is not None])


def vectors(model: nn.Module) -> dict[str, set[str]]:
    """Parameters of one number per channel, by what they are."""
    biases = [one.bias for one in model.modules() if isinstance(one, nn.Linear) and one.bias is not None]
    return {
        "norms": own(model, nn.RMSNorm) | own(model, nn.LayerNorm),
        "gates": own(model, MemoryGate),
        "biases": names_of(model, biases),
        "the memory's gain and shift": own(model, NeuralMemory),
    }


@pytest.mark.parametrize("name", NAMES)
def test_what_there_is(name: str) -> None:
    """The kinds below are all there is, and none of them is empty where it should not be."""
    one = model(name)
    found = vectors(one)
    mac = name == "titans-mac"
    # Two norms of a block and two of MAC's mixer; one norm of yaad's mixer; the last is the model's.
    counts = {kind: len(members) for kind, members in found.items()}
    assert counts == {
        "norms": DEPTH * (4 if mac else 3) + 1,
        "gates": DEPTH * 4 if mac else 0,
        "biases": DEPTH,
        "the memory's gain and shift": DEPTH * 2,
    }
    assert len(first_weights(one)) == DEPTH * 2
    assert len(persistent(one)) == (DEPTH if mac else 0)
    assert len(own(one, ShortConvolution)) == DEPTH
    everything = set().union(*found.values(), first_weights(one), persistent(one), own(one, ShortConvolution))
    assert everything | matrices(one) | {"embedding.weight"} == set(dict(one.named_parameters()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("tied", [True, False])
def test_vectors_and_tables_are_spared(name: str, optimizer: str, tied: bool) -> None:
    one = model(name, tied)
    head = set() if tied else {"head.weight"}
    decays = decayed(one, optimizer)
    for kind, members in vectors(one).items():
        assert not decays & members, kind
    assert not decays & (persistent(one) | {"embedding.weight"})
    assert decays == matrices(one) | first_weights(one) | own(one, ShortConvolution) | head


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tied", [True, False])
def test_muon_takes_the_matrices_of_linear_maps_only(name: str, tied: bool) -> None:
    one = model(name, tied)
    orthogonalised = with_muon(one)
    assert orthogonalised == matrices(one)
    shapes = {key: parameter.ndim for key, parameter in one.named_parameters()}
    assert {shapes[key] for key in orthogonalised} == {2}
    assert not orthogonalised & (persistent(one) | set().union(*vectors(one).values()))


@pytest.mark.parametrize("name", NAMES)
def test_the_first_weights_are_adamws(name: str) -> None:
    one = model(name)
    [adamw] = [each for each in optimizers(one, "muon") if isinstance(each, torch.optim.AdamW)]
    members = names_of(one, [parameter for group in adamw.param_groups for parameter in group["params"]])
    assert first_weights(one) | persistent(one) <= members
    shapes = {key: parameter.ndim for key, parameter in one.named_parameters()}
    assert {shapes[key] for key in first_weights(one)} == {3}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_without_a_gradient_only_the_decayed_move(name: str, optimizer: str) -> None:
    one = model(name)
    for parameter in one.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    for each in optimizers(one, optimizer):
        each.step()
    moved = {key for key, parameter in one.named_parameters() if not bool((parameter == 1).all())}
    assert moved == decayed(one, optimizer)
