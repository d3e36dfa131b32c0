"""Losses without the logits of all tokens: the plain way's values and gradients, and really fewer bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lockstep.config.run import RunSpec
from lockstep.evaluation.language import HeldOut, score_causal, score_masked, score_pseudo
from lockstep.evaluation.live_bytes import live_bytes
from lockstep.models import language_model
from lockstep.models.loss import IGNORED, TokenLosses, losses_of_logits, piece_rows, projected_losses, token_losses
from lockstep.models.registry import build
from lockstep.training.context import make_context
from lockstep.training.distribution import World
from lockstep.training.run import train
from tests.training.tiny_runs import losses, tiny_run, without_dropout
from tests.training.worlds import forking, free_port, member, status

CPU = torch.device("cpu")
DOUBLE = 8
FLOAT = 4


class Task(NamedTuple):
    """What is to be scored; every third target or so is ignored."""

    hidden: Tensor
    head: nn.Linear
    targets: Tensor

    def bytes_of(self, tokens: int) -> int:
        """What the logits of so many tokens take."""
        return tokens * self.head.out_features * self.hidden.element_size()


def make_task(
    batch: int, time: int, dim: int, vocabulary: int, bias: bool = True, dtype: torch.dtype = torch.float64
) -> Task:
    generator = torch.Generator().manual_seed(batch + 10 * time + 100 * vocabulary)
    hidden = torch.randn(batch, time, dim, generator=generator, dtype=dtype).requires_grad_()
    head = nn.Linear(dim, vocabulary, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    targets = torch.randint(vocabulary, (batch, time), generator=generator)
    ignored = torch.rand(batch, time, generator=generator) < 0.3
    return Task(hidden, head, targets.masked_fill(ignored, IGNORED))


def gradients(found: TokenLosses, task: Task) -> list[Tensor]:
    """Of a sum in which every token counts differently."""
    weights = torch.linspace(-1, 2, task.targets.numel(), dtype=found.losses.dtype).view_as(task.targets)
    wanted = [task.hidden, *task.head.parameters()]
    return list(torch.autograd.grad((found.losses * weights).sum(), wanted))


def assert_the_same(one: TokenLosses, other: TokenLosses, task: Task) -> None:
    torch.testing.assert_close(one, other, equal_nan=False)
    torch.testing.assert_close(gradients(one, task), gradients(other, task))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("rows", [1, 7, 16, 32, 33, 1000])
def test_values_and_gradients_are_those_of_all_logits(rows: int, smoothing: float, bias: bool) -> None:
    task = make_task(3, 11, 6, 19, bias)
    assert 0 < int((task.targets == IGNORED).sum()) < task.targets.numel()
    found = projected_losses(*task, smoothing, piece_bytes=task.bytes_of(rows))
    logits = task.head(task.hidden)
    torch.testing.assert_close(found.losses, token_losses(logits, task.targets, smoothing))
    torch.testing.assert_close(found.nats, token_losses(logits, task.targets).detach())
    assert_the_same(found, losses_of_logits(logits, task.targets, smoothing), task)
    assert not found.nats.requires_grad
    assert not found.losses._is_view(), "FSDP warns of modules that return views"
    assert found.hits is None, "nobody asks in training, and it would cost one more pass over the logits"


@pytest.mark.parametrize("rows", [1, 7, 1000])
@torch.no_grad()
def test_hits_are_told_where_no_gradient_is_recorded(rows: int) -> None:
    task = make_task(3, 11, 6, 5)
    found = projected_losses(*task, piece_bytes=task.bytes_of(rows))
    expected = task.head(task.hidden).argmax(dim=-1) == task.targets
    assert found.hits is not None
    assert torch.equal(found.hits, expected)
    assert 0 < int(expected.sum()) < expected.numel()
    torch.testing.assert_close(found.nats, token_losses(task.head(task.hidden), task.targets))


sizes = st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.integers(1, 12))


@settings(max_examples=60, deadline=None)
@given(shape=sizes, piece_bytes=st.integers(1, 4000), smoothing=st.sampled_from([0.0, 0.2]))
def test_any_shape(shape: tuple[int, int, int, int], piece_bytes: int, smoothing: float) -> None:
    task = make_task(*shape)
    found = projected_losses(*task, smoothing, piece_bytes=piece_bytes)
    assert found.losses.shape == found.nats.shape == task.targets.shape
    assert_the_same(found, losses_of_logits(task.head(task.hidden), task.targets, smoothing), task)


@given(st.integers(1, 10_000), st.integers(1, 300), st.integers(1, 2**22))
def test_pieces_keep_to_their_bytes_and_are_as_few_as_can_be(tokens: int, vocabulary: int, piece_bytes: int) -> None:
    rows = piece_rows(tokens, vocabulary, torch.bfloat16, piece_bytes)
    assert rows == 1 or rows * vocabulary * FLOAT <= piece_bytes
    assert 1 <= rows <= tokens
    most = max(1, piece_bytes // (vocabulary * FLOAT))
    assert -(-tokens // rows) == -(-tokens // most)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_piece_is_the_plain_way_to_the_last_bit(smoothing: float, lower: bool) -> None:
    task = make_task(4, 50, 32, 259, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=lower):
        found = projected_losses(*task, smoothing)
        logits = task.head(task.hidden)
    plain = TokenLosses(token_losses(logits, task.targets, smoothing), token_losses(logits, task.targets), None)
    assert logits.dtype == (torch.bfloat16 if lower else torch.float32)
    assert torch.equal(found.losses, plain.losses)
    assert torch.equal(found.nats, plain.nats)
    for mine, theirs in zip(gradients(found, task), gradients(plain, task), strict=True):
        assert torch.equal(mine, theirs)


def test_the_tables_gradient_is_summed_in_full_precision() -> None:
    """A rounded copy of the table that all pieces share would collect their gradients in bfloat16."""
    task = make_task(8, 128, 16, 61, dtype=torch.float32)
    exact = gradients(projected_losses(*task), task)[1]
    with torch.autocast("cpu", torch.bfloat16):
        found = [projected_losses(*task, piece_bytes=task.bytes_of(rows)) for rows in (1024, 8)]
    assert all(one.losses.dtype == torch.float32 for one in found)
    plain, pieces = ((gradients(one, task)[1] - exact).norm() / exact.norm() for one in found)
    assert 1e-4 < float(plain) < 1e-2
    assert float(pieces) < 1.2 * float(plain)


TOKENS, VOCABULARY, DIM, PIECE = 256, 500, 8, 16
LARGE = (2, TOKENS // 2, DIM, VOCABULARY)


def peak(run: Callable[[], object]) -> int:
    with live_bytes() as counted:
        run()
    return counted.peak


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_few_pieces_are_held_at_once_on_both_ways(smoothing: float) -> None:
    task = make_task(*LARGE, dtype=torch.float32)

    def run(rows: int) -> int:
        return peak(lambda: gradients(projected_losses(*task, smoothing, piece_bytes=task.bytes_of(rows)), task))

    plain, pieces = run(TOKENS), run(PIECE)
    beside = 4 * FLOAT * VOCABULARY * DIM + 16 * FLOAT * TOKENS * DIM
    """Shares of the table's gradient that are being added up, and rows."""
    assert plain > 2 * task.bytes_of(TOKENS)
    assert pieces < 6 * task.bytes_of(PIECE) + beside
    assert pieces < plain / 4


