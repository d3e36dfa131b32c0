"""mamba-ssm's Mamba-2, where its sources are, with or without the CUDA extensions that its installation compiles."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

from guests import Guest, installed
from torch import Tensor, nn

from lockstep.models.state import State

PACKAGE, MODULE = "mamba-ssm", "mamba_ssm"
STATE, HEAD, EXPANSION = 128, 64, 2


class Mamba2(Guest):
    """Its own blocks, with norms that add and a sum in float32, as its own models have them by default."""

    def __init__(self, vocabulary: int, dim: int, layers: int) -> None:
        with installed(PACKAGE):
            import_package()
            mamba2, blocks, norms = (
                importlib.import_module(f"{MODULE}.{name}")
                for name in ("modules.mamba2", "modules.block", "ops.triton.layer_norm")
            )
        # Its fused path goes through causal-conv1d's CUDA extension. Without that convolutions are torch's, and what
        # follows them is Triton's.
        fused = mamba2.causal_conv1d_fn is not None

        def block(layer: int) -> nn.Module:
            settings = {"d_state": STATE, "headdim": HEAD, "expand": EXPANSION, "use_mem_eff_path": fused}
            mixer = partial(mamba2.Mamba2, **settings, layer_idx=layer)
            made: nn.Module = blocks.Block(
                dim, mixer, nn.Identity, norm_cls=norms.RMSNorm, fused_add_norm=True, residual_in_fp32=True
            )
            return made

        facts = {"version": importlib.metadata.version(PACKAGE), "fused_convolution": fused}
        super().__init__(vocabulary, dim, map(block, range(layers)), norms.RMSNorm(dim), facts)

    def initial_state(self, batch: int, capacity: int | None = None) -> Any:
        """What its `InferenceParams` are to a layer; the file that defines them imports more than is needed here."""
        return SimpleNamespace(seqlen_offset=0, key_value_memory_dict={})

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """From an empty state any number of tokens, and after that one at a time: it cannot read on."""
        logits, state = super().step(tokens, state)
        state.seqlen_offset += tokens.shape[1]
        return logits, state

    def tensors(self, state: Any) -> State:
        return state.key_value_memory_dict


def import_package() -> None:
    """So that its modules can be imported; an ImportError says what is missing.

    The package imports CUDA extensions that Mamba-2 does not use. Where they are missing, a bare package stands in for
    it, which knows where its modules are and has nothing else.
    """
    try:
        importlib.import_module(MODULE)
    except ImportError:
        found = importlib.util.find_spec(MODULE)
        if found is None:
            raise
        sys.modules[MODULE] = importlib.util.module_from_spec(found)
