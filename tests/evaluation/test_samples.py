"""Text that a model writes: the cached step against plain forward passes, and what cannot be continued."""

from __future__ import annotations

import math

import pytest
import torch

from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.errors import UserError
from lockstep.evaluation.samples import continue_text, repetition, write_sample
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import architectures, build, find
from lockstep.models.sampling import Sampling

TOKENIZER = ByteTokenizer()
GREEDY = Sampling(temperature=0)
CAUSAL = [name for name in architectures() if find(name).causal]


def small_model(architecture: str, max_length: int = 48, end_bias: float = 0.0) -> LanguageModel:
    """Random weights, large enough that greedy text is not one letter repeated."""
    torch.manual_seed(3)
    model = build(architecture, vocab_size=TOKENIZER.vocab_size, dim=16, depth=2, heads=2, max_length=max_length)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
        if end_bias:
            model.embedding.weight[TOKENIZER.eos_id] = model.embedding.weight[TOKENIZER.eos_id] * end_bias
    return model.eval()


@torch.no_grad()
def plain_continuation(model: LanguageModel, prompt: bytes, new_tokens: int) -> str:
    """The whole text through `forward` again for each new token, until the separator."""
    ids = list(prompt) or [TOKENIZER.eos_id]
    written: list[int] = []
    for _ in range(new_tokens):
        latest = int(model(torch.tensor([ids + written]))[0, -1].argmax())
        if latest == TOKENIZER.eos_id:
            break
        written.append(latest)
    return TOKENIZER.decode(written)


@pytest.mark.parametrize("architecture", CAUSAL)
@pytest.mark.parametrize(
    "prompt", ["The cat", "", "zażółć gęślą — 😀", "a"], ids=["plain", "empty", "unicode", "short"]
)
def test_greedy_text_is_the_argmax_of_forward(architecture: str, prompt: str) -> None:
    model = small_model(architecture)
    text = continue_text(model, TOKENIZER, prompt, 12, GREEDY)
    assert text == plain_continuation(model, prompt.encode(), 12)
    assert text


def test_text_ends_at_the_separator() -> None:
    """With a large vector for the separator it is soon the likeliest token."""
    model = small_model("gpt2", end_bias=6.0)
    texts = [continue_text(model, TOKENIZER, chr(97 + i), 20, GREEDY) for i in range(26)]
    assert texts == [plain_continuation(model, bytes([97 + i]), 20) for i in range(26)]
    assert any(len(text.encode()) < 20 for text in texts)


def test_learned_positions_overflow_with_all_numbers() -> None:
    model = small_model("gpt2", max_length=10)
    assert len(plain_continuation(model, b"abcde", 5)) > 0
    continue_text(model, TOKENIZER, "abcde", 5, GREEDY)
    with pytest.raises(UserError, match="6 prompt tokens and 5 new ones exceed the 10 positions"):
        continue_text(model, TOKENIZER, "abcdef", 5, GREEDY)


def test_a_prompt_is_counted_in_tokens_not_characters() -> None:
    with pytest.raises(UserError, match="8 prompt tokens"):
        continue_text(small_model("gpt2", max_length=10), TOKENIZER, "😀😀", 5, GREEDY)


def test_without_learned_positions_there_is_no_limit() -> None:
    model = small_model("transformer++", max_length=4)
    assert continue_text(model, TOKENIZER, "abcdef", 8, GREEDY) == plain_continuation(model, b"abcdef", 8)


def test_a_bidirectional_model_cannot_continue() -> None:
    with pytest.raises(UserError, match="bert is bidirectional"):
        continue_text(small_model("bert"), TOKENIZER, "abc", 4, GREEDY)


def test_bytes_that_are_no_text_are_a_prompt_too() -> None:
    """As a command line hands them on: each such byte is a lone surrogate."""
    model, prompt = small_model("lstm"), b"a\xff\x80b"
    text = continue_text(model, TOKENIZER, prompt.decode("utf-8", "surrogateescape"), 6, GREEDY)
    assert text == plain_continuation(model, prompt, 6)


