"""One token through a linear recurrence by our kernel is what torch makes of it: what is read, and the state after it.

Without a GPU the kernel runs in Triton's interpreter. Both are given the same rounded numbers, and torch computes with
them in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lockstep.kernels.backends import using
from lockstep.kernels.record import backend, recorded_in
from lockstep.kernels.recurrences import token
from lockstep.kernels.rows import token as rows
from lockstep.laws.subject import randomise
from lockstep.memory.ownership import given_up
from lockstep.models.decoding import own
from lockstep.models.recurrences.channel_decayed import channel_decayed
from lockstep.models.recurrences.decayed import decayed
from lockstep.models.recurrences.delta import delta_rule
from lockstep.models.registry import build
from lockstep.models.state import map_state
from lockstep.training import compilation
from tests.kernels.memories import DEVICE
from tests.kernels.test_memory_operator import NUMBERS, SHAPES
from tests.training.test_compilation import telling

pytest.importorskip("triton")

from lockstep.kernels.recurrences import token_operator as operator

ON_A_GPU = torch.cuda.is_available()
EXACTLY = 1e-5
"""Relative error of norms: all is computed in 32 bits, whatever tokens come in."""


class Size(NamedTuple):
    batch: int = 2
    groups: int = 2
    heads: int = 2
    key_dim: int = 16
    value_dim: int = 32


SIZES = {
    "heads": Size(),
    "heads that share keys": Size(groups=1, heads=4),
    "numbers for no whole tile": Size(key_dim=20, value_dim=33),
    "a narrow one": Size(key_dim=3, value_dim=1),
    "long keys": Size(batch=1, groups=1, heads=1, key_dim=300, value_dim=40),
    "one sample": Size(batch=1, heads=2, key_dim=64, value_dim=128),
}
ON_GPUS = {
    "mamba2": Size(64, 1, 16, 128, 64),
    "gated deltanet": Size(64, 6, 6, 64, 128),
    "one of its": Size(1, 6, 6, 64, 128),
    "retention": Size(3, 4, 4, 256, 512),
    "linear attention": Size(64, 8, 8, 64, 65),
}
"""As models have them."""
RULES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "all is kept": lambda g: decayed(g.queries, g.keys, g.values, None, g.state, 64),
    "heads decay": lambda g: decayed(g.queries, g.keys, g.values, g.log_keep, g.state, 64),
    "heads decay alike": lambda g: decayed(g.queries, g.keys, g.values, g.log_keep[:1], g.state, 64),
    "delta": lambda g: delta_rule(g.alone.queries, g.alone.keys, g.values, g.rate, None, g.state, 64),
    "gated delta": lambda g: delta_rule(g.alone.queries, g.alone.keys, g.values, g.rate, g.log_keep, g.state, 64),
    "channels decay": lambda g: channel_decayed(g.alone.queries, g.alone.keys, g.values, g.channels, g.state, 64),
}


class Given(NamedTuple):
    queries: Tensor
    keys: Tensor
    values: Tensor
    log_keep: Tensor
    channels: Tensor
    rate: Tensor
    state: Tensor

    def to(self, dtype: torch.dtype) -> Given:
        return Given(*(x.to(dtype) for x in self))

    @property
    def alone(self) -> Given:
        """With queries and keys for rules whose heads share none."""
        times = self.values.shape[1] // self.keys.shape[1]
        queries, keys = (x.repeat_interleave(times, dim=1) for x in (self.queries, self.keys))
        return self._replace(queries=queries, keys=keys)


def draw(size: Size, dtype: torch.dtype = torch.float32) -> Given:
    """Numbers of this precision, the gates and the state in float32; heads come from projections, tokens last."""
    generator, (batch, groups, heads, key_dim, value_dim) = torch.Generator().manual_seed(0), size

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE)

    queries, keys, values = (
        normal(batch, 1, count, width).to(dtype).transpose(1, 2)
        for count, width in ((groups, key_dim), (groups, key_dim), (heads, value_dim))
    )
    gates = -normal(batch, heads, 1).abs(), -normal(batch, heads, 1, key_dim).abs(), normal(batch, heads, 1).sigmoid()
    return Given(queries, keys / key_dim**0.5, values, *gates, normal(batch, heads, key_dim, value_dim))


def far(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@torch.no_grad()
def require_close(rule: str, size: Size, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    given = draw(size, dtype)
    wanted = RULES[rule](given.to(torch.float64))
    assert backend() == "torch"
    monkeypatch.setattr(token, "takes", lambda *_: True)
    before = given.state.clone()
    for found, exact in zip(RULES[rule](given), wanted, strict=True):
        assert found.dtype is torch.float32
        assert far(found, exact) < EXACTLY
    assert "(recurrence token)" in backend()
    assert torch.equal(given.state, before), "a state belongs to whoever gave it"
    with given_up():
        reads, after = RULES[rule](given)
    assert after.data_ptr() == given.state.data_ptr()
    assert far(reads, wanted[0]) < EXACTLY
    assert far(after, wanted[1]) < EXACTLY


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("rule", RULES)
def test_numbers(rule: str, size: Size, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    require_close(rule, size, dtype, monkeypatch)


@pytest.mark.skipif(not ON_A_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("size", ON_GPUS.values(), ids=ON_GPUS)
@pytest.mark.parametrize("rule", RULES)
def test_sizes_of_models(rule: str, size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    require_close(rule, size, torch.bfloat16, monkeypatch)


@pytest.mark.parametrize(
    ("rows", "key_dim", "value_dim", "columns"),
    [(6, 64, 128, 16), (16, 128, 64, 16), (384, 64, 128, 64), (64, 64, 64, 32), (4096, 512, 64, 16), (1, 3, 1, 16)],
)
def test_columns(rows: int, key_dim: int, value_dim: int, columns: int) -> None:
    """Enough programs for a device where there can be, and no more numbers in one than registers hold."""
    assert operator.columns(rows, key_dim, value_dim) == columns


@pytest.mark.parametrize("gates", [(None, None), ("log_keep", None), ("channels", None), ("log_keep", "rate")], ids=str)
def test_it_is_an_operator(gates: tuple[str | None, str | None]) -> None:
    """Torch's own examination."""
    given = draw(Size())
    tokens = [x[:, :, 0].contiguous() for x in given[:3]]
    gating = [None if name is None else getattr(given, name)[:, :, 0].contiguous() for name in gates]
    torch.library.opcheck(operator.recur_, (*tokens, *gating, given.state), test_utils=(*SHAPES, NUMBERS))