def test_scoring_holds_a_few_pieces_at_once() -> None:
    task = make_task(*LARGE, dtype=torch.float32)
    with torch.no_grad():
        held = peak(lambda: projected_losses(*task, piece_bytes=task.bytes_of(PIECE)))
    assert held < 4 * task.bytes_of(PIECE) + 8 * FLOAT * TOKENS < task.bytes_of(TOKENS)


@pytest.mark.parametrize("lower", [True, False])
def test_compiled_it_is_the_same_and_keeps_no_logits(lower: bool) -> None:
    task = make_task(*LARGE, dtype=torch.float32)
    kept: dict[int, int] = {}
    torch.compiler.reset()

    def way(hidden: Tensor, targets: Tensor, smoothing: float) -> TokenLosses:
        return projected_losses(hidden, task.head, targets, smoothing, piece_bytes=task.bytes_of(TOKENS // 4))

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    compiled = torch.compile(way, backend="aot_eager", fullgraph=True)
    # A smoothing that changes becomes a variable of the graph.
    for smoothing in (0.1, 0.2):
        kept.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                found = compiled(task.hidden, task.targets, smoothing)
            expected = way(task.hidden, task.targets, smoothing)
        assert 0 < sum(kept.values()) < task.bytes_of(TOKENS // 4), "of a quarter of the tokens"
        assert_the_same(found, expected, task)


def in_pieces(of_tokens: int, vocabulary: int, element: int = FLOAT) -> Any:
    """`projected_losses` in pieces of so many tokens, in the place of the one that models use."""
    return partial(projected_losses, piece_bytes=of_tokens * vocabulary * element)


ARCHITECTURES = [
    ("gpt2", {}, False),
    ("gpt2", {"tie_embeddings": False}, True),
    ("bert", {}, True),
    ("lstm", {}, False),
]
"""Tied and untied, compiled or not; BERT has a transform before its table, and a bias after it."""


def model_gradients(model: nn.Module, losses: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    losses.mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize(("architecture", "fields", "compiled"), ARCHITECTURES)
def test_models_give_losses_of_targets(
    architecture: str, fields: dict[str, Any], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    model = build(architecture, vocab_size=23, dim=8, depth=1, heads=2, **fields).double()
    tokens = torch.randint(23, (2, 13))
    targets = tokens.roll(1, dims=1).masked_fill(torch.rand(2, 13) < 0.3, IGNORED)
    expected = token_losses(model(tokens), targets, 0.1)
    plain = model_gradients(model, expected)
    monkeypatch.setattr(language_model, "projected_losses", in_pieces(9, 23, DOUBLE))
    torch.compiler.reset()
    call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    found = call(tokens, targets=targets, label_smoothing=0.1)
    torch.testing.assert_close(found.losses, expected)
    torch.testing.assert_close(model_gradients(model, found.losses), plain)
    assert plain.keys() == dict(model.named_parameters()).keys()
    torch.testing.assert_close(found.nats, token_losses(model(tokens), targets).detach())


def test_a_continuation_has_losses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    model = build("gpt2", vocab_size=23, dim=8, depth=2, heads=2).double()
    tokens = torch.randint(23, (2, 13))
    monkeypatch.setattr(language_model, "projected_losses", in_pieces(9, 23, DOUBLE))
    _, state = model.step(tokens[:, :6], model.initial_state(2, capacity=12))
    whole = model(tokens[:, :-1], targets=tokens[:, 1:])
    rest = model(tokens[:, 6:-1], state, targets=tokens[:, 7:])
    torch.testing.assert_close(rest.losses, whole.losses[:, 6:])


def test_models_of_the_transformers_library_do_too() -> None:
    pytest.importorskip("transformers", reason="the library whose models these are is not installed")
    torch.manual_seed(3)
    model = build("hf", vocab_size=23, dim=8, depth=1, heads=2)
    tokens = torch.randint(23, (2, 13))
    found = model(tokens[:, :-1], targets=tokens[:, 1:], label_smoothing=0.1)
    assert torch.equal(found.losses, token_losses(model(tokens[:, :-1]), tokens[:, 1:], 0.1))
    assert torch.equal(found.nats, token_losses(model(tokens[:, :-1]), tokens[:, 1:]))
    assert len(model_gradients(model, found.losses)) == len(list(model.parameters()))


VOCABULARY_OF_BYTES = 258


def large_pieces_and_small(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> tuple[Any, Any]:
    """What a run gives in one piece, and in pieces of five tokens."""
    whole = run()
    monkeypatch.setattr(language_model, "projected_losses", in_pieces(5, VOCABULARY_OF_BYTES))
    return whole, run()


@pytest.mark.parametrize(
    ("architecture", "score"), [("gpt2", score_causal), ("bert", score_masked), ("bert", score_pseudo)]
)
def test_scores_in_pieces(
    architecture: str, score: Callable[..., Any], tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(tiny_corpus, architecture)
    context = make_context(run, tiny_corpus.parent / "scored", World())
    torch.manual_seed(4)
    model, data = context.model_spec.build().eval(), HeldOut(context.prepared, "valid", 16, 4, sequences=6)
    assert model.spec.vocab_size == VOCABULARY_OF_BYTES
    more = (0.3,) if score is score_masked else ()
    whole, small = large_pieces_and_small(monkeypatch, lambda: score(model, data, CPU, *more))
    assert small.nats == pytest.approx(whole.nats, rel=1e-6)
    assert (small.correct, small.tokens, small.bytes) == (whole.correct, whole.tokens, whole.bytes)


def pieced_run(corpus: Path, architecture: str = "gpt2", **training: Any) -> RunSpec:
    asked = {"gradient_accumulation_steps": 2, "learning_rate": 1e-3, "use_tf32": False, "label_smoothing": 0.1}
    return tiny_run(corpus, architecture, model=without_dropout(architecture), training={**asked, **training})


@pytest.mark.parametrize("training", [{}, {"precision": "bf16"}, {"use_gradient_checkpointing": True}])
def test_training_in_pieces_is_the_same_run(
    training: dict[str, Any], tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = iter((tmp_path / "whole", tmp_path / "small"))

    def run() -> list[float]:
        folder = next(folders)
        train(pieced_run(tiny_corpus, **training), folder)
        return losses(folder)

    whole, small = large_pieces_and_small(monkeypatch, run)
    assert small == pytest.approx(whole, rel=1e-3 if "precision" in training else 1e-5)
    assert any(after < before for before, after in pairwise(whole))


def member_in_pieces(*world: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_model, "projected_losses", in_pieces(5, VOCABULARY_OF_BYTES))
        member(*world)


@pytest.mark.parametrize("distribution", ["ddp", "fsdp"])
def test_two_processes_in_pieces_train_the_run_of_one(distribution: str, tiny_corpus: Path, tmp_path: Path) -> None:
    run = pieced_run(tiny_corpus, distribution=distribution, train_steps=4)
    train(run, tmp_path / "one")
    context, port = forking(), free_port()
    worlds = [(run, tmp_path / "two", rank, 2, port, -1) for rank in range(2)]
    members = [context.Process(target=member_in_pieces, args=one) for one in worlds]
    for one in members:
        one.start()
    try:
        assert [status(one) for one in members] == [0, 0]
    finally:
        for one in members:
            one.kill()
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
