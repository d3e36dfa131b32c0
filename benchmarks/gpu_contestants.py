"""Who competes on a GPU: sizes that match, models, and one whole step of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from guests import Guest
from guests_fla import GatedDeltaNet, key_heads
from guests_mamba import Mamba2
from peer import (
    PEER,
    give_each_head_its_weights,
    import_peer,
    peer_model,
    peer_parameters,
    peer_version,
    script_settings,
)
from plain_transformer import PlainTransformer
from side_by_side import mean_loss
from torch import Tensor, nn

from lockstep.config.match import MatchSpec
from lockstep.models.registry import specify
from lockstep.models.spec import ModelSpec
from lockstep.study.match import cost_on_meta, match
from lockstep.training.replay import Gradients

VOCABULARY, CHUNK, EXPANSION, SEGMENT = 256, 64, 2, 1024
LONGEST = 65_536
TOLERANCE, TRIAL_TOLERANCE = 0.02, 0.25
"""How nearly sizes match; at the small sizes of a trial, whose MLPs are a small part, they match less well."""

BASELINE, LMM, MAC, MAG, MAL = "transformer++", "titans-lmm", "titans-mac", "titans-mag", "titans-mal"
MEMORIES = (LMM, MAC, MAG, MAL, "yaad", "moneta", "memora")
DEEPER = ("mamba2", "mamba")
"""Rivals without an MLP, which have more layers instead."""
GATED = "gated-deltanet"
RIVALS = (GATED, "deltanet", *DEEPER, "retnet", "gla", "linear-attention")
OTHERS = ("gpt2", "lstm", "gru", "rnn", "ttt-linear", "ttt-mlp", "samba", "gated-deltanet-h")
"""The rest of ours, who come only where they are named."""
PLAIN = "plain-transformer"
PEERS: dict[str, bool] = {PEER: False, f"{PEER}-bf16": True}
"""As its own training script runs it, in float32, and under the autocast that everybody else has."""
FLA, MAMBA_SSM = GUESTS = "fla-gated-deltanet", "mamba-ssm-mamba2"
"""Other packages' layers for two of the rivals."""
NAMES = (BASELINE, *MEMORIES, *RIVALS, *OTHERS, PLAIN, *GUESTS, *PEERS)

Compiled = Literal["model", "blocks", "nothing"]


class Size(NamedTuple):
    """Everybody's, but the peer's, which has that of its script, and the guests' heads, which are their own."""

    dim: int = 512
    depth: int = 16
    heads: int = 8


class Setting(NamedTuple):
    """Under which a contestant is built."""

    size: Size
    length: int
    batch: int
    compiled: Compiled
    device: torch.device
    one_of_each: bool = False
    """Whether a layer of each kind stands for all."""


@dataclass
class Contestant:
    """A model in training, and what was measured of it."""

    model: nn.Module
    tokens: Tensor
    """[batch, time + 1]"""
    lowered: bool
    """Whether its products are in bfloat16."""
    flops: float | None
    """Of training, per token; None where nobody counted them."""
    facts: Mapping[str, Any]
    replayed: bool = False
    """Whether steps become one CUDA graph, as those of a compiled model do in the training loop."""
    optimizer: torch.optim.Optimizer = field(init=False)
    gradients: Gradients = field(init=False)
    peak_bytes: int | None = None
    recorded: bool = False
    """Whether it came to that in its latest turn."""
    seconds_per_step: float = 0.0
    """When it was warm, for the choice of how many steps a turn has."""
    seconds_per_token: list[float] = field(default_factory=list)
    """Round by round."""

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.gradients = Gradients(self.model.parameters(), replayed=self.replayed)

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    def step(self) -> None:
        """Forward, loss, backward, optimizer; nothing waits for the device."""
        self.gradients(self.learn, self.tokens)
        self.optimizer.step()
        self.gradients.clear()

    def rest(self) -> None:
        """Leave the device's memory to others: a recorded step holds all that it needs for as long as it is kept.

        What the optimizer remembers is lost too; nobody asks what was learned.
        """
        self.gradients.forget()
        self.optimizer.state.clear()

    def learn(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self.lowered):
            loss = mean_loss(self.model, tokens)
        loss.backward()
        return loss.detach()


