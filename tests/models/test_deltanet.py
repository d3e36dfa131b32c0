"""DeltaNet and Gated DeltaNet as published: their layers, widths and first values."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.config.training import TrainingSpec
from lockstep.errors import UserError
from lockstep.laws.subject import randomise
from lockstep.models.mixers.delta_net import DeltaNet, GatedDeltaNet
from lockstep.models.registry import build
from lockstep.training.optimizers import build_optimizers

NAMES = ("deltanet", "gated-deltanet")
DIM, HEADS, KEY_DIM, VALUE_DIM, TIME = 24, 3, 8, 16, 37


def apart(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().amax() / expected.abs().amax())


def mixer(kind: type[DeltaNet], value_dim: int, dtype: torch.dtype) -> Any:
    """One layer with every parameter random."""
    layer = kind(DIM, HEADS, KEY_DIM, value_dim, conv=4, chunk=8)
    randomise(layer, seed=0)
    return layer.to(dtype)


def rows(dtype: torch.dtype) -> Tensor:
    return torch.randn(2, TIME, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


# --- the layers


@torch.no_grad()
def test_deltanet_as_its_paper_writes_it() -> None:
    """With torch's own convolution, and one token after another."""
    layer, x = mixer(DeltaNet, KEY_DIM, torch.float64), rows(torch.float64)
    projected = F.pad(layer.qkv(x).mT, (3, 0))
    mixed = F.silu(F.conv1d(projected, layer.conv.weight.permute(2, 1, 0), groups=3 * DIM)).mT
    q, k, v = mixed.unflatten(-1, (3, HEADS, KEY_DIM)).unbind(2)
    # Theirs keeps an empty row from being divided by zero, as ours does.
    q, k = (x / (x.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    beta = layer.rate(x).sigmoid()
    S, reads = torch.zeros(2, HEADS, KEY_DIM, KEY_DIM, dtype=torch.float64), []
    for t in range(TIME):
        seen = torch.einsum("bhkv,bhk->bhv", S, k[:, t])
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * (v[:, t] - seen))
        reads.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t] / math.sqrt(KEY_DIM)))
    normal = F.rms_norm(torch.stack(reads, dim=1), (KEY_DIM,), layer.norm.weight, eps=1e-5)
    assert apart(layer(x), layer.output(normal.flatten(2))) < 1e-10


@torch.no_grad()
def test_gated_deltanet_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3-Next's layer, which casts to float32 inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fla's, where it is installed and a GPU is not
        module = pytest.importorskip(
            "transformers.models.qwen3_next.modeling_qwen3_next", reason="the other implementation is not installed"
        )
    for name in ("torch_chunk_gated_delta_rule", "causal_conv1d_fn"):
        # With fla installed, these names stand for kernels that want a GPU.
        monkeypatch.setattr(module, name, inspect.unwrap(getattr(module, name)))
    config = module.Qwen3NextConfig(
        hidden_size=DIM,
        num_hidden_layers=1,
        linear_num_key_heads=HEADS,
        linear_num_value_heads=HEADS,
        linear_key_head_dim=KEY_DIM,
        linear_value_head_dim=VALUE_DIM,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-5,
    )
    theirs = module.Qwen3NextGatedDeltaNet(config, layer_idx=0)
    layer, x = mixer(GatedDeltaNet, VALUE_DIM, torch.float32), rows(torch.float32)
    theirs.load_state_dict(translated(layer))
    assert apart(layer(x), theirs(x)) < 1e-5


