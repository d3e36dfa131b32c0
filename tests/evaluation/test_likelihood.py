"""Likelihoods of continuations: cached prefixes against plain forward passes, and what probabilities must obey."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.errors import UserError
from lockstep.evaluation.likelihood import (
    Likelihood,
    Request,
    encode_request,
    log_likelihoods,
    rolling_log_likelihoods,
    windows,
)
from lockstep.laws.subject import randomise
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import build
from lockstep.models.sampling import Sampling

VOCABULARY = 19
ARCHITECTURES = ("titans-mac", "mamba2", "gated-deltanet", "gpt2", "transformer++", "lstm")
NETWORKS = ("llama", "gpt2", "mamba", "openai-gpt")
"""Of the transformers library: the last one has no state to go on from."""


def model_of(name: str, dtype: torch.dtype = torch.float64, **fields: Any) -> LanguageModel:
    """A small model, every parameter random."""
    sizes = {"vocab_size": VOCABULARY, "dim": 16, "depth": 2, "heads": 2, "max_length": 64}
    model = build(name, **(sizes | fields))
    randomise(model, seed=1)
    return model.to(dtype).eval()


def network_of(kind: str) -> LanguageModel:
    pytest.importorskip("transformers", reason="the library whose models these are is not installed")
    return model_of("hf", hf={"config": {"model_type": kind}})


def drawn(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (length,), generator=generator).tolist()


def questions() -> list[Request]:
    """Contexts of several lengths, shared and not, each with continuations of several lengths."""
    requests: list[Request] = []
    for number, length in enumerate((1, 5, 9, 9, 17, 23, 23)):
        context = drawn(length, number)
        endings = [drawn(1 + (number + more) % 5, 100 + 10 * number + more) for more in range(1 + number % 4)]
        requests += [(context, ending) for ending in endings]
    requests.append((drawn(17, 4), drawn(3, 999)))
    return requests[::2] + requests[1::2]


@torch.no_grad()
def by_itself(model: LanguageModel, context: Sequence[int], continuation: Sequence[int]) -> Likelihood:
    """One plain forward pass: no batch, no state, no padding."""
    logits = model(torch.tensor([[*context, *continuation]]))[0, len(context) - 1 : -1].double()
    wanted = torch.tensor(continuation)
    log_probabilities = logits.log_softmax(dim=-1)[torch.arange(len(wanted)), wanted]
    return Likelihood(float(log_probabilities.sum()), bool((logits.argmax(dim=-1) == wanted).all()), len(wanted))


def assert_same(actual: Sequence[Likelihood], expected: Sequence[Likelihood], within: float = 1e-9) -> None:
    assert [(one.greedy, one.tokens) for one in actual] == [(one.greedy, one.tokens) for one in expected]
    assert [one.log_probability for one in actual] == pytest.approx(
        [one.log_probability for one in expected], rel=0, abs=within
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_cached_prefixes_change_nothing(name: str, batch_size: int) -> None:
    model = model_of(name)
    assert_same(
        log_likelihoods(model, questions(), batch_size), [by_itself(model, *request) for request in questions()]
    )


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_of_the_library_are_scored_alike_with_a_state_or_without(kind: str) -> None:
    model = network_of(kind)
    # The library's scan works in single precision, whatever the model's is.
    within = 1e-5 if kind == "mamba" else 1e-9
    expected = [by_itself(model, *request) for request in questions()]
    assert_same(log_likelihoods(model, questions(), 5), expected, within)


def tokens_read(model: LanguageModel, requests: Sequence[Request], batch_size: int) -> int:
    count = 0

    def add(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        nonlocal count
        count += inputs[0].numel()

    hook = model.embedding.register_forward_pre_hook(add)
    try:
        log_likelihoods(model, requests, batch_size)
    finally:
        hook.remove()
    return count


@pytest.mark.parametrize("batch_size", [2, 8, 64])
def test_a_shared_context_is_read_once(batch_size: int) -> None:
    """All but its last token, whose logits each continuation begins with."""
    requests = [(drawn(40, 0), drawn(3, 1 + number)) for number in range(8)]
    assert tokens_read(model_of("transformer++"), requests, batch_size) == 39 + 8 * 3


def test_contexts_that_are_not_shared_are_read_with_their_continuations() -> None:
    requests = [(drawn(20, number), drawn(3, 100 + number)) for number in range(8)]
    assert tokens_read(model_of("transformer++"), requests, 4) == 8 * 22


@pytest.mark.parametrize("name", ["titans-mac", "gpt2"])
def test_the_probabilities_of_all_next_tokens_sum_to_one(name: str) -> None:
    model, context = model_of(name), drawn(11, 3)
    scores = log_likelihoods(model, [(context, [token]) for token in range(VOCABULARY)])
    assert sum(math.exp(one.log_probability) for one in scores) == pytest.approx(1, abs=1e-12)
    assert sum(one.greedy for one in scores) == 1
    assert max(scores, key=lambda one: one.log_probability).greedy


def test_a_likelihood_is_the_product_of_its_parts() -> None:
    model, (context, first, second) = model_of("mamba2"), (drawn(7, 0), drawn(4, 1), drawn(5, 2))
    whole, head, tail = log_likelihoods(model, [(context, first + second), (context, first), (context + first, second)])
    assert whole.log_probability == pytest.approx(head.log_probability + tail.log_probability, abs=1e-10)


def test_what_the_model_would_say_is_greedy() -> None:
    model, context = model_of("gated-deltanet"), drawn(9, 5)
    said = model.generate(torch.tensor([context]), 6, Sampling(temperature=0))[0, len(context) :].tolist()
    other = [*said[:3], (said[3] + 1) % VOCABULARY, *said[4:]]
    assert [one.greedy for one in log_likelihoods(model, [(context, said), (context, other)])] == [True, False]


def test_too_long_a_request_keeps_its_last_tokens() -> None:
    model = model_of("gpt2", max_length=16)
    context, ending = drawn(30, 0), drawn(4, 1)
    long, kept = log_likelihoods(model, [(context, ending), (context[-13:], ending)])
    assert long == kept
    with pytest.raises(UserError, match="a continuation of 17 tokens exceeds the 16 positions"):
        log_likelihoods(model, [(context, drawn(17, 2))])


def test_the_longest_request_that_fits_is_not_cut() -> None:
    """Sixteen tokens are read; the seventeenth is only predicted."""
    model = model_of("gpt2", max_length=16)
    context, ending = drawn(13, 0), drawn(4, 1)
    (score,) = log_likelihoods(model, [(context, ending)])
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *ending[:-1]]]))[0, 12:]
    expected = logits.log_softmax(dim=-1)[torch.arange(4), torch.tensor(ending)].sum()
    assert score.log_probability == pytest.approx(float(expected), abs=1e-10)


def test_sums_are_not_rounded_as_the_model_is() -> None:
    model = model_of("transformer++", torch.bfloat16)
    context, ending = drawn(9, 0), drawn(6, 1)
    (score,) = log_likelihoods(model, [(context, ending)])
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *ending[:-1]]]))[0, 8:].double()
    expected = logits.log_softmax(dim=-1)[torch.arange(6), torch.tensor(ending)].sum()
    assert score.log_probability == pytest.approx(float(expected), abs=1e-5)


def test_a_model_in_training_is_scored_without_dropout_and_goes_on_training() -> None:
    model = model_of("gpt2", dropout=0.5)
    expected = log_likelihoods(model, questions())
    model.train()
    assert log_likelihoods(model, questions()) == expected
    assert model.training


def test_nothing_to_say_is_certain() -> None:
    model = model_of("gpt2")
    assert log_likelihoods(model, []) == []
    assert log_likelihoods(model, [(drawn(4, 0), [])]) == [Likelihood(0.0, True, 0)]
    assert rolling_log_likelihoods(model, [[]], separator=0) == [Likelihood(0.0, True, 0)]


def test_an_empty_context_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        log_likelihoods(model_of("gpt2"), [([], [1])])


def test_a_bidirectional_model_is_refused() -> None:
    model = model_of("bert")
    with pytest.raises(UserError, match="bert is bidirectional"):
        log_likelihoods(model, [([1], [2])])
    with pytest.raises(UserError, match="bert is bidirectional"):
        rolling_log_likelihoods(model, [[1]], separator=0)


def test_progress_ends_with_all_of_it() -> None:
    shares: list[float] = []
    log_likelihoods(model_of("lstm"), questions(), 3, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1


# Texts as tokens.


@pytest.mark.parametrize(
    ("context", "continuation", "expected"),
    [
        ("ab", " cd", ("ab", " cd")),
        ("ab ", "cd", ("ab", " cd")),
        ("ab \n", "cd", ("ab", " \ncd")),
        ("é", "ü", ("é", "ü")),
    ],
)
def test_spaces_go_with_the_word_that_follows(context: str, continuation: str, expected: tuple[str, str]) -> None:
    before, after = encode_request(ByteTokenizer(), context, continuation)
    assert (bytes(before).decode(), bytes(after).decode()) == expected


@pytest.mark.parametrize("context", ["", "  "])
def test_an_empty_context_is_the_beginning_of_a_document(context: str) -> None:
    tokenizer = ByteTokenizer()
    assert encode_request(tokenizer, context, "cd") == ([tokenizer.eos_id], list((context + "cd").encode()))


# Whole texts.


def test_windows_are_those_of_the_harness() -> None:
    utils = pytest.importorskip("lm_eval.utils", reason="the eval extra is not installed")
    for length in (1, 2, 5, 8):
        for size in range(20):
            text = drawn(size, size)
            rolled = utils.get_rolling_token_windows(text, prefix_token=99, max_seq_len=length, context_len=1)
            assert list(windows(text, 99, length)) == [utils.make_disjoint_window(pair) for pair in rolled]


@pytest.mark.parametrize("size", [1, 7, 16, 17, 32, 45])
def test_limited_positions_predict_every_token_once(size: int) -> None:
    model, text = model_of("gpt2", max_length=16), drawn(size, size)
    cut = list(windows(text, 0, 16))
    assert [token for _, predicted in cut for token in predicted] == text
    assert all(len(context) + len(predicted) <= 17 for context, predicted in cut)
    (score,) = rolling_log_likelihoods(model, [text], separator=0, batch_size=2)
    assert score.log_probability == pytest.approx(sum(one.log_probability for one in log_likelihoods(model, cut)))
    assert score.tokens == size


@pytest.mark.parametrize("name", ["titans-mac", "mamba2"])
def test_unlimited_positions_see_the_whole_text(name: str) -> None:
    """Short texts in a batch, and one that is longer than a piece."""
    model = model_of(name)
    texts = [drawn(5, 0), drawn(1100, 1), drawn(30, 2)]
    expected = [by_itself(model, [0], text) for text in texts]
    assert_same(rolling_log_likelihoods(model, texts, separator=0), expected, within=1e-7)
