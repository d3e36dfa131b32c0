"""Optimizers, and which parameters they decay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from lockstep.config.training import TrainingSpec

NamedParameters = Sequence[tuple[str, nn.Parameter]]


def build_optimizers(model: nn.Module, training: TrainingSpec) -> list[torch.optim.Optimizer]:
    """The optimizers that share the model's trainable parameters, each parameter in exactly one group.

    In all of them weight decay is decoupled, multiplies a matrix by 1 - learning rate × weight_decay at every
    step, and spares vectors, scalars and embeddings (a tied output head is an embedding).
    """
    # named_parameters() gives a shared parameter once, under the first of its names.
    trainable = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    embeddings = _embedding_ids(model)
    if training.optimizer == "muon":
        return _muon(trainable, embeddings, training)
    if training.optimizer == "adopt-atan2":
        return [_adopt_atan2(trainable, embeddings, training)]
    return [_adamw(trainable, embeddings, training)]


def set_learning_rate(optimizers: Iterable[torch.optim.Optimizer], learning_rate: float) -> None:
    """Give every group of every optimizer the same rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def _adamw(parameters: NamedParameters, embeddings: set[int], training: TrainingSpec) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        _groups(parameters, embeddings, training),
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        fused=None,
    )


def _muon(parameters: NamedParameters, embeddings: set[int], training: TrainingSpec) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for everything else.

    Muon's update is scaled by 0.2 × sqrt(the longer side), which gives it the root mean square that AdamW's
    updates typically have: one learning rate and one weight decay serve both.
    """
    hidden = [(name, one) for name, one in parameters if _is_hidden_matrix(name, one, embeddings)]
    taken = {id(one) for _, one in hidden}
    rest = [(name, one) for name, one in parameters if id(one) not in taken]
    optimizers: list[torch.optim.Optimizer] = []
    if hidden:
        optimizers.append(
            torch.optim.Muon(
                [one for _, one in hidden],
                lr=training.learning_rate,
                weight_decay=training.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    if rest:
        optimizers.append(_adamw(rest, embeddings, training))
    return optimizers


def _adopt_atan2(parameters: NamedParameters, embeddings: set[int], training: TrainingSpec) -> torch.optim.Optimizer:
    """ADOPT with atan2 in place of the division, so that `adam_epsilon` has no meaning here.

    Its `decoupled_wd` means independence of the learning rate: decay by weight_decay × rate / initial rate,
    thousands of times AdamW's at the same setting. Switched off, the decay is AdamW's own.
    Its first step only sets the second moment: parameters are decayed but not otherwise updated.
    """
    from adam_atan2_pytorch import AdoptAtan2

    optimizer: torch.optim.Optimizer = AdoptAtan2(
        _groups(parameters, embeddings, training),
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        decoupled_wd=False,
    )
    return optimizer


def _groups(parameters: NamedParameters, embeddings: set[int], training: TrainingSpec) -> list[dict[str, Any]]:
    """Decayed and undecayed parameters, in the model's order; a group without parameters is left out."""
    decayed = [one for _, one in parameters if _is_decayed(one, embeddings)]
    spared = [one for _, one in parameters if not _is_decayed(one, embeddings)]
    groups = ((decayed, training.weight_decay), (spared, 0.0))
    rate = training.learning_rate
    return [{"params": members, "lr": rate, "weight_decay": decay} for members, decay in groups if members]


def _is_decayed(parameter: nn.Parameter, embeddings: set[int]) -> bool:
    return parameter.ndim >= 2 and id(parameter) not in embeddings


def _is_hidden_matrix(name: str, parameter: nn.Parameter, embeddings: set[int]) -> bool:
    owners = name.split(".")[:-1]
    return parameter.ndim == 2 and id(parameter) not in embeddings and "head" not in owners


def _embedding_ids(model: nn.Module) -> set[int]:
    # By identity: a tied head's weight is the embedding's, whatever name it goes by.
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
