"""Mamba with the same weights gives the logits of the transformers library."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.config.training import TrainingSpec
from lockstep.laws.subject import randomise
from lockstep.models.language_model import LanguageModel
from lockstep.models.mixers.mamba import Mamba
from lockstep.models.mixers.rates import LARGEST_RATE, SMALLEST_RATE
from lockstep.models.registry import build
from lockstep.training.optimizers import build_optimizers

transformers = pytest.importorskip("transformers", reason="the other implementation is not installed")

DEPTH, LENGTH = 3, 29
LAYER_NAMES = {
    "mixer_norm.weight": "norm.weight",
    "mixer.input.weight": "mixer.in_proj.weight",
    "mixer.conv.bias": "mixer.conv1d.bias",
    "mixer.selection.weight": "mixer.x_proj.weight",
    "mixer.rate.weight": "mixer.dt_proj.weight",
    "mixer.rate.bias": "mixer.dt_proj.bias",
    "mixer.skip": "mixer.D",
    "mixer.output.weight": "mixer.out_proj.weight",
}


def theirs() -> Any:
    config = transformers.MambaConfig(
        vocab_size=41,
        hidden_size=32,
        num_hidden_layers=DEPTH,
        state_size=6,
        layer_norm_epsilon=1e-6,
        residual_in_fp32=False,
        tie_word_embeddings=True,
    )
    model = transformers.MambaForCausalLM(config).eval()
    randomise(model, seed=0)
    return model


def ours(source: nn.Module) -> LanguageModel:
    model = build("mamba", vocab_size=41, dim=32, depth=DEPTH, d_state=6, chunk=8).eval()
    model.load_state_dict(translated(source.state_dict()))
    return model


def translated(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    tokens = weights["backbone.embeddings.weight"]
    copied = {"embedding.weight": tokens, "head.weight": tokens, "norm.weight": weights["backbone.norm_f.weight"]}
    for layer in range(DEPTH):
        ours_at, theirs_at = f"blocks.{layer}.", f"backbone.layers.{layer}."
        copied |= {ours_at + mine: weights[theirs_at + other] for mine, other in LAYER_NAMES.items()}
        copied[f"{ours_at}mixer.conv.weight"] = weights[f"{theirs_at}mixer.conv1d.weight"].permute(2, 1, 0)
        copied[f"{ours_at}mixer.log_decay"] = weights[f"{theirs_at}mixer.A_log"].T.flatten()
    return copied


def random_tokens() -> Tensor:
    return torch.randint(41, (3, LENGTH), generator=torch.Generator().manual_seed(1))


def distance(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().amax() / right.abs().amax())


@torch.no_grad()
def test_same_logits() -> None:
    """In float32, to which the other's norms round whatever they are given."""
    source = theirs()
    model, tokens = ours(source), random_tokens()
    assert distance(model(tokens), source(tokens).logits) < 1e-5


@pytest.mark.parametrize("prompt", [1, 2, 16, 21])
@torch.no_grad()
def test_same_logits_token_by_token(prompt: int) -> None:
    """After a prompt, both from their own state."""
    source = theirs()
    model, tokens = ours(source), random_tokens()
    other = source(tokens[:, :prompt], use_cache=True)
    logits, state = model.step(tokens[:, :prompt])
    assert distance(logits, other.logits) < 1e-5
    for t in range(prompt, LENGTH):
        other = source(tokens[:, t : t + 1], cache_params=other.cache_params, use_cache=True)
        logits, state = model.step(tokens[:, t : t + 1], state)
        assert distance(logits, other.logits) < 1e-5