def translated(layer: GatedDeltaNet) -> dict[str, Tensor]:
    """Theirs interleave the heads of queries, keys, values and gates, and those of the two small projections."""
    assert layer.conv is not None
    parts = [*layer.qkv.weight.split(layer.widths), layer.gate.weight]
    small = [layer.rate.weight, layer.steps.weight]
    joined, gates = (
        torch.cat([part.unflatten(0, (HEADS, -1)) for part in group], dim=1).flatten(0, 1) for group in (parts, small)
    )
    return {
        "in_proj_qkvz.weight": joined,
        "in_proj_ba.weight": gates,
        "conv1d.weight": layer.conv.weight.permute(2, 1, 0),
        "dt_bias": layer.first_step,
        "A_log": layer.log_speed,
        "norm.weight": layer.norm.weight,
        "out_proj.weight": layer.output.weight,
    }


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_chunks_leave_no_trace(name: str) -> None:
    tokens = torch.randint(17, (2, 50), generator=torch.Generator().manual_seed(0))
    logits = []
    for chunk in (1, 7, 64):
        model = build(name, vocab_size=17, dim=16, depth=2, heads=2, chunk=chunk).double()
        randomise(model, seed=0)
        logits.append(model(tokens))
    assert apart(logits[1], logits[0]) < 1e-10
    assert apart(logits[2], logits[0]) < 1e-10


# --- widths


def test_published_widths() -> None:
    """Gated DeltaNet has 6 heads of 256 at dim 2048, values twice as wide, and so about 6 dim² parameters."""
    with torch.device("meta"):
        gated = build("gated-deltanet", vocab_size=17, dim=2048, depth=1, heads=6).blocks[0].get_submodule("mixer")
        plain = build("deltanet", vocab_size=17, dim=2048, depth=1, heads=16).blocks[0].get_submodule("mixer")
    assert isinstance(gated, GatedDeltaNet)
    assert (gated.key_dim, gated.value_dim) == (256, 512)
    for layer, budget in ((gated, 6), (plain, 4)):
        assert sum(one.numel() for one in layer.parameters()) == pytest.approx(budget * 2048**2, rel=0.01)


@pytest.mark.parametrize(
    ("dim", "heads", "width"), [(256, 4, 48), (64, 4, 16), (64, 2, 24), (16, 2, 8), (16, 8, 8), (10, 3, 8)]
)
def test_a_head_is_three_quarters_of_its_share(dim: int, heads: int, width: int) -> None:
    layer = build("gated-deltanet", vocab_size=17, dim=dim, depth=1, heads=heads).blocks[0].get_submodule("mixer")
    assert isinstance(layer, GatedDeltaNet)
    assert (layer.key_dim, layer.value_dim) == (width, 2 * width)


def test_heads_must_divide() -> None:
    with pytest.raises(UserError, match="dim 16 is not divisible by heads 3"):
        build("deltanet", vocab_size=17, dim=16, depth=1, heads=3)


# --- first values, and what the optimizers make of them


def test_first_speeds_and_steps() -> None:
    """Speeds evenly up to 16; steps between a thousandth and a tenth, evenly in their logarithm."""
    torch.manual_seed(0)
    model = build("gated-deltanet", vocab_size=17, dim=16, depth=1, heads=2000, head_dim=1, expand_v=1)
    layer = model.blocks[0].get_submodule("mixer")
    assert isinstance(layer, GatedDeltaNet)
    speeds = layer.log_speed.detach().exp()
    assert 0 < float(speeds.amin()) < 0.1
    assert 15.9 < float(speeds.amax()) < 16.001
    assert float(speeds.mean()) == pytest.approx(8, rel=0.05)
    steps = F.softplus(layer.first_step.detach()).log10()
    assert -3.001 < float(steps.amin()) < -2.9
    assert -1.1 < float(steps.amax()) < -0.999
    assert float(steps.mean()) == pytest.approx(-2, rel=0.05)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_speeds_and_steps_are_not_decayed(optimizer: str) -> None:
    model = build("gated-deltanet", vocab_size=17, dim=16, depth=1, heads=2)
    layer = model.blocks[0].get_submodule("mixer")
    assert isinstance(layer, GatedDeltaNet)
    spared: list[nn.Parameter] = [layer.log_speed, layer.first_step, layer.norm.weight]
    training = TrainingSpec.model_validate({"optimizer": optimizer, "weight_decay": 0.1})
    groups = [group for one in build_optimizers(model, training) for group in one.param_groups]
    decayed = {id(one) for group in groups for one in group["params"] if group["weight_decay"] > 0}
    assert not decayed & {id(one) for one in spared}
    assert {id(layer.qkv.weight), id(layer.rate.weight), id(layer.steps.weight)} <= decayed
