"""What a compiled block of Mamba keeps for the way back, with our kernels: little that could be made again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lockstep.kernels.recurrences import selective as kernels
from lockstep.laws.subject import randomise
from lockstep.models.registry import build
from tests.kernels.memories import DEVICE

pytest.importorskip("triton")

from lockstep.kernels.recurrences import selective_flow as flow

DIM, BATCH, TIME = 32, 1, 16
CHANNELS, D_STATE, RANK = 2 * DIM, 16, DIM // 16
LOW, EXACT = torch.bfloat16.itemsize, torch.float32.itemsize

# torch's compiler does so itself where it traces a derivative that is written out.
pytestmark = pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted, where there is no GPU."""
    monkeypatch.setattr(kernels, "takes", lambda keys, values, state: values.shape[1] > 1)


def drawn_block() -> nn.Module:
    model = build("mamba", vocab_size=17, dim=DIM, depth=1, d_state=D_STATE).to(DEVICE).train()
    randomise(model, seed=0)
    (block,) = model.layers
    return block


def compiled(block: nn.Module) -> Callable[[Tensor], Tensor]:
    """Divided as inductor does."""
    torch._dynamo.reset()
    run: Callable[[Tensor], Tensor] = torch.compile(
        block, fullgraph=True, dynamic=False, backend="aot_eager_decomp_partition"
    )
    return run


def drawn(time: int) -> Tensor:
    return torch.randn(BATCH, time, DIM, generator=torch.Generator().manual_seed(1)).to(DEVICE).requires_grad_()


def kept(time: int) -> int:
    """Bytes that a block keeps under autocast, its weights and its input among them."""
    storages: dict[int, torch.UntypedStorage] = {}

    def noted(x: Tensor) -> Tensor:
        # Views of one projection are one storage, which is kept whole.
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    run, x = compiled(drawn_block()), drawn(time)
    with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x), torch.autocast(x.device.type, torch.bfloat16):
        run(x)
    return sum(storage.nbytes() for storage in storages.values())


def test_a_token_keeps_what_cannot_be_made_again_cheaply() -> None:
    """Nothing convolved or activated, no rates and no reads in 32 bits, and nothing gated."""
    a_token = (kept(2 * TIME) - kept(TIME)) / (BATCH * TIME)
    stream = EXACT * DIM + EXACT + LOW * DIM  # the residual stream, the scale of its norm, and what the norm makes
    projections = LOW * (2 * CHANNELS + RANK + 2 * D_STATE + CHANNELS)  # values and gate, the selection, and rates
    scan = LOW * (2 * D_STATE + D_STATE * CHANNELS / flow.SPAN)  # keys and queries in one piece, and some states
    said = LOW * CHANNELS
    # One row of channels more, in 16 bits, would be too much.
    assert a_token < stream + projections + scan + said + LOW * CHANNELS


def test_what_is_made_again_is_what_was() -> None:
    """Gradients are those of the torch form."""
    block, x = drawn_block(), drawn(TIME)
    found = gradients(block, compiled(block)(x), x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "takes", lambda keys, values, state: False)
        wanted = gradients(block, block(x), x)
    for name, gradient in wanted.items():
        assert float((found[name] - gradient).norm() / gradient.norm()) < 1e-4, name


def gradients(block: nn.Module, y: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Of the sum of what comes out, squared, with respect to the input and every parameter."""
    named = {"x": x, **dict(block.named_parameters())}
    return dict(zip(named, torch.autograd.grad(y.square().sum(), list(named.values())), strict=True))