def contestant(name: str, setting: Setting) -> Contestant:
    """Built on the device, not yet warm."""
    shape = (setting.batch, setting.length + 1)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, shape, generator=generator).to(setting.device)
    torch.manual_seed(0)
    if name in PEERS:
        return peer_contestant(tokens, PEERS[name])
    if name in GUESTS:
        return guest_contestant(name, tokens, setting)
    model, flops, facts = plain(setting) if name == PLAIN else ours(name, setting)
    model.to(setting.device)
    compile_parts(model, setting.compiled)
    return Contestant(model, tokens, True, flops, facts, replays(setting))


def replays(setting: Setting) -> bool:
    """Whether steps are to be recorded."""
    return setting.compiled != "nothing" and setting.device.type == "cuda"


def ours(name: str, setting: Setting) -> tuple[nn.Module, float, dict[str, Any]]:
    spec = specification(name, setting.size, setting.one_of_each)
    cost = cost_on_meta(spec, setting.length)
    facts = {"non_embedding_parameters": cost.non_embedding_parameters, "hidden": spec.mlp_width}
    return spec.build(), cost.training_flops, facts


def plain(setting: Setting) -> tuple[nn.Module, float, dict[str, Any]]:
    model = PlainTransformer(VOCABULARY, *setting.size, setting.length)
    facts = {"non_embedding_parameters": model.non_embedding_parameters}
    return model, model.training_flops(setting.length), facts


def peer_contestant(tokens: Tensor, lowered: bool) -> Contestant:
    """Not compiled as a whole: its script compiles its attention alone, and its loops would not end in one graph."""
    peer = import_peer()
    settings = script_settings(peer, tokens.device.type == "cuda", lowered)
    model = peer_model(peer, settings).to(tokens.device)
    give_each_head_its_weights(model)
    facts = {
        "non_embedding_parameters": peer_parameters(model),
        "version": peer_version(),
        "fused_scan": settings["neural_memory_kwargs"]["use_accelerated_scan"],
        "compiled_attention": settings["use_flex_attn"],
    }
    return Contestant(model, tokens, lowered, None, facts)


def guest_contestant(name: str, tokens: Tensor, setting: Setting) -> Contestant:
    """Not compiled, but recorded: its kernels, Triton's and tilelang's, start on the stream that torch is on."""
    model = guest(name, setting.size).to(setting.device)
    return Contestant(model, tokens, True, None, model.facts, replays(setting))


def guest(name: str, size: Size) -> Guest:
    """As many layers as the rival has."""
    if name == FLA:
        return GatedDeltaNet(VOCABULARY, size.dim, size.depth)
    return Mamba2(VOCABULARY, size.dim, specification("mamba2", size).depth)


def compile_parts(model: nn.Module, compiled: Compiled) -> None:
    """Its blocks, as the training loop does, which are alike and compiled once; or the model as one graph."""
    if compiled == "model":
        model.compile(dynamic=False)
    elif compiled == "blocks":
        for block in model.get_submodule("blocks").children():
            block.compile(dynamic=False)


def specification(name: str, size: Size, one_of_each: bool = False) -> ModelSpec:
    """With as many layers as it has, or with one of each kind."""
    whole = matched(name, size)
    return whole.model_copy(update={"depth": whole.period}) if one_of_each else whole


@cache
def matched(name: str, size: Size) -> ModelSpec:
    """As large as the baseline, at its width, depth and heads: the width of the SwiGLU gives way, or else the depth.

    Gated DeltaNet has heads like the guest's, because three quarters of a width are not divided by 8 heads into tiles.
    """
    given: dict[str, Any] = {"vocab_size": VOCABULARY, "max_length": LONGEST, **size._asdict()}
    baseline = specify(BASELINE, given)
    if name == BASELINE:
        return baseline
    tolerance = TOLERANCE if size == Size() else TRIAL_TOLERANCE
    target = cost_on_meta(baseline, SEGMENT).non_embedding_parameters
    memory = {"chunk": CHUNK, "expansion": EXPANSION} if name in MEMORIES else {}
    segment = {"segment": SEGMENT} if name == MAC else {}
    if name == GATED:
        given["heads"], _ = key_heads(size.dim)
    if name in DEEPER:
        del given["depth"]
    return match(name, {**given, **memory, **segment}, MatchSpec(target=target, tolerance=tolerance), SEGMENT)
