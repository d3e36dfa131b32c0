"""titans-pytorch as a writer: what its own `sample` does with its cache, token by token."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from guests import Outsider
from peer import import_peer, peer_model, peer_parameters, peer_version, script_settings
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lockstep.models.state import State


class Written(NamedTuple):
    """What it is given anew for each token."""

    text: Tensor  # [batch, time]: all of it, of which it takes the last
    places: Any
    """Of a text as long as this one may become."""
    cache: Any


class WritingPeer(Outsider):
    """As its script has it, in float32: its memories are moved by derivatives that autocast does not take."""

    lowered = False

    def __init__(self) -> None:
        super().__init__()
        peer = import_peer()
        # Its cached attention has no compiled form, so that a script's other setting would only be left unused.
        self.model = peer_model(peer, script_settings(peer, on_gpu=torch.cuda.is_available(), lowered=True))
        self.facts = {
            "non_embedding_parameters": peer_parameters(self.model),
            "version": peer_version(),
            "compiled": "nothing",
        }

    def initial_state(self, batch: int, capacity: int | None = None) -> Written:
        """The places of so many tokens are made here, once."""
        peer: Any = self.model
        tokens = peer.seq_len_with_longterm_mem(capacity or peer.segment_len)
        sizes = peer.axial_pos_emb.maybe_derive_outer_dim(tokens, (peer.neural_memory_segment_len,))
        device = next(peer.parameters()).device
        text = torch.empty(batch, 0, dtype=torch.int64, device=device)
        return Written(text, peer.axial_pos_emb(sizes, return_factorized=True), None)

    def step(self, tokens: Tensor, state: Written) -> tuple[Tensor, Written]:
        """Its first tokens at once, all others one by one, between which it also reads its memory's own."""
        text, cache, logits = torch.cat((state.text, tokens), dim=1), state.cache, None
        # Not in inference mode, whose tensors its derivatives do not take.
        with torch.inference_mode(False), torch.no_grad():
            while logits is None:
                logits, cache = self.model(
                    text, disable_flex_attn=True, cache=cache, return_cache=True, factorized_pos_emb=state.places
                )
        return logits, Written(text, state.places, cache)

    def tensors(self, state: Written) -> State:
        """Its cache; the text is asked for its last token alone."""
        return tuple(leaf for leaf in tree_leaves(state.cache) if isinstance(leaf, Tensor))
