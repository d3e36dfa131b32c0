"""Text that a model writes: the cached step against plain forward passes, and what cannot be continued."""

from __future__ import annotations

import pytest
import torch

from lockstep.data.byte_tokenizer import ByteTokenizer
from lockstep.errors import UserError
from lockstep.evaluation.samples import continue_text
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
