"""One process or many: DDP and FSDP2 behind one function, started with torchrun."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lockstep.errors import UserError
from lockstep.models.language_model import LanguageModel
from lockstep.training.checkpoint import model_tensors


@dataclass(frozen=True, slots=True)
class World:
    """Who this process is among those that share a run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def find_device(asked: str, world: World) -> torch.device:
    """The device of this process; `auto` takes a GPU where there is one."""
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise UserError(f"training.device: {asked} is not a device; use auto, cpu or cuda") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(f"training.device is {asked}, but torch sees no CUDA device here")
        return torch.device("cuda", world.local_rank if device.index is None else device.index)
    if device.type != "cpu":
        raise UserError(f"training.device: {asked} is not supported; use auto, cpu or cuda")
    return device


@contextlib.contextmanager
def join_world(backend_device: str) -> Iterator[World]:
    """The world that torchrun made, or a world of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    if "RANK" not in os.environ:
        raise UserError(f"WORLD_SIZE is {size}, but RANK is not set; start several processes with torchrun")
    world = World(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", "0")))
    on_gpu = backend_device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(world.local_rank)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield world
        # The main process may still be writing. Nor may an interpreter end while a thread of FSDP's group, which
        # outlives the group, lets go of the last tensors: that would be an abort.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def distribute(model: LanguageModel, how: Literal["ddp", "fsdp"], world: World, device: torch.device) -> nn.Module:
    """What the loop calls instead of `model`; in a world of one, the model itself."""
    if world.size == 1:
        return model
    if how == "ddp":
        return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    for part in (*model.layers, model):
        fully_shard(part)
        # Sampling goes through `step`: the sharded weights must be gathered for it as for `forward`.
        if hasattr(part, "step"):
            register_fsdp_forward_method(part, "step")
    return model


@contextlib.contextmanager
def accumulating(model: nn.Module, last: bool) -> Iterator[None]:
    """Exchange gradients between processes only in the last micro-batch of a step."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        yield
    elif isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
    else:
        yield


def total(value: Tensor, world: World) -> Tensor:
    """The sum over all processes."""
    if world.size > 1:
        value = value.clone()
        dist.all_reduce(value)
    return value


_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def gather_weights(model: LanguageModel) -> dict[str, Tensor]:
    """Whole weights on the CPU, for the main process to save; a collective call."""
    names = model_tensors(model)
    if not isinstance(model, FSDPModule):
        return {name: tensor.detach().cpu() for name, tensor in names.items()}
    gathered = get_model_state_dict(model, options=_WHOLE)
    # Only the main process receives them.
    return {name: tensor for name in names if isinstance(tensor := gathered.get(name), Tensor)}


def gather_optimizers(model: LanguageModel, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Optimizer state by parameter name, the same for any number of processes; a collective call."""
    state: dict[str, Any] = _with_lists(get_optimizer_state_dict(model, tuple(optimizers), options=_WHOLE))
    return state


def _with_lists(tree: Any) -> Any:
    """Lists for tuples: torch turns one into the other on loading, and a resumed run writes the same bytes."""
    if isinstance(tree, Mapping):
        return {key: _with_lists(value) for key, value in tree.items()}
    return [_with_lists(value) for value in tree] if isinstance(tree, list | tuple) else tree


def scatter_optimizers(model: LanguageModel, optimizers: Sequence[Optimizer], state: Mapping[str, Any]) -> None:
    """The inverse of `gather_optimizers`."""
    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, tuple(optimizers), dict(state), options=options)
