"""The weights of softmax attention, which fused kernels never show: calls are noted, weights computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lockstep.models.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class Attended:
    """One call of scaled dot-product attention; queries [batch, heads, queries, width]."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    """Bool, true where something is seen, or numbers that are added."""
    is_causal: bool
    scale: float | None
    output: Tensor

    @property
    def weights(self) -> Tensor:
        """softmax(q kᵀ · scale + mask), [batch, heads, queries, keys]; keys may be shared by groups of heads."""
        exactly = torch.promote_types(self.query.dtype, torch.float32)
        query, key = self.query.to(exactly), self.key.to(exactly)
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = query @ key.transpose(-2, -1) * scale
        if self.is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        if self.mask is not None and self.mask.dtype == torch.bool:
            scores = scores.masked_fill(~self.mask, -torch.inf)
        elif self.mask is not None:
            scores = scores + self.mask
        return scores.softmax(dim=-1)


class Listener(TorchFunctionMode):
    """Notes every call of scaled dot-product attention under the number of the layer that makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer: int | None = None
        self.calls: dict[int, list[Attended]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            # Where nobody says which layer it is, each call is one.
            layer = len(self.calls) if self.layer is None else self.layer
            self.calls.setdefault(layer, []).append(noted(result, *args, **(kwargs or {})))
        return result


def noted(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Attended:
    """With the names and defaults of torch's function."""
    return Attended(query, key, value, attn_mask, is_causal, scale, output)


@contextmanager
def listening(model: LanguageModel) -> Iterator[dict[int, list[Attended]]]:
    """The calls of attention by layer, for as long as the block lasts; none where other kernels are used."""
    listener = Listener()
    with ExitStack() as hooks:
        for number, block in enumerate(getattr(model, "blocks", ())):

            def enter(*_: Any, number: int = number) -> None:
                listener.layer = number

            hooks.callback(block.register_forward_pre_hook(enter).remove)
        with listener:
            yield listener.calls
