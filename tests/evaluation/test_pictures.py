"""Heat maps: attention weights that reproduce the attention, writes that are the memory's, influence one by one."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.evaluation.attention_weights import Listener, listening
from lockstep.evaluation.memory_hooks import ablated, neural_memories
from lockstep.evaluation.memory_measures import effective_weights
from lockstep.evaluation.pictures import (
    Picture,
    attention_pictures,
    block_means,
    influence_picture,
    memory_pictures,
    pictures,
    rounded,
)
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import architectures, find
from lockstep.report import results
from tests.evaluation.memory_models import CHUNK, MIRAS, SEGMENT, TITANS, VOCABULARY, random_model, random_tokens

TIME = 21
WITH_MEMORY = [*TITANS, *MIRAS]
WITH_ATTENTION = ["transformer++", "gpt2", "bert", "titans-mac", "titans-mag", "titans-mal"]
OURS = [name for name in architectures() if name != "hf"]


def matrix(picture: Picture) -> Tensor:
    return torch.tensor(picture.values, dtype=torch.float64)


def close_to_rounded(shown: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(shown, exact.double(), rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "added", "scaled", "grouped"])
def test_weights_are_those_of_torch(kind: str) -> None:
    torch.manual_seed(0)
    heads = 2 if kind == "grouped" else 4
    query = torch.randn(2, 4, 5, 8)
    key, value = torch.randn(2, heads, 7, 8), torch.randn(2, heads, 7, 8)
    mask = {"bool": torch.rand(5, 7) > 0.3, "added": torch.randn(2, 1, 5, 7)}.get(kind)
    scale = 0.3 if kind == "scaled" else None
    with Listener() as listener:
        F.scaled_dot_product_attention(
            query, key, value, mask, 0.0, kind == "causal", scale=scale, enable_gqa=kind == "grouped"
        )
    ((call,),) = listener.calls.values()
    torch.testing.assert_close(call.weights.sum(dim=-1), torch.ones(2, 4, 5))
    torch.testing.assert_close(call.weights @ value.repeat_interleave(4 // heads, dim=1), call.output)


@torch.no_grad()
@pytest.mark.parametrize("architecture", [*WITH_ATTENTION, "samba", "gated-deltanet-h"])
def test_every_call_of_a_model_is_explained_by_its_weights(architecture: str) -> None:
    model, tokens = random_model(architecture), random_tokens(1, TIME)
    plain = model(tokens)
    with listening(model) as calls:
        assert torch.equal(model(tokens), plain)
    assert calls
    for call in (call for layer in calls.values() for call in layer):
        torch.testing.assert_close(call.weights @ call.value, call.output)
    with listening(model) as calls:
        pass
    model(tokens)
    assert not calls, "nobody listens any more"


@pytest.mark.parametrize("architecture", WITH_ATTENTION)
def test_rows_of_attention_sum_to_one(architecture: str) -> None:
    model = random_model(architecture, depth=3)
    found = attention_pictures(model, random_tokens(1, TIME))
    assert [one.layer for one in found] == ["layer 1 of 3", "layer 3 of 3"]
    for one in found:
        torch.testing.assert_close(matrix(one).sum(dim=1), torch.ones(len(one.values)).double(), rtol=1e-2, atol=0)
    assert len(attention_pictures(random_model(architecture, depth=1), random_tokens(1, TIME))) == 1


def test_attention_of_one_layer_by_hand() -> None:
    model, tokens = random_model("transformer++", depth=1), random_tokens(1, TIME)
    (found,) = attention_pictures(model, tokens)
    block = next(iter(model.layers))
    attention = block.mixer
    queries, keys, _ = attention.apart(attention.qkv(block.before(model.embed(tokens, None))), torch.arange(TIME)[None])  # type: ignore[operator] # attention, as its architecture says
    expected = torch.zeros(TIME, TIME, dtype=torch.float64)
    for row in range(TIME):
        scores = [queries[0, :, row] * keys[0, :, column] for column in range(row + 1)]
        raised = torch.stack([score.sum(dim=-1) / math.sqrt(8) for score in scores], dim=-1).exp()
        expected[row, : row + 1] = (raised / raised.sum(dim=-1, keepdim=True)).mean(dim=0)
    close_to_rounded(matrix(found), expected.detach())
    assert found.title == "attention weights, mean over 2 heads"


@pytest.mark.parametrize("persistent", [0, 3])
def test_windows_are_put_together_again(persistent: int) -> None:
    """Blocks of a windowed attention are the same attention as each token's own, seen when it steps."""
    window = 6
    model = random_model("titans-mag", depth=1, window=window, persistent=persistent, use_memory=False)
    tokens = random_tokens(1, TIME)
    (found,) = attention_pictures(model, tokens)
    shown = matrix(found)
    expected, state = torch.zeros(TIME, persistent + TIME, dtype=torch.float64), model.initial_state(1, capacity=TIME)
    for place in range(TIME):
        with torch.no_grad(), Listener() as listener:
            _, state = model.step(tokens[:, place : place + 1], state)
        ((call,),) = listener.calls.values()
        weights = call.weights.mean(dim=1)[0, 0].double()
        expected[place, :persistent] = weights[:persistent]
        for seen in range(max(0, place + 1 - window), place + 1):
            # Of a cache, the persistent tokens come first, then slots that the tokens fill in turn.
            expected[place, persistent + seen] = weights[persistent + seen % window]
    close_to_rounded(shown, expected)


