"""A Transformer as anybody would write it with torch alone: what a GPU gives without any of Lockstep's parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainTransformer(nn.Module):
    """Pre-norm, learned positions, fused causal attention, an MLP of four times the width, no biases."""

    def __init__(self, vocabulary: int, dim: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(PlainBlock(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, bias=False)
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, time, vocabulary] for tokens [batch, time]."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    @property
    def non_embedding_parameters(self) -> int:
        """As Lockstep counts: without the tables of tokens, of positions and of outputs."""
        tables = sum(table.weight.numel() for table in (self.tokens, self.positions, self.head))
        return sum(parameter.numel() for parameter in self.parameters()) - tables

    def training_flops(self, length: int) -> float:
        """Per token, by the conventions of `lockstep.models.cost`: masked scores count, training is three passes."""
        matrices = sum(module.weight.numel() for module in self.modules() if isinstance(module, nn.Linear))
        scores_and_mixing = 4.0 * length * self.norm.weight.numel() * len(self.blocks)
        return 3 * (2.0 * matrices + scores_and_mixing)


class PlainBlock(nn.Module):
    """Attention, then the MLP, each on normalised rows and added to what came in."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.qkv, self.output = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim, bias=False), nn.GELU(), nn.Linear(4 * dim, dim, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.first(x))
        y: Tensor = x + self.mlp(self.second(x))
        return y

    def attend(self, x: Tensor) -> Tensor:
        queries, keys, values = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        y: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return y
