"""Token by token, as fast as may be: a decoder owns a state, writes over it, and on a GPU replays one recorded step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.kernels.succession import token_by_token
from lockstep.memory.ownership import given_up
from lockstep.models.recording import WARM, Recording, recorded
from lockstep.models.state import State, map_state

if TYPE_CHECKING:
    from lockstep.models.language_model import LanguageModel


class Decoder:
    """Goes on from a state, one token of each sequence at a time; sequences may stand at different positions."""

    @torch.inference_mode()
    def __init__(self, model: LanguageModel, state: State) -> None:
        """The state given is left as it was. The model must be in the mode that it is to decode in."""
        self.model = model
        self.state: State = map_state(own, state)
        self.recording: Recording | None = None
        self.tried = state["position"].device.type != "cuda"
        """To record a step; on a CPU there is nothing to."""

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """Logits [batch, vocab] after one more token [batch, 1] of each sequence."""
        if not self.tried:
            self._record(tokens)
        return self._advance(tokens) if self.recording is None else self.recording.replay((tokens,))

    @torch.inference_mode()
    def go_on_from(self, state: State) -> None:
        """Another state of the same shapes, which is left as it was."""
        map_state(Tensor.copy_, self.state, state)

    def _advance(self, tokens: Tensor) -> Tensor:
        return advanced(self.model, self.state, tokens)

    def _record(self, tokens: Tensor) -> None:
        """The kernels of a step, which is not taken."""
        self.tried = True
        scratch = map_state(own, self.state)
        for _ in range(WARM):
            advanced(self.model, scratch, tokens)
        del scratch
        self.recording = recorded(self._advance, (tokens,), "decoding")


def own(tensor: Tensor) -> Tensor:
    """In one piece, and no other's: two names of one tensor would be written over twice."""
    return tensor.clone(memory_format=torch.contiguous_format)


def advanced(model: LanguageModel, state: State, tokens: Tensor) -> Tensor:
    """Logits [batch, vocab] after these tokens [batch, 1]; the state is written over."""
    with given_up(), token_by_token():
        logits, after = model.step(tokens, state)
    map_state(overwritten, state, after)
    return logits[:, -1]


def overwritten(old: Tensor, new: Tensor) -> Tensor:
    """Nothing is left to do where the step wrote over it."""
    return old if new.data_ptr() == old.data_ptr() and new.stride() == old.stride() else old.copy_(new)