def test_a_segment_has_persistent_tokens_reads_and_its_own() -> None:
    model = random_model("titans-mac", depth=1, persistent=3)
    (found,) = attention_pictures(model, random_tokens(1, 2 * SEGMENT + 3))
    assert found.rows == "token of segment 2"
    assert (
        found.columns
        == f"3 persistent tokens, then {SEGMENT} reads of the memory, then {SEGMENT} tokens of the segment"
    )
    shown = matrix(found)
    assert shown.shape == (SEGMENT, 3 + 2 * SEGMENT)
    for part in (shown[:, 3 : 3 + SEGMENT], shown[:, 3 + SEGMENT :]):
        assert bool((part.triu(1) == 0).all())
        assert bool((part.tril() + torch.ones(SEGMENT, SEGMENT).triu(1) > 0).all())
    (alone,) = attention_pictures(random_model("titans-mac", depth=1, use_memory=False), random_tokens(1, 5))
    assert alone.columns == "4 persistent tokens, then 5 tokens of the segment"


def test_no_attention_no_picture() -> None:
    for architecture in ("gru", "mamba2", "titans-lmm"):
        assert attention_pictures(random_model(architecture), random_tokens(1, TIME)) == ()
    assert attention_pictures(random_model("titans-mag", use_flex_attn=True).float(), random_tokens(1, TIME)) == ()


@torch.no_grad()
@pytest.mark.parametrize("architecture", WITH_MEMORY)
def test_writes_are_those_of_the_state(architecture: str) -> None:
    model, tokens = random_model(architecture, depth=3), random_tokens(1, 4 * CHUNK + 1)
    found = memory_pictures(model, tokens)
    assert [one.layer for one in found] == ["layer 1 of 3", "layer 3 of 3"]
    before, after = (
        flat_memories(state)
        for state in (model.initial_state(1), model.step(tokens, model.initial_state(1, capacity=99))[1])
    )
    spec = next(iter(neural_memories(model).values())).spec
    for picture, layer in zip(found, (0, -1), strict=True):
        old, new = (effective_weights(states[layer], spec)[0][0, 0] for states in (before, after))
        close_to_rounded(matrix(picture), (new - old).abs())
        assert bool((matrix(picture) > 0).any())
    with ablated(model, "frozen"):
        assert all(value == 0 for one in memory_pictures(model, tokens) for row in one.values for value in row)


def flat_memories(state: dict[str, Tensor]) -> list[tuple[Tensor, ...]]:
    """The weights that each layer's memory holds."""
    found = []
    for layer in state["layers"]:
        inner = layer.memory
        while hasattr(inner, "memory"):
            inner = inner.memory
        found.append(inner.weights)
    return found


@pytest.mark.parametrize("shape", [(5, 7), (48, 48), (49, 96), (97, 3), (200, 130)])
def test_blocks_are_means(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).random(shape)
    shown, (tall, wide) = block_means(values)
    assert max(shown.shape) <= 48
    assert (tall, wide) == tuple(math.ceil(length / 48) for length in shape)
    for row in range(shown.shape[0]):
        for column in range(shown.shape[1]):
            block = values[row * tall : (row + 1) * tall, column * wide : (column + 1) * wide]
            assert shown[row, column] == pytest.approx(block.mean())


def one_at_a_time(model: LanguageModel, tokens: Tensor) -> Tensor:
    """[outputs, replaced] by plain loops."""
    row = tokens[0].tolist()
    plain = model(tokens)[0].log_softmax(dim=-1)
    changes = torch.zeros(len(row), len(row), dtype=torch.float64)
    for place, token in enumerate(row):
        other = next(one for one in row[place:] + row[:place] if one != token)
        replaced = torch.tensor([[*row[:place], other, *row[place + 1 :]]])
        for output, said in enumerate(model(replaced)[0].log_softmax(dim=-1)):
            changes[output, place] = (said - plain[output]).norm()
    return changes / changes.max()


@torch.no_grad()
@pytest.mark.parametrize("architecture", OURS)
def test_influence_is_found_one_at_a_time(architecture: str) -> None:
    model, tokens = random_model(architecture), random_tokens(1, TIME)
    found = matrix(influence_picture(model, tokens))
    exact = one_at_a_time(model, tokens)
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-9)
    assert found.max() == 1
    later = found.triu(1)
    assert bool((later == 0).all()) == find(architecture).causal
    assert bool((found.diagonal() > 0).all())


def test_influence_ends_where_positions_do() -> None:
    assert len(influence_picture(random_model("gpt2", max_length=9), random_tokens(1, TIME)).values) == 9
    assert len(influence_picture(random_model("gru"), random_tokens(1, 60)).values) == 48


def test_a_text_of_one_token_is_replaced_by_another_of_the_vocabulary() -> None:
    model = random_model("gru")
    found = influence_picture(model, torch.full((1, 4), VOCABULARY - 1))
    assert matrix(found).max() == 1


def test_four_digits() -> None:
    assert rounded(torch.tensor([[1 / 3, 12345.678]], dtype=torch.float64)) == ((0.3333, 12350.0),)


@pytest.mark.parametrize("architecture", OURS)
def test_pictures_are_the_reports(architecture: str) -> None:
    model, tokens = random_model(architecture), random_tokens(1, TIME)
    model.train()
    before = model.state_dict()
    made = pictures(model, tokens)
    assert model.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert {field.name for field in fields(Picture)} == set(results.Picture.model_fields)
    for one in made:
        assert results.Picture.model_validate_json(json.dumps(one.as_dict())).values == one.values
    kinds = [one.kind for one in made]
    assert kinds.count("influence") == 1
    assert ("memory" in kinds) == bool(neural_memories(model))


def test_a_model_that_has_diverged_has_no_pictures() -> None:
    model = random_model("titans-mag")
    with torch.no_grad():
        model.embedding.weight.fill_(math.nan)
    assert pictures(model, random_tokens(1, TIME)) == ()
