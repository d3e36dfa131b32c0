"""Our models in the LM Evaluation Harness (lm-eval), so that any of its tasks can be asked of them.

results = lm_eval.simple_evaluate(model=LockstepLM(model, tokenizer), tasks=["piqa"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lockstep.data.tokenizers import Tokenizer
from lockstep.errors import UserError
from lockstep.evaluation.inference import longest
from lockstep.evaluation.likelihood import (
    BATCH,
    check_causal,
    encode_request,
    encode_text,
    log_likelihoods,
    rolling_log_likelihoods,
)
from lockstep.evaluation.samples import prompt_ids, readable
from lockstep.evaluation.timing import in_mode
from lockstep.models.language_model import LanguageModel
from lockstep.models.sampling import Sampling, draw
from lockstep.models.state import State, stack
from lockstep.progress import showing

try:
    from lm_eval.api.model import LM
except ImportError:
    raise UserError("lm-eval: the library is not installed; pip install 'lockstep-lm[eval]'") from None

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

NEW_TOKENS = 256
"""Written where a task does not say how many."""
COUNTS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What tasks call the number of tokens to be written; the first that is given counts."""
FILTERS = ("top_k", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class Writing:
    """How a continuation is written: what ends it, and how its tokens are drawn."""

    until: tuple[str, ...]
    tokens: int
    sampling: Sampling


class LockstepLM(LM):  # type: ignore[misc] # the library is not typed
    """The three questions that the harness asks of a model."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, batch_size: int = BATCH) -> None:
        super().__init__()
        check_causal(model)
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size

    @property
    def device(self) -> torch.device:
        return self.model.embedding.weight.device

    @property
    def tokenizer_name(self) -> str:
        """Equal names mean equal tokens, where the harness keeps requests."""
        return f"{self.tokenizer.kind}-{self.tokenizer.fingerprint[:16]}"

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        """Of each continuation after its context, and whether it is the model's own."""
        pairs = [request.args for request in requests]
        encoded = [encode_request(self.tokenizer, context, continuation) for context, continuation in pairs]
        with showing("likelihoods", "share") as progress:
            found = log_likelihoods(self.model, encoded, self.batch_size, progress.reach)
        answers = [(one.log_probability, one.greedy) for one in found]
        self._remember("loglikelihood", pairs, answers)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """Of each whole text."""
        encoded = [encode_text(self.tokenizer, request.args[0]) for request in requests]
        with showing("likelihoods of texts", "share") as progress:
            found = rolling_log_likelihoods(self.model, encoded, self.tokenizer.eos_id, self.batch_size, progress.reach)
        answers = [one.log_probability for one in found]
        self._remember("loglikelihood_rolling", [request.args for request in requests], answers)
        return answers

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """The continuation of each context, up to the first of its stop sequences or the separator."""
        alike: dict[Writing, list[tuple[int, list[int]]]] = {}
        for place, request in enumerate(requests):
            context, options = request.args
            writing = read_options(options)
            ids = fitting_prompt(prompt_ids(self.tokenizer, context), writing, longest(self.model))
            alike.setdefault(writing, []).append((place, ids))
        answers: dict[int, str] = {}
        with showing("continuations", "steps", len(requests)) as progress, in_mode(self.model, training=False):
            for writing, prompts in alike.items():
                prompts.sort(key=lambda prompt: len(prompt[1]), reverse=True)
                for start in range(0, len(prompts), self.batch_size):
                    some = prompts[start : start + self.batch_size]
                    texts = write_until(self.model, self.tokenizer, [ids for _, ids in some], writing)
                    answers.update(zip([place for place, _ in some], texts, strict=True))
                    progress.add(len(some))
        written = [answers[place] for place in range(len(requests))]
        self._remember("generate_until", [request.args for request in requests], written)
        return written

    def _remember(self, question: str, asked: Sequence[Any], answers: Sequence[Any]) -> None:
        """The harness keeps answers where its user wants that."""
        for arguments, answer in zip(asked, answers, strict=True):
            self.cache_hook.add_partial(question, arguments, answer)


def read_options(options: Mapping[str, Any]) -> Writing:
    """A task's generation_kwargs; without a temperature above 0 the likeliest token is taken."""
    left = dict(options)
    until = left.pop("until", None) or []
    counts = [left.pop(name, None) for name in COUNTS]
    sampled, temperature = left.pop("do_sample", None), float(left.pop("temperature", None) or 0)
    if sampled and temperature == 0:
        raise UserError("generation_kwargs: do_sample needs a temperature above 0; add one or remove do_sample")
    filters = {name: left.pop(name, None) for name in FILTERS}
    if left.pop("num_beams", 1) != 1:
        raise UserError("generation_kwargs: num_beams is not supported; remove it")
    if left:
        known = ("until", *COUNTS, "do_sample", "temperature", *FILTERS)
        raise UserError(f"generation_kwargs: unknown key {min(left)}; valid: {', '.join(known)}")
    return Writing(
        tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop),
        next((int(count) for count in counts if count is not None), NEW_TOKENS),
        Sampling(temperature if sampled is not False else 0.0, **filters),
    )


def fitting_prompt(ids: list[int], writing: Writing, positions: int | None) -> list[int]:
    """The last tokens of a prompt, where there are not positions for all of it and what is to be written."""
    if positions is None:
        return ids
    if writing.tokens >= positions:
        raise UserError(
            f"generation_kwargs: {writing.tokens} new tokens leave no room for a prompt in the {positions} positions"
            f" of the model; lower max_gen_toks"
        )
    return ids[-(positions - writing.tokens) :]


@torch.inference_mode()
def write_until(
    model: LanguageModel, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], writing: Writing
) -> list[str]:
    """The continuations of a batch of prompts, which may differ in length: each has a state at its own position."""
    logits, state = _read_each(model, prompts, writing.tokens)
    written: list[list[int]] = [[] for _ in prompts]
    unfinished = set(range(len(prompts)))
    for left in reversed(range(writing.tokens)):
        latest = draw(logits, writing.sampling, None)
        for row in list(unfinished):
            token = int(latest[row])
            written[row].append(token)
            text = readable(tokenizer, written[row])
            if token == tokenizer.eos_id or before_stop(text, writing.until) != text:
                unfinished.remove(row)
        if not unfinished or not left:
            break
        following, state = model.step(latest, state)
        logits = following[:, -1]
    return [before_stop(readable(tokenizer, ids), writing.until) for ids in written]


def _read_each(model: LanguageModel, prompts: Sequence[Sequence[int]], more: int) -> tuple[Tensor, State]:
    """The logits [batch, vocab] and the stacked states after prompts of any lengths, with room for `more` tokens."""
    device = model.embedding.weight.device
    room = max(map(len, prompts)) + more
    last, states = [], []
    for ids in prompts:
        logits, state = model.step(torch.tensor([ids], device=device), model.initial_state(1, capacity=room))
        # Copied, so that the logits of the whole prompt are let go.
        last.append(logits[:, -1].clone())
        states.append(state)
    return torch.cat(last), stack(states)


def before_stop(text: str, until: Sequence[str]) -> str:
    """The text up to where the first stop sequence begins."""
    for stop in until:
        text = text.partition(stop)[0]
    return text
