"""A causal language model of the transformers library under the contract of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lockstep.errors import UserError
from lockstep.models.block import Block
from lockstep.models.cost import Cost
from lockstep.models.hugging_face_cache import CacheLayout, find_layout, takes_positions
from lockstep.models.hugging_face_config import grows_with, in_one_line, network, pretrained
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import TokenLosses, losses_of_logits
from lockstep.models.state import State, state_bytes

if TYPE_CHECKING:
    from lockstep.models.architectures.hf import HuggingFaceSpec

LOOKED_AT = 8
LEAK = 1e-5
"""Of so many tokens the last one is replaced; a causal model's other logits move by less than this share."""


class HuggingFaceModel(LanguageModel):
    """The library's network in the place of our skeleton: the same calls, and the same kind of state."""

    spec: HuggingFaceSpec

    def __init__(self, spec: HuggingFaceSpec, folder: Path | None = None) -> None:
        """As the library initialises it, or with the weights of a folder, which the meta device has no use for."""
        nn.Module.__init__(self)
        self.spec, self.causal = spec, spec.causal
        empty = torch.get_default_device().type == "meta"
        built = network(spec.configuration) if folder is None or empty else pretrained(spec.configuration, folder)
        # Under our names too, and under these first: optimizers know a table by its module, and the head by its name.
        self.embedding = built.get_input_embeddings()
        self.head = built.get_output_embeddings()
        self.network = built
        self._takes_positions = takes_positions(built)
        self._recomputing = False
        layout = self.layout
        self._unkept = {} if layout is None or not layout.is_attention else {layout.argument: layout.unkept()}
        if not empty:
            refuse_unless_causal(self)

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        targets: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor | TokenLosses:
        """Losses are those of all logits at once: what a family makes of them after its table is its own affair."""
        logits = self._whole(tokens) if state is None else self.step(tokens, state)[0]
        return logits if targets is None else losses_of_logits(logits, targets, label_smoothing)

    def _whole(self, tokens: Tensor) -> Tensor:
        """Logits of a whole sequence."""
        self._check_room(tokens, None)
        logits: Tensor = self.network(input_ids=tokens, use_cache=False, **self._no_cache(tokens.device)).logits
        return logits

    def _no_cache(self, device: torch.device) -> dict[str, Any]:
        """What is given as the cache of a whole sequence, to spare the library a look at the positions."""
        if self._recomputing:
            return {}  # the library warns of any cache where activations are computed again
        if self._unkept or device.type != "meta":
            return self._unkept
        # Recurrent layers would write into a cache; where nothing has a value, that costs nothing.
        return {} if self.layout is None else {self.layout.argument: self.layout.fresh()}

    def _check_room(self, tokens: Tensor, position: Tensor | None) -> None:
        if self.spec.learned_positions and tokens.device.type != "meta":
            self._check_positions(tokens.shape[1], position)

    def step(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        layout = self._carried_layout()
        if state is None:
            state = self.initial_state(tokens.shape[0])
        logits = []
        for piece in (tokens,) if layout.is_attention else tokens.split(1, dim=1):
            some, state = self._advance(piece, state, layout)
            logits.append(some)
        return torch.cat(logits, dim=1), state

    def _advance(self, tokens: Tensor, state: State, layout: CacheLayout) -> tuple[Tensor, State]:
        """One call of the network, from a state."""
        position, time = state["position"], tokens.shape[1]
        self._check_room(tokens, position)
        past = layout.past(state["layers"], position, time)
        cache = layout.filled(state["layers"], past)
        given: dict[str, Any] = {"input_ids": tokens, "use_cache": True, layout.argument: cache}
        if self._takes_positions:
            given["position_ids"] = position[:, None] + torch.arange(time, device=position.device)
        # On the meta device there is nothing to see, and the library would look.
        if layout.has_attention and position.device.type != "meta":
            slots = torch.arange(past + time, device=position.device)
            given["attention_mask"] = (slots >= past - position[:, None]).long()
        logits: Tensor = self.network(**given).logits
        return logits, {"position": position + time, "layers": layout.read(cache, state["layers"])}

    def initial_state(self, batch: int, capacity: int | None = None) -> State:
        device = self.embedding.weight.device
        layers = self._carried_layout().empty(batch, capacity or self.spec.max_length, device)
        return {"position": torch.zeros(batch, dtype=torch.int64, device=device), "layers": layers}

    @property
    def layout(self) -> CacheLayout | None:
        """What a state holds; None for a network that cannot be continued token by token."""
        found = layout_of(self.spec, self.embedding.weight.dtype)
        return None if isinstance(found, str) else found

    def _carried_layout(self) -> CacheLayout:
        found = layout_of(self.spec, self.embedding.weight.dtype)
        if isinstance(found, str):
            raise UserError(found)
        return found

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether each layer's activations are computed again in the backward pass, by the library's own means."""
        return self._recomputing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, wanted: bool) -> None:
        if wanted and not self.network.supports_gradient_checkpointing:
            kind = self.network.config.model_type
            raise UserError(f"training.use_gradient_checkpointing: {kind} of the transformers library has none")
        if wanted:
            self.network.gradient_checkpointing_enable({"use_reentrant": False})
        elif self._recomputing:
            self.network.gradient_checkpointing_disable()
        self._recomputing = wanted

    @property
    def layers(self) -> Iterable[Block]:
        """The library's layers, which are not blocks of ours but are as many, and can be sharded like them."""
        lists = (module for module in self.network.modules() if isinstance(module, nn.ModuleList))
        found = next((one for one in lists if len(one) == self.spec.depth), nn.ModuleList())
        return cast(Iterable[Block], found)

    def cost(self, length: int) -> Cost:
        """Counted where our own models calculate: FLOPs by torch's counter, of a copy on the meta device."""
        return measured(self.spec, self.embedding.weight.dtype, length)


@lru_cache(maxsize=64)
def layout_of(spec: HuggingFaceSpec, dtype: torch.dtype) -> CacheLayout | str:
    """The layout of a specification's network, or why there is none."""
    with torch.device("meta"):
        copy = network(spec.configuration)
    try:
        return find_layout(copy.to(dtype).eval())
    except UserError as reason:
        return str(reason)


@lru_cache(maxsize=256)
def measured(spec: HuggingFaceSpec, dtype: torch.dtype, length: int) -> Cost:
    """What a model of this specification costs. A recurrence that no counter sees is not counted."""
    with torch.device("meta"):
        model = HuggingFaceModel(spec).to(dtype)
    tokens = torch.zeros(1, length, dtype=torch.int64, device="meta")
    matrices = sum(matrix.numel() for matrix in model._multiplying_matrices())
    # What cannot be run without values is counted by the rules of thumb.
    forward = flops(lambda: model(tokens), 2.0 * matrices * length) / length
    training = flops(lambda: model(tokens).sum().backward(), 3 * forward * length) / length
    decoding, carried = forward, 0
    if model.layout is not None:
        state = model.initial_state(1, capacity=length)
        decoding, carried = flops(lambda: model.step(tokens[:, :1], state), forward), state_bytes(state)
    tables = grows_with(spec.configuration, "vocab_size") | grows_with(spec.configuration, "max_length")
    parameters = dict(model.network.named_parameters())
    return Cost(
        parameters=sum(one.numel() for one in parameters.values()),
        embedding_parameters=sum(parameters[name].numel() for name in tables if _is_table(parameters.get(name))),
        matrix_parameters=matrices,
        forward_flops=forward,
        training_extra=training - 3 * forward,
        decoding_extra=decoding - forward,
        state_bytes=carried,
    )


def flops(run: Callable[[], object], otherwise: float) -> float:
    """What torch counts in a run on the meta device."""
    try:
        with FlopCounterMode(display=False) as counter:
            run()
    except (RuntimeError, NotImplementedError):
        return otherwise
    return float(counter.get_total_flops())


def _is_table(parameter: Tensor | None) -> bool:
    """A vector that grows with the vocabulary is a bias, and what is no parameter is a buffer."""
    return parameter is not None and parameter.ndim > 1


@torch.no_grad()
def refuse_unless_causal(model: HuggingFaceModel) -> None:
    """A model that sees later tokens would read its own answers: some of the library's do, though they call
    themselves causal, and no configuration says so reliably."""
    kind, vocabulary = model.network.config.model_type, model.spec.vocab_size
    if model.spec.max_length < 2:
        return
    tokens = torch.arange(min(LOOKED_AT, model.spec.max_length), device=model.embedding.weight.device) % vocabulary
    rows = tokens.repeat(2, 1)
    rows[1, -1] = (rows[1, -1] + 1) % vocabulary
    was_training = model.training
    try:
        logits = model.eval()(rows)[:, :-1]
    except Exception as error:
        raise UserError(f"hf: {kind} cannot be run on tokens alone: {in_one_line(error)}") from None
    finally:
        model.train(was_training)
    if (logits[0] - logits[1]).abs().max() > LEAK * logits.abs().max():
        raise UserError(f"hf: {kind} with this configuration sees later tokens, and is no causal language model")
