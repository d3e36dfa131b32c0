"""titans-pytorch, where it is installed: how the benchmarks find it, build it and count it."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from guests import installed
from torch import nn

PEER = "titans-pytorch"


def import_peer() -> Any:
    """Its module; an ImportError says what is missing."""
    with installed(PEER):
        return importlib.import_module("titans_pytorch")


def peer_version() -> str:
    return importlib.metadata.version(PEER)


def peer_model(peer: Any, settings: Mapping[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = peer.MemoryAsContextTransformer(**settings)
    return model


def peer_parameters(model: nn.Module) -> int:
    """Without tables of tokens and positions, and without the templates and frequencies that never get a gradient."""
    left_out = re.compile(r"token_emb\.|to_logits\.|axial_pos_emb\.|.*\.memory_model\.|.*\.rotary_emb\.")
    return sum(parameter.numel() for name, parameter in model.named_parameters() if not left_out.match(name))


def give_each_head_its_weights(model: nn.Module) -> None:
    """Its heads begin as one tensor expanded, into which no optimizer can write; moved to a GPU they part anyway."""
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()


def script_settings(peer: Any, on_gpu: bool, lowered: bool) -> dict[str, Any]:
    """Its constructor's arguments in its own training script: memory in three of eight layers, moved every 4 tokens.

    On a GPU its script also asks for a fused scan and for compiled attention. The latter does not take the mixture of
    precisions that autocast leads to, and stays out where products are lowered.
    """
    return {
        "num_tokens": 256,
        "dim": 384,
        "depth": 8,
        "segment_len": 32,
        "num_persist_mem_tokens": 4,
        "num_longterm_mem_tokens": 4,
        "neural_memory_layers": (2, 4, 6),
        "neural_memory_segment_len": 4,
        "neural_memory_batch_size": 128,
        "neural_mem_gate_attn_output": False,
        "neural_mem_weight_residual": True,
        "neural_memory_qkv_receives_diff_views": True,
        "use_flex_attn": on_gpu and not lowered,
        "sliding_window_attn": True,
        "neural_memory_model": peer.MemoryMLP(dim=64, depth=2),
        "neural_memory_kwargs": {
            "dim_head": 64,
            "heads": 4,
            "attn_pool_chunks": True,
            "qk_rmsnorm": True,
            "momentum": True,
            "momentum_order": 1,
            "default_step_transform_max_lr": 0.1,
            "use_accelerated_scan": on_gpu and has_fused_scan(),
            "per_parameter_lr_modulation": True,
            "spectral_norm_surprises": True,
        },
    }


def has_fused_scan() -> bool:
    """Whether the Triton scan that it prefers on a GPU is there.

    It imports a CUDA scan too and leaves it unused, but that import starts a compiler: an empty module stands in.
    """
    try:
        importlib.import_module("accelerated_scan.scalar")
    except ImportError:
        return False
    unused = ModuleType("accelerated_scan.warp")
    unused.__dict__["scan"] = None
    sys.modules.setdefault(unused.__name__, unused)
    return True
