"""How much of each write is in the memory after each token: the closed form of momentum and decay.

With S_t = eta_t S_(t-1) - theta_t g_t and M_t = a_t M_(t-1) + S_t, and gradients g that are all known,

    S_t = h_t S_0 - Σ_s G[t,s] g_s        G = H diag(theta)
    M_t = b_t M_0 + f_t S_0 - Σ_s C[t,s] g_s        C = A H diag(theta), f = A h

where A[t,r] and H[t,s] are products of the gates between two tokens, b and h those from the chunk's start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.memory.derivatives import only_first
from lockstep.memory.types import Gates, exactly


class Coefficients(NamedTuple):
    """Of one chunk or many, [..., time(, time)]; the velocity's are None without momentum."""

    kept: Tensor  # b: how much of the memory at the start is left
    written: Tensor  # C [..., time, time]: how much of each write is there
    carried: Tensor | None  # f: how much of the velocity at the start has gone into the memory
    velocity_kept: Tensor | None  # h at the last token [...]
    velocity_written: Tensor | None  # the last row of G [..., time]


class _Products(torch.autograd.Function):
    """P[t,r] = Π g_j over r < j ≤ t, lower triangular; no division, so that zeros have exact gradients too."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor) -> Tensor:
        time = gates.shape[-1]
        above = torch.ones(time, time, dtype=torch.bool, device=gates.device).triu()
        factors = gates[..., :, None].expand(*gates.shape, time).masked_fill(above, 1.0)
        products = factors.cumprod(dim=-2).tril()  # out of place: see `advanced` of `trace`
        ctx.save_for_backward(products)
        return products

    @staticmethod
    @only_first
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (products,) = ctx.saved_tensors
        # P is the inverse of I - diag(g)·shift, so that dP = P diag(dg) shift P.
        with exactly(products.device):
            later = products.mT @ gradient
        earlier = torch.nn.functional.pad(products[..., :-1, :], (0, 0, 1, 0))
        gates_bar: Tensor = (later * earlier).sum(dim=-1)
        return gates_bar


def products(gates: Tensor) -> Tensor:
    """Products of gates [..., time] between any two tokens, [..., time, time]."""
    result: Tensor = _Products.apply(gates)  # type: ignore[no-untyped-call] # torch leaves apply untyped
    return result


def coefficients(gates: Gates) -> Coefficients:
    """From gates [..., time] of whole chunks."""
    between = products(gates.keep)
    kept = between[..., 0] * gates.keep[..., :1]
    if gates.momentum is None:
        return Coefficients(kept, between * gates.rate[..., None, :], None, None, None)
    momentum = products(gates.momentum)
    from_start = momentum[..., 0] * gates.momentum[..., :1]
    velocity_written = momentum * gates.rate[..., None, :]
    both = between @ torch.cat((velocity_written, from_start[..., None]), dim=-1)
    return Coefficients(kept, both[..., :-1], both[..., -1], from_start[..., -1], velocity_written[..., -1, :])


def before(found: Coefficients) -> Coefficients:
    """What each token finds before its own write: the row of the token before it."""

    def shifted(rows: Tensor, first: float) -> Tensor:
        return torch.cat((torch.full_like(rows[..., :1], first), rows[..., :-1]), dim=-1)

    written = torch.nn.functional.pad(found.written[..., :-1, :], (0, 0, 1, 0))
    carried = None if found.carried is None else shifted(found.carried, 0.0)
    return found._replace(kept=shifted(found.kept, 1.0), written=written, carried=carried)
