"""Mamba-2 with the same weights gives the logits of the transformers library, and the layer is what the paper says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.errors import UserError
from lockstep.laws.subject import randomise
from lockstep.models.language_model import LanguageModel
from lockstep.models.mixers.mamba2 import EPSILON, Mamba2
from lockstep.models.registry import build
from tests.memory.cases import gradients

DEPTH = 2
SIZES: dict[str, Any] = {"vocab_size": 41, "dim": 32, "depth": DEPTH, "d_state": 16, "head_dim": 8, "chunk": 8}
LENGTH = 29
LAYER_NAMES = {
    "mixer_norm.weight": "norm.weight",
    "mixer.input.weight": "mixer.in_proj.weight",
    "mixer.log_decay": "mixer.A_log",
    "mixer.rate_bias": "mixer.dt_bias",
    "mixer.skip": "mixer.D",
    "mixer.gain": "mixer.norm.weight",
    "mixer.output.weight": "mixer.out_proj.weight",
    "mixer.conv.bias": "mixer.conv1d.bias",
}


class GroupNormGated(nn.Module):
    """The authors' gated norm, which the transformers library has for one group only."""

    def __init__(self, weight: nn.Parameter, groups: int) -> None:
        super().__init__()
        self.weight, self.groups = weight, groups

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        parts = (x * F.silu(gate)).unflatten(-1, (self.groups, -1))
        normal = parts * (parts.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt()
        y: Tensor = normal.flatten(-2) * self.weight
        return y


def theirs(groups: int) -> Any:
    transformers = pytest.importorskip("transformers", reason="the other implementation is not installed")
    config = transformers.Mamba2Config(
        vocab_size=41,
        hidden_size=32,
        num_hidden_layers=DEPTH,
        state_size=16,
        head_dim=8,
        num_heads=8,
        n_groups=groups,
        chunk_size=16,
        tie_word_embeddings=True,
    )
    model = transformers.Mamba2ForCausalLM(config).eval()
    randomise(model, seed=0)
    # Outside the mixer norms are the skeleton's, with an epsilon of their own.
    model.backbone.norm_f.variance_epsilon = 1e-6
    for layer in model.backbone.layers:
        layer.norm.variance_epsilon = 1e-6
        if groups > 1:
            layer.mixer.norm = GroupNormGated(layer.mixer.norm.weight, groups)
    return model


def ours(groups: int, source: nn.Module) -> LanguageModel:
    weights = source.state_dict()
    tokens = weights["backbone.embeddings.weight"]
    copied = {"embedding.weight": tokens, "head.weight": tokens, "norm.weight": weights["backbone.norm_f.weight"]}
    for layer in range(DEPTH):
        ours_at, theirs_at = f"blocks.{layer}.", f"backbone.layers.{layer}."
        copied |= {ours_at + mine: weights[theirs_at + other] for mine, other in LAYER_NAMES.items()}
        copied[f"{ours_at}mixer.conv.weight"] = weights[f"{theirs_at}mixer.conv1d.weight"].permute(2, 1, 0)
    model = build("mamba2", **SIZES, groups=groups).eval()
    model.load_state_dict(copied)
    return model


def random_tokens() -> Tensor:
    return torch.randint(41, (3, LENGTH), generator=torch.Generator().manual_seed(1))


def distance(left: Tensor, right: Tensor) -> float:
    return float(((left - right).abs().amax() / right.abs().amax()).detach())


@pytest.mark.parametrize("groups", [1, 2])
@torch.no_grad()
def test_same_logits(groups: int) -> None:
    """In float32, in which the other computes whatever it is given."""
    source = theirs(groups)
    model, tokens = ours(groups, source), random_tokens()
    assert distance(model(tokens), source(tokens).logits) < 1e-5


@pytest.mark.parametrize("prompt", [1, 2, 16, 21])
@torch.no_grad()
def test_same_logits_token_by_token(prompt: int) -> None:
    """After a prompt, both from their own state."""
    source = theirs(1)
    model, tokens = ours(1, source), random_tokens()
    other = source(tokens[:, :prompt], use_cache=True)
    logits, state = model.step(tokens[:, :prompt])
    assert distance(logits, other.logits) < 1e-5
    for t in range(prompt, LENGTH):
        other = source(tokens[:, t : t + 1], cache_params=other.cache_params, use_cache=True)
        logits, state = model.step(tokens[:, t : t + 1], state)
        assert distance(logits, other.logits) < 1e-5


def as_published(one: Mamba2, x: Tensor) -> Tensor:
    """The layer by its letters, token by token: h ← exp(Δ A) h + Δ B xᵀ, y = C h + D x, group norm of y · silu(z)."""
    inner, heads, shared = one.inner, one.heads, one.groups * one.state_dim
    z, channels, dt = F.linear(x, one.input.weight).split((inner, inner + 2 * shared, heads), dim=-1)
    padded = F.pad(channels.mT, (one.conv.width - 1, 0))
    weight = one.conv.weight.permute(2, 1, 0)
    channels = F.silu(F.conv1d(padded, weight, one.conv.bias, groups=inner + 2 * shared)).mT
    values, keys, queries = channels.split((inner, shared, shared), dim=-1)
    dt = F.softplus(dt + one.rate_bias)
    state, said = x.new_zeros(len(x), heads, one.state_dim, one.head_dim), []
    for t in range(x.shape[1]):
        b, c = (part[:, t].unflatten(-1, (one.groups, -1)) for part in (keys, queries))
        b, c = (part.repeat_interleave(heads // one.groups, dim=1) for part in (b, c))
        value = values[:, t].unflatten(-1, (heads, -1))
        kept = (-dt[:, t] * one.log_decay.exp()).exp()[..., None, None]
        state = kept * state + torch.einsum("bh,bhn,bhp->bhnp", dt[:, t], b, value)
        said.append(torch.einsum("bhn,bhnp->bhp", c, state) + one.skip[:, None] * value)
    y = GroupNormGated(one.gain, one.groups)(torch.stack(said, dim=1).flatten(2), z)
    return F.linear(y, one.output.weight)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_is_the_published_recurrence(groups: int) -> None:
    """And so are its gradients."""
    one = Mamba2(24, inner=32, head_dim=8, state_dim=6, groups=groups, conv=4, chunk=8).double()
    randomise(one, seed=0)
    x = torch.randn(2, LENGTH, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    actual, expected = one(x), as_published(one, x)
    assert distance(actual, expected) < 1e-10
    weights: dict[str, Tensor] = dict(one.named_parameters())
    found, wanted = (gradients({"y": y}, weights) for y in (actual, expected))
    for name, gradient in wanted.items():
        assert distance(found[name], gradient) < 1e-10, name


def test_begins_as_published() -> None:
    torch.manual_seed(0)
    model = build("mamba2", vocab_size=17, dim=256, depth=2, head_dim=4)
    for block in model.layers:
        one = block.mixer
        assert isinstance(one, Mamba2)
        decay, rate = one.log_decay.exp(), F.softplus(one.rate_bias)
        assert 1 <= decay.min() < 2 < 14 < decay.max() <= 16
        assert 0.9e-3 < rate.min() < 2e-3 < 0.05 < rate.max() < 0.11
        assert (one.skip == 1).all()
        assert (one.gain == 1).all()
        assert one.conv.bias is not None
        assert 0.4 < one.conv.bias.abs().max() <= 0.5
        assert 0.4 < one.conv.weight.abs().max() <= 0.5


@pytest.mark.parametrize(
    ("dim", "expand", "width"), [(16, 2, 32), (64, 2, 64), (48, 2, 48), (256, 2, 64), (100, 1, 50)]
)
def test_heads_fit_any_width(dim: int, expand: int, width: int) -> None:
    model = build("mamba2", vocab_size=17, dim=dim, depth=1, expand=expand)
    [block] = model.layers
    assert isinstance(block.mixer, Mamba2)
    assert (block.mixer.head_dim, block.mixer.heads) == (width, expand * dim // width)


def test_has_an_mlp_only_where_asked() -> None:
    plain, with_one = (build("mamba2", vocab_size=17, dim=16, depth=1, use_mlp=use) for use in (False, True))
    assert [block.mlp is None for block in (*plain.layers, *with_one.layers)] == [True, False]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_dim": 24}, "expand 2 × dim 16 is not divisible by head_dim 24"),
        ({"head_dim": 8, "groups": 3}, "4 heads are not divisible by groups 3"),
    ],
)
def test_says_what_does_not_fit(fields: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build("mamba2", vocab_size=17, dim=16, depth=1, **fields)
