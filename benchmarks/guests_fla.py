"""flash-linear-attention's Gated DeltaNet, where it is installed, in blocks of its own fused parts."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from types import ModuleType
from typing import Any

from guests import Guest, installed
from torch import Tensor, nn

from lockstep.models.state import State

PACKAGE = "flash-linear-attention"
HEAD = 64
"""Width of a head's keys; its kernels work on powers of two, and would fill up the 48 that 8 heads of 512 have."""
EXPANSION = 2


class GatedDeltaNet(Guest):
    """As published: keys of three quarters of the width, values of twice that, 6 dim² parameters in a mixer.

    The SwiGLU has as many, twelve in all, which is what a Transformer's layer has.
    """

    def __init__(self, vocabulary: int, dim: int, layers: int) -> None:
        mixers, modules = imported("fla.layers"), imported("fla.modules")
        heads, head = key_heads(dim)

        def block(layer: int) -> Block:
            mixer = mixers.GatedDeltaNet(
                hidden_size=dim,
                num_heads=heads,
                head_dim=head,
                expand_v=EXPANSION,
                use_short_conv=True,
                mode="chunk",
                layer_idx=layer,
            )
            mlp = modules.GatedMLP(hidden_size=dim, intermediate_size=2 * dim)
            return Block(mixer, mlp, modules.RMSNorm(dim), modules.RMSNorm(dim))

        facts = {"version": importlib.metadata.version(PACKAGE), "heads": heads, "head_dim": head}
        super().__init__(vocabulary, dim, map(block, range(layers)), modules.RMSNorm(dim), facts)

    def initial_state(self, batch: int, capacity: int | None = None) -> Any:
        return imported("fla.models.utils").Cache()

    def tensors(self, state: Any) -> State:
        return tuple((layer["recurrent_state"], tuple(layer["conv_state"])) for layer in state)


class Block(nn.Module):
    """A mixer and an MLP, each on normalised rows."""

    def __init__(self, mixer: nn.Module, mlp: nn.Module, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.mixer, self.mlp, self.first, self.second = mixer, mlp, first, second

    def forward(self, said: Tensor, total: Tensor | None, cache: Any = None) -> tuple[Tensor, Tensor]:
        rows, total = self.first(said, residual=total, prenorm=True, residual_in_fp32=True)
        mixed, *_ = self.mixer(rows, past_key_values=cache, use_cache=cache is not None)
        rows, total = self.second(mixed, residual=total, prenorm=True, residual_in_fp32=True)
        return self.mlp(rows), total


def key_heads(dim: int) -> tuple[int, int]:
    """How many, and how wide: three quarters of the width in all, as its own configuration has it."""
    width = 3 * dim // 4
    heads = max(width // HEAD, 1)
    return heads, width // heads


def imported(name: str) -> ModuleType:
    """An ImportError says what is missing."""
    with installed(PACKAGE), warnings.catch_warnings():
        # It warns on machines whose driver it does not know.
        warnings.simplefilter("ignore")
        return importlib.import_module(name)