@torch.no_grad()
def test_same_layer_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its norms, and kept from rounding to float32, the other is exact too: at once, and token by token."""
    monkeypatch.setattr(Tensor, "float", lambda x: x)
    source = theirs().double()
    model = ours(source).double()
    x = torch.randn(3, LENGTH, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for block, layer in zip(model.layers, source.backbone.layers, strict=True):
        expected = layer.mixer(x)
        assert distance(block.mixer(x), expected) < 1e-10
        y, state = block.mixer.step(x[:, :5], None)
        parts = [y]
        for t in range(5, LENGTH):
            y, state = block.mixer.step(x[:, t : t + 1], state)
            parts.append(y)
        assert distance(torch.cat(parts, dim=1), expected) < 1e-10


def test_same_gradients_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """With respect to every parameter of a layer, and to its input."""
    monkeypatch.setattr(Tensor, "float", lambda x: x)
    source = theirs().double()
    block, layer = next(iter(ours(source).double().layers)), source.backbone.layers[0]
    x = torch.randn(2, LENGTH, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    weight = torch.randn(2, LENGTH, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    [of_input] = torch.autograd.grad((block.mixer(x) * weight).sum(), [x])
    (block.mixer(x) * weight).sum().backward()
    [expected] = torch.autograd.grad((layer.mixer(x) * weight).sum(), [x])
    (layer.mixer(x) * weight).sum().backward()
    assert distance(of_input, expected) < 1e-10
    other = dict(layer.mixer.named_parameters())
    shaped = {
        "conv.weight": other["conv1d.weight"].grad.permute(2, 1, 0),
        "log_decay": other["A_log"].grad.T.flatten(),
    }
    for name, parameter in block.mixer.named_parameters():
        theirs_name = LAYER_NAMES.get(f"mixer.{name}", "").removeprefix("mixer.")
        assert parameter.grad is not None, name
        assert distance(parameter.grad, shaped[name] if name in shaped else other[theirs_name].grad) < 1e-10, name


def one_layer(**fields: Any) -> tuple[LanguageModel, Mamba]:
    model = build("mamba", vocab_size=41, dim=32, depth=1, **fields)
    mixer = model.get_submodule("blocks.0.mixer")
    assert isinstance(mixer, Mamba)
    return model, mixer


def test_begins_as_published() -> None:
    torch.manual_seed(0)
    _, one = one_layer(expand=8)
    decay = one.log_decay.detach().exp().view(16, 256)
    assert torch.allclose(decay, torch.arange(1.0, 17.0)[:, None].expand(16, 256))
    assert bool((one.skip == 1).all())
    rate = nn.functional.softplus(one.rate.bias.detach())
    assert SMALLEST_RATE * 0.999 < float(rate.min()) < 2 * SMALLEST_RATE
    assert LARGEST_RATE / 2 < float(rate.max()) < LARGEST_RATE * 1.001
    assert float(rate.log().mean()) == pytest.approx(math.log(SMALLEST_RATE * LARGEST_RATE) / 2, abs=0.3)
    # Uniform: the map to the rates has rank 2, the convolution width 4.
    for weight, bound in ((one.rate.weight, 2**-0.5), (one.conv.weight, 0.5)):
        assert 0.9 * bound < float(weight.detach().abs().max()) <= bound


def test_decays_and_skips_are_not_decayed_nor_made_orthogonal() -> None:
    model, one = one_layer()
    spared = {id(x) for x in (one.log_decay, one.skip, one.rate.bias, one.conv.bias)}
    for name in ("adamw", "muon", "adopt-atan2"):
        fields: dict[str, Any] = {"optimizer": name, "learning_rate": 1e-2, "weight_decay": 0.1}
        for optimizer in build_optimizers(model, TrainingSpec(**fields)):
            for group in optimizer.param_groups:
                if group["weight_decay"] > 0 or isinstance(optimizer, torch.optim.Muon):
                    assert not spared & {id(x) for x in group["params"]}, name


def test_an_mlp_where_it_is_asked_for() -> None:
    assert one_layer()[0].get_submodule("blocks.0").mlp is None
    assert one_layer(use_mlp=True, hidden=48)[0].get_submodule("blocks.0.mlp.output").weight.shape == (32, 48)


def test_the_rank_of_the_rates_is_a_sixteenth_of_the_width() -> None:
    assert one_layer()[1].dt_rank == 2
    assert one_layer(dt_rank=5)[1].dt_rank == 5
