"""Mamba (Gu & Dao, arXiv 2312.00752): blocks of one mixer, without an MLP."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PositiveInt

from lockstep.models.mixers.mamba import Mamba
from lockstep.models.mlp import Mlp, SwiGlu
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec


@architecture("mamba")
class MambaSpec(ModelSpec):
    """Selective state spaces, S6."""

    has_heads: ClassVar[bool] = False
    aspect: ClassVar[float] = 32.0
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {"chunk": 4},
        {"chunk": 8, "d_state": 5, "d_conv": 3, "expand": 1, "dt_rank": 3, "use_mlp": True},
        {"tie_embeddings": False},
    )

    d_state: PositiveInt = 16
    """Numbers that each channel keeps."""
    d_conv: PositiveInt = 4
    """Width of the convolution."""
    expand: PositiveInt = 2
    """Channels, in model widths."""
    dt_rank: PositiveInt | None = None
    """Rank of the map to the steps; a sixteenth of the width by default."""
    chunk: PositiveInt = 64
    """Tokens that are computed place by place while other chunks advance beside them; no result depends on it."""
    use_mlp: bool = False
    """An MLP after each mixer, as hybrids have it."""

    def mixer(self, layer: int) -> Mamba:
        rank = self.dt_rank or -(-self.dim // 16)
        return Mamba(
            self.dim, d_state=self.d_state, d_conv=self.d_conv, expand=self.expand, dt_rank=rank, chunk=self.chunk
        )

    def mlp(self, layer: int) -> Mlp | SwiGlu | None:
        return super().mlp(layer) if self.use_mlp else None
