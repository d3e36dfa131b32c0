"""The one language model: embedding, blocks, norm, output table. Architectures differ in their blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lockstep.models.block import Block
from lockstep.models.cost import Cost, product_flops
from lockstep.models.loss import TokenLosses, projected_losses
from lockstep.models.mixers.attention import POSITION_BYTES
from lockstep.models.sampling import Sampling, sample
from lockstep.models.spec import ModelSpec
from lockstep.models.state import State

INITIAL_STD = 0.02


class LanguageModel(nn.Module):
    """`model(tokens)` gives logits [batch, time, vocab] for tokens [batch, time].

    `model(tokens, targets=targets)` gives the losses of targets [batch, time], and holds the logits of some at a time.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.causal = spec.causal
        self.gradient_checkpointing = False
        self.embedding = nn.Embedding(spec.vocab_size, spec.dim)
        self.positions = nn.Embedding(spec.max_length, spec.dim) if spec.learned_positions else None
        self.embedding_norm = spec.norm() if spec.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(spec.dropout)
        self.blocks = nn.ModuleList(spec.block(layer) for layer in range(spec.depth))
        self.norm = spec.final_norm()
        self.output_transform = spec.output_transform()
        self.head = nn.Linear(spec.dim, spec.vocab_size, bias=spec.output_bias)
        if spec.tie_embeddings:
            self.head.weight = self.embedding.weight
        self.initialise()

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        targets: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor | TokenLosses:
        """Logits for a whole sequence, or for the continuation of the one that `state` stands at.

        With targets, their losses instead; a wrapped model gives both by the same call.
        """
        x = self.embed(tokens, None if state is None else state["position"])
        for layer, block in enumerate(self.blocks):
            carried = None if state is None else state["layers"][layer]
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, carried, use_reentrant=False)
            else:
                x = block(x, carried)
        if targets is None:
            return self.logits(x)
        return projected_losses(self.output_rows(x), self.head, targets, label_smoothing)

    def step(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Logits for any number of tokens after `state`, which is left as it was; None starts a sequence."""
        if not self.causal:
            raise ValueError(f"{self.spec.architecture} is bidirectional and cannot go token by token")
        if state is None:
            state = self.initial_state(tokens.shape[0])
        x = self.embed(tokens, state["position"])
        carried = []
        for block, before in zip(self.layers, state["layers"], strict=True):
            x, after = block.step(x, before)
            carried.append(after)
        return self.logits(x), {"position": state["position"] + tokens.shape[1], "layers": tuple(carried)}

    def initial_state(self, batch: int, capacity: int | None = None) -> State:
        """The state before the first token; `capacity` is how many tokens the caches must hold."""
        position = torch.zeros(batch, dtype=torch.int64, device=self.embedding.weight.device)
        layers = tuple(block.mixer.initial_state(batch, capacity) for block in self.layers)
        return {"position": position, "layers": layers}

    def embed(self, tokens: Tensor, position: Tensor | None) -> Tensor:
        """Token vectors [batch, time, dim], with learned positions counted from `position` [batch]."""
        x = self.embedding(tokens)
        if self.positions is not None:
            time = tokens.shape[1]
            index = torch.arange(time, device=tokens.device)
            self._check_positions(time, position)
            x = x + self.positions(index if position is None else position[:, None] + index)
        y: Tensor = self.dropout(self.embedding_norm(x))
        return y

    def _check_positions(self, time: int, position: Tensor | None) -> None:
        # Reading the position costs a device synchronisation on a GPU, where the table lookup itself is guarded.
        started = int(position.max()) if position is not None and position.device.type == "cpu" else 0
        if started + time > self.spec.max_length:
            raise ValueError(f"{started + time} tokens, but max_length gives {self.spec.max_length} positions")

    def logits(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.output_rows(x))
        return y

    def output_rows(self, x: Tensor) -> Tensor:
        """What the output table is multiplied with, [batch, time, dim]."""
        y: Tensor = self.output_transform(self.norm(x))
        return y

    def generate(
        self, prompt: Tensor, new_tokens: int, sampling: Sampling | None = None, stop: int | None = None
    ) -> Tensor:
        """Continue `prompt` [batch, time] by `new_tokens`; rows that met `stop` repeat it."""
        return sample(self, prompt, new_tokens, sampling or Sampling(), stop)

    def cost(self, length: int) -> Cost:
        """Parameters, FLOPs per token and state bytes per sequence, at this length."""
        tables = {self.embedding.weight, self.head.weight}
        if self.positions is not None:
            tables.add(self.positions.weight)
        counted = Cost(
            parameters=sum(parameter.numel() for parameter in self.parameters()),
            embedding_parameters=sum(table.numel() for table in tables),
            matrix_parameters=sum(matrix.numel() for matrix in self._multiplying_matrices()),
            forward_flops=sum(product_flops(*matrix.weight.shape) for matrix in self._output_matrices()),
            state_bytes=POSITION_BYTES if self.causal else 0,
        )
        for block in self.layers:
            counted = counted + block.cost(length)
        return counted

    def _multiplying_matrices(self) -> set[Tensor]:
        """All matrices but those that are only looked up."""
        tables: set[Tensor] = {module.weight for module in self.modules() if isinstance(module, nn.Embedding)}
        matrices: set[Tensor] = {parameter for parameter in self.parameters() if parameter.ndim == 2}
        return matrices - tables | {self.head.weight}

    @property
    def layers(self) -> Iterable[Block]:
        """The blocks, as what they are."""
        return cast(Iterable[Block], self.blocks)

    def _output_matrices(self) -> list[nn.Linear]:
        return [self.head, *(m for m in self.output_transform.modules() if isinstance(m, nn.Linear))]

    @torch.no_grad()
    def initialise(self) -> None:
        """Normal matrices; those that write into the residual stream shrink with depth, as GPT-2's do."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.layers:
            for part in (block.mixer, block.mlp):
                output = getattr(part, "output", None)
                if isinstance(output, nn.Linear):
                    output.weight.mul_(1 / math.sqrt(2 * self.spec.depth))
            block.mixer.initialise()