def test_a_seed_decides_the_text() -> None:
    model = small_model("transformer++")
    texts = [continue_text(model, TOKENIZER, "once", 20, Sampling(seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_the_model_is_left_in_the_mode_it_was_in() -> None:
    model = small_model("gpt2").train()
    continue_text(model, TOKENIZER, "abc", 3, GREEDY)
    assert model.training


@pytest.mark.parametrize("architecture", ["gpt2", "titans-mac", "lstm"])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=1),
        Sampling(temperature=0.3, seed=2),
        Sampling(top_k=3, seed=3),
        Sampling(top_p=0.5, min_p=0.05, seed=4),
    ],
    ids=["plain", "cold", "top_k", "top_p and min_p"],
)
@torch.no_grad()
def test_entropy_is_that_of_each_draw(architecture: str, sampling: Sampling) -> None:
    """Found again token by token, from the probabilities of forward passes."""
    model, prompt = small_model(architecture), "The cat"
    written = write_sample(model, TOKENIZER, prompt, 12, sampling)
    assert written.text == continue_text(model, TOKENIZER, prompt, 12, sampling)
    drawn = model.generate(torch.tensor([list(prompt.encode())]), 12, sampling, stop=TOKENIZER.eos_id)[0].tolist()
    entropies = []
    for place in range(len(prompt), len(drawn)):
        probabilities = (model(torch.tensor([drawn[:place]]))[0, -1].double() / sampling.temperature).softmax(dim=-1)
        entropies.append(entropy_of_kept(sorted(probabilities.tolist(), reverse=True), sampling))
        if drawn[place] == TOKENIZER.eos_id:
            break
    assert written.entropy == pytest.approx(sum(entropies) / len(entropies), rel=1e-3)
    assert written.entropy is not None
    assert 0 < written.entropy < math.log(sampling.top_k or TOKENIZER.vocab_size)


def entropy_of_kept(probabilities: list[float], sampling: Sampling) -> float:
    """From the likeliest down, what the filters leave."""
    kept = probabilities[: sampling.top_k]
    kept = [one for one in kept if one >= (sampling.min_p or 0) * kept[0]]
    if sampling.top_p is not None:
        total = sum(kept)
        kept = [one for place, one in enumerate(kept) if place == 0 or sum(kept[:place]) < sampling.top_p * total]
    shares = [one / sum(kept) for one in kept]
    return -sum(one * math.log(one) for one in shares if one)


def test_a_greedy_choice_has_no_entropy() -> None:
    written = write_sample(small_model("gru"), TOKENIZER, "abc", 8, GREEDY)
    assert written.entropy == 0


def test_nothing_written_has_no_numbers() -> None:
    written = write_sample(small_model("gru"), TOKENIZER, "abc", 0, Sampling(seed=0))
    assert (written.text, written.repetition, written.entropy) == ("", None, None)


def test_a_text_fills_all_positions() -> None:
    model = small_model("gpt2", max_length=10)
    assert write_sample(model.train(), TOKENIZER, "abcde", 5, Sampling(seed=0)).entropy is not None
    assert model.training


@pytest.mark.parametrize(
    ("tokens", "n", "share"),
    [
        ([1, 2, 3], 4, None),
        ([1, 2, 3, 4], 4, 0.0),
        ([1, 1, 1, 1, 1, 1], 4, 2 / 3),
        ([1, 2, 1, 2, 1], 2, 2 / 4),
        ([1, 2, 3, 4, 9, 1, 2, 3, 4], 4, 1 / 6),
    ],
)
def test_repetition_by_hand(tokens: list[int], n: int, share: float | None) -> None:
    assert repetition(tokens, n) == pytest.approx(share)


def test_the_separator_is_no_part_of_the_text() -> None:
    """A model that ends at once has written nothing that could be repeated, though it has drawn a token."""
    model = small_model("gpt2", end_bias=50.0)
    written = [write_sample(model, TOKENIZER, chr(97 + i), 5, Sampling(seed=i)) for i in range(26)]
    ended = [one for one in written if not one.text]
    assert ended
    assert all(one.repetition is None and one.entropy is not None for one in ended)
