"""What a query sees, as a rule for flex_attention, is what the masks say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lockstep.laws.subject import randomise
from lockstep.models.mixers.attending import attend_in, skips
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.memory_as_context import Heads, MemoryAsContext
from lockstep.models.mixers.sight import BLOCK, Sight, block_mask
from lockstep.models.registry import build

BATCH, DIM, HEADS = 2, 32, 4
CPU = torch.device("cpu")

# On a CPU it is not compiled, and says so each time.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def seen(sight: Sight, keys: int) -> Tensor:
    """As flex_attention asks, [queries, keys]."""
    from torch.nn.attention.flex_attention import create_mask

    return create_mask(sight.rule, None, None, sight.row, keys, device="cpu")[0, 0]


@pytest.mark.parametrize("persistent", [0, 3])
@pytest.mark.parametrize("window", [1, 5, 29, 64])
def test_a_window_before_persistent_tokens(persistent: int, window: int) -> None:
    time = 29
    for query, row in enumerate(seen(Sight(1, window, time), time + persistent).tolist()):
        assert row[:time] == [0 <= query - key < window for key in range(time)]
        assert row[time:] == [True] * persistent


@pytest.mark.parametrize("persistent", [0, 3])
@pytest.mark.parametrize("contexts", [1, 2])
def test_a_segment_sees_its_reads_and_its_tokens_up_to_each(persistent: int, contexts: int) -> None:
    segment = 13
    found = seen(Sight(contexts, segment, segment), contexts * segment + persistent)
    for query, row in enumerate(found.tolist()):
        assert row == [key <= query for key in range(segment)] * contexts + [True] * persistent


@pytest.mark.parametrize(
    ("sight", "keys"),
    [
        (Sight(1, 50, 300), 304),
        (Sight(1, BLOCK, 4 * BLOCK), 4 * BLOCK),
        (Sight(1, 2 * BLOCK, 8 * BLOCK), 4 + 8 * BLOCK),
        (Sight(2, 2 * BLOCK, 2 * BLOCK), 3 + 4 * BLOCK),
        (Sight(1, 40, 40), 40),
    ],
    ids=str,
)
def test_blocks_are_those_of_torch(sight: Sight, keys: int) -> None:
    """Made one block of queries after the other, they are those that torch makes of all pairs."""
    from torch.nn.attention.flex_attention import create_block_mask

    found = block_mask(*sight, keys, CPU)
    expected = create_block_mask(sight.rule, None, None, sight.row, keys, device="cpu")
    assert found.shape == expected.shape == (1, 1, sight.row, keys)
    for name in ("kv", "full_kv", "q", "full_q"):
        for part in (f"{name}_num_blocks", f"{name}_indices"):
            assert torch.equal(getattr(found, part), getattr(expected, part)), part


def attention(window: int | None, persistent: int, kv_heads: int) -> Attention:
    made = Attention(
        DIM, HEADS, kv_heads=kv_heads, window=window, rope_theta=1e4, rotary_dim=4, persistent=persistent
    ).double()
    randomise(made, seed=0)
    return made


def inputs(time: int) -> Tensor:
    return torch.randn(BATCH, time, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def at_once(mixer: Attention, x: Tensor, window: int) -> Tensor:
    queries, keys, values = mixer.apart(mixer.qkv(x), torch.arange(x.shape[1])[None])
    keys, values = mixer.before_prefix(keys, values, mixer.prefix())
    return mixer.merge(attend_in(Sight(1, window, x.shape[1]), queries, keys, values))


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize(("window", "persistent"), [(5, 0), (5, 3), (64, 3), (None, 3)])
@torch.no_grad()
def test_windowed_attention_at_once(window: int | None, persistent: int, kv_heads: int) -> None:
    mixer, x = attention(window, persistent, kv_heads), inputs(29)
    torch.testing.assert_close(at_once(mixer, x, min(window or 29, 29)), mixer.mix(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("persistent", [0, 3])
@torch.no_grad()
def test_a_whole_segment_at_once(persistent: int) -> None:
    segment = 8
    sizes = {"dim": DIM, "depth": 1, "heads": HEADS, "chunk": 4, "segment": segment, "persistent": persistent}
    (block,) = build("titans-mac", vocab_size=17, **sizes).double().layers
    mixer = block.mixer
    assert isinstance(mixer, MemoryAsContext)
    width = DIM // HEADS
    queries, keys, values = (
        torch.randn(BATCH, HEADS, count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed, count in enumerate((segment, 2 * segment, 2 * segment))
    )
    heads = Heads(queries, *mixer.attention.before_prefix(keys, values, mixer.attention.prefix()))
    found = mixer.attention.merge(attend_in(Sight(2, segment, segment), *heads))
    torch.testing.assert_close(found, mixer.from_start(heads), rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_a_compiled_window_is_made_once_for_each_length() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    mixer, counter = attention(5, 3, 2), CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: at_once(mixer, x, 5), fullgraph=True, backend=counter)
    for time in (29, 17, 29, 17, 29):
        torch.testing.assert_close(compiled(inputs(time)), mixer.mix(inputs(time)), rtol=1e-10, atol=1e-12)
    assert counter.frame_count == 2
    made = Sight(1, 5, 29).blocks(32, CPU)
    assert made is Sight(1, 5, 29).blocks(32, CPU)
    # Nothing of it is made in the graph: its tables come in from outside.
    assert not any("sort" in str(node.target) for graph in counter.graphs for node in graph.graph.nodes)


def chosen(device: str, dtype: torch.dtype, width: int, *, dropout: float = 0.0, learning: bool = True) -> bool:
    with FakeTensorMode():
        rows = [torch.empty(1, 2, 8, width, device=device, dtype=dtype, requires_grad=learning) for _ in range(3)]
        return skips(rows[0], rows[1], rows[2], dropout, flex=False)


def test_where_rules_are_used_by_themselves() -> None:
    assert chosen("cuda", torch.bfloat16, 64)
    assert chosen("cuda", torch.float32, 16)
    assert not chosen("cuda", torch.bfloat16, 8), "narrow heads"
    assert not chosen("cuda", torch.float64, 64)
    assert not chosen("cuda", torch.bfloat16, 64, dropout=0.1)
    assert not chosen("cuda", torch.bfloat16, 64, learning=False), "torch's own can be listened to"
    assert not chosen("cpu", torch.float32, 64)
