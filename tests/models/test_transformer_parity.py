"""Transformer++ with the same weights gives the logits of the transformers library's Llama."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lockstep.laws.subject import randomise
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build

transformers = pytest.importorskip("transformers", reason="the other implementation is not installed")

DEPTH, DIM, HEADS, HIDDEN = 3, 32, 4, 48
LENGTH = 40


class ExactRotary(nn.Module):
    """The library's table of angles, in the precision of its input rather than float32."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        half = DIM // HEADS // 2
        rates = 10_000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
        angles = (position_ids[..., None].to(x.dtype) * rates).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def theirs(kv_heads: int, tied: bool) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=41,
        hidden_size=DIM,
        intermediate_size=HIDDEN,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        max_position_embeddings=LENGTH,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tied,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config).to(torch.float64).eval()
    randomise(model, seed=0)
    return model


def exact(model: nn.Module) -> nn.Module:
    """The library computes norms and angles in float32 even in a float64 model; here they are exact."""
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "LlamaRMSNorm":
            norm = nn.RMSNorm(DIM, eps=1e-6, dtype=torch.float64)
            norm.load_state_dict(module.state_dict())
            model.set_submodule(name, norm)
    model.set_submodule("model.rotary_emb", ExactRotary())
    return model


def ours(kv_heads: int, tied: bool, source: nn.Module) -> LanguageModel:
    fields = {"vocab_size": 41, "max_length": LENGTH, "dim": DIM, "depth": DEPTH, "heads": HEADS, "hidden": HIDDEN}
    model = build("transformer++", **fields, kv_heads=kv_heads, tie_embeddings=tied).eval()
    model.to(torch.float64).load_state_dict(translated(source.state_dict()))
    return model


def translated(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    copied = {
        "embedding.weight": weights["model.embed_tokens.weight"],
        "head.weight": weights["lm_head.weight"],
        "norm.weight": weights["model.norm.weight"],
    }
    for layer in range(DEPTH):
        mine, other = f"blocks.{layer}.", f"model.layers.{layer}."
        qkv = [weights[f"{other}self_attn.{part}_proj.weight"] for part in "qkv"]
        gated = [weights[f"{other}mlp.{part}_proj.weight"] for part in ("gate", "up")]
        copied |= {
            f"{mine}mixer_norm.weight": weights[f"{other}input_layernorm.weight"],
            f"{mine}mixer.qkv.weight": torch.cat(qkv),
            f"{mine}mixer.output.weight": weights[f"{other}self_attn.o_proj.weight"],
            f"{mine}mlp_norm.weight": weights[f"{other}post_attention_layernorm.weight"],
            f"{mine}mlp.input.weight": torch.cat(gated),
            f"{mine}mlp.output.weight": weights[f"{other}mlp.down_proj.weight"],
        }
    return copied


def sequences() -> Tensor:
    return torch.randint(41, (3, LENGTH), generator=torch.Generator().manual_seed(1))


def difference(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().amax() / expected.abs().amax())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@torch.no_grad()
def test_same_logits_exactly(kv_heads: int, tied: bool) -> None:
    source = theirs(kv_heads, tied)
    model = ours(kv_heads, tied, source)
    expected = exact(source)(sequences()).logits
    assert difference(model(sequences()), expected) < 1e-10
    pieces = [11, *(1,) * 9, 20]
    state = None
    for piece, wanted in zip(sequences().split(pieces, dim=1), expected.split(pieces, dim=1), strict=True):
        logits, state = model.step(piece, state)
        assert difference(logits, wanted) < 1e-10


@pytest.mark.parametrize("kv_heads", [1, 4])
@torch.no_grad()
def test_same_logits_as_the_library_computes_them(kv_heads: int) -> None:
    source = theirs(kv_heads, tied=False)
    model = ours(kv_heads, False, source).to(torch.float32)
    assert difference(model(sequences()), source.to(torch.float32)(sequences()).logits) < 1e-5