def test_a_state_in_pieces_is_not_written_over() -> None:
    given = draw(Size())
    with pytest.raises(ValueError, match="in one piece"):
        token.run(*given[:3], None, None, given.state.mT.contiguous().mT)


def test_who_is_taken() -> None:
    """Single tokens on a GPU without derivatives, whose states are of 32 bits; all else is left to others."""
    given = draw(Size())
    with torch.no_grad():
        assert token.takes(given.keys, given.state) == ON_A_GPU
        assert not token.takes(given.keys.expand(-1, -1, 2, -1), given.state)
        assert not token.takes(given.keys, given.state.double())
    assert not token.takes(given.keys, given.state)


MODELS: dict[str, dict[str, Any]] = {
    "linear-attention": {},
    "retnet": {},
    "gla": {},
    "deltanet": {},
    "gated-deltanet": {"head_dim": 16},
    "mamba2": {"d_state": 16, "head_dim": 16},
}


@torch.inference_mode()
@pytest.mark.parametrize("name", MODELS)
def test_models_go_on_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token, in states that are written over, from samples at different places."""
    sizes = {} if name == "mamba2" else {"heads": 2}
    model = build(name, vocab_size=17, dim=32, depth=2, **sizes, **MODELS[name]).to(DEVICE).eval()
    randomise(model, seed=0)
    tokens = torch.randint(17, (2, 9), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    _, state = model.step(tokens[:, :4], None)

    def written() -> Tensor:
        said, held = [], map_state(own, state)
        for place in range(4, 9):
            with given_up():
                logits, held = model.step(tokens[:, place, None], held)
            said.append(logits)
        return torch.cat(said, dim=1)

    with recorded_in(set()), using("torch"):
        wanted = written()
        assert "recurrence token" not in backend()
    if not ON_A_GPU:
        monkeypatch.setattr(token, "takes", lambda keys, _: keys.shape[2] == 1)
    with recorded_in(set()):
        torch.testing.assert_close(written(), wanted, rtol=1e-4, atol=1e-5)
        assert "recurrence token" in backend()


@torch.inference_mode()
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_compiled_around_it_begins_early(name: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that our kernels are given is made of what was loaded."""
    found: list[bool] = []
    monkeypatch.delenv("LOCKSTEP_PDL", raising=False)
    monkeypatch.setattr(compilation, "in_turn_unless_all_load", telling(found))
    monkeypatch.setattr(token, "takes", lambda keys, _: keys.shape[2] == 1)
    monkeypatch.setattr(rows, "takes", lambda projected, *_: projected.shape[1] == 1)
    sizes = {} if name == "mamba2" else {"heads": 2}
    model = build(name, vocab_size=17, dim=32, depth=1, **sizes, **MODELS[name]).to(DEVICE).eval()
    tokens = torch.randint(17, (batch, 5), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    _, state = model.step(tokens[:, :4], None)
    held, again = map_state(own, state), map_state(own, state)
    with recorded_in(set()), given_up():
        wanted, _ = model.step(tokens[:, 4:], held)
        torch._dynamo.reset()
        compilation.compile_steps(model)
        torch.testing.assert_close(model.step(tokens[:, 4:], again)[0], wanted, rtol=1e-4, atol=1e-5)
        assert "recurrence token" in backend()
    assert set(found) == {True}
