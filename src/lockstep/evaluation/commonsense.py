"""Zero-shot accuracy on questions, and the perplexity of last words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.config.commonsense import CommonsenseName
from lockstep.data.commonsense import Choice, read_commonsense
from lockstep.data.tokenizers import Tokenizer
from lockstep.evaluation.inference import longest
from lockstep.evaluation.likelihood import BATCH, Likelihood, encode_request, log_likelihoods
from lockstep.models.language_model import LanguageModel
from lockstep.progress import showing

BY_LENGTH: frozenset[CommonsenseName] = frozenset({"hellaswag", "arc_easy", "arc_challenge"})
"""Sets whose answers differ much in length, so that a mean per character is reported too."""


def score_commonsense(
    model: LanguageModel,
    tokenizer: Tokenizer,
    sets: Sequence[CommonsenseName],
    examples: int | None = None,
    batch_size: int = BATCH,
) -> list[dict[str, Any]]:
    """What each set measures, in the order of the sets: set, metric, value, standard_error, examples and chance.

    A set with an answer that the model has no positions for is left out.
    """
    results, most = [], longest(model)
    for name, choices in read_commonsense(sets, examples).items():
        requests = [encode_request(tokenizer, *pair) for choice in choices for pair in choice.pairs]
        if most is not None and max(len(continuation) for _, continuation in requests) > most:
            continue
        with showing(name, "share") as progress:
            likelihoods = log_likelihoods(model, requests, batch_size, progress.reach)
        results += measures(name, choices, likelihoods)
    return results


def measures(
    name: CommonsenseName, choices: Sequence[Choice], likelihoods: Sequence[Likelihood]
) -> list[dict[str, Any]]:
    """The results of one set, from the likelihood of each pair of each of its examples."""
    answers = iter(likelihoods)
    found = [[next(answers) for _ in choice.pairs] for choice in choices]
    if name == "lambada_openai":
        return _last_words(name, [one for (one,) in found])
    chance = float(np.mean([1 / len(set(choice.pairs)) for choice in choices]))
    hits = [_chosen(one) == choice.right for choice, one in zip(choices, found, strict=True)]
    results = [_result(name, "accuracy", *_mean(hits), len(choices), chance)]
    if name in BY_LENGTH:
        hits = [_chosen(one, choice) == choice.right for choice, one in zip(choices, found, strict=True)]
        results.append(_result(name, "accuracy by length", *_mean(hits), len(choices), chance))
    return results


def _last_words(name: CommonsenseName, found: Sequence[Likelihood]) -> list[dict[str, Any]]:
    """Perplexity per word, not per token; its standard error is that of the mean's, carried through the exponential."""
    nats, error = _mean([-one.log_probability for one in found])
    perplexity = math.exp(min(nats, 700.0))
    return [
        _result(name, "perplexity", perplexity, None if error is None else perplexity * error, len(found), None),
        _result(name, "accuracy", *_mean([one.greedy for one in found]), len(found), None),
    ]


def _chosen(found: Sequence[Likelihood], per_character_of: Choice | None = None) -> int:
    """The likeliest pair, in all or per character of its answer; of equals the first.

    The space before an answer is not counted, as the LM Evaluation Harness does not.
    """
    scores = np.array([one.log_probability for one in found])
    if per_character_of is not None:
        scores = scores / [len(answer) - 1 for answer in per_character_of.continuations]
    return int(scores.argmax())


def _mean(values: Sequence[float]) -> tuple[float, float | None]:
    """With its standard error, which one value alone does not have."""
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return float(np.mean(values)), error


def _result(
    name: CommonsenseName, metric: str, value: float, error: float | None, examples: int, chance: float | None
) -> dict[str, Any]:
    """`chance` is what guessing gives: None where there is nothing to choose from."""
    return {
        "set": name,
        "metric": metric,
        "value": value,
        "standard_error": error,
        "examples": examples,
        "chance": chance,
    }
