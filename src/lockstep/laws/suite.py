"""All laws, and the verdicts on an architecture."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from lockstep.errors import UserError
from lockstep.laws.batches import batch_independence
from lockstep.laws.building import common_fields, same_seed_same_model
from lockstep.laws.causality import no_future_leak
from lockstep.laws.costs import decoding_flops, parameter_counts, training_flops
from lockstep.laws.generation import dropout_is_off, greedy_generation
from lockstep.laws.gradients import checkpointed_gradients, every_gradient
from lockstep.laws.law import Law, LawBroken, cannot_step, sees_everything
from lockstep.laws.learning import noise_is_unlearnable, pattern_is_learnable
from lockstep.laws.positions import mixed_positions, states_reset, states_saved, states_selected
from lockstep.laws.precision import bfloat16_is_finite
from lockstep.laws.reach import reach
from lockstep.laws.saving import save_and_load
from lockstep.laws.states import state_shapes, state_size
from lockstep.laws.stepping import forward_continues, state_untouched, steps_equal_forward
from lockstep.laws.subject import Subject, subjects

LAWS: tuple[Law, ...] = (
    Law("common-fields", "vocab_size, dim, depth and heads are enough to build it", common_fields),
    Law("same-seed", "one seed gives one model", same_seed_same_model),
    Law("no-future-leak", "no output depends on a later token, at any cut", no_future_leak),
    Law("batch-independence", "no sample depends on its neighbours in the batch", batch_independence),
    Law("step-equals-forward", "step over any split equals forward", steps_equal_forward, cannot_step),
    Law("forward-continues", "forward from a state equals the uninterrupted sequence", forward_continues, cannot_step),
    Law("state-untouched", "step leaves the state it was given as it was", state_untouched, cannot_step),
    Law("mixed-positions", "samples of a batch may stand at different positions", mixed_positions, cannot_step),
    Law("states-selected", "states can be selected and branched", states_selected, cannot_step),
    Law("states-reset", "samples of a batch can start anew", states_reset, cannot_step),
    Law("states-saved", "a state survives a file", states_saved, cannot_step),
    Law("state-shapes", "a state keeps its shapes and dtypes", state_shapes, cannot_step),
    Law("state-bytes", "a state has the bytes that cost says", state_size),
    Law("reach", "a token reaches exactly as far as declared", reach, sees_everything),
    Law("parameters", "cost counts the parameters", parameter_counts),
    Law("training-flops", "cost counts the training FLOPs within 1 %", training_flops),
    Law("decoding-flops", "cost counts a decoded token's FLOPs within 1 %", decoding_flops, cannot_step),
    Law("every-gradient", "every parameter gets a gradient", every_gradient),
    Law("gradient-checkpointing", "recomputing activations gives the same gradients", checkpointed_gradients),
    Law("bfloat16", "bfloat16 is finite, with and without autocast", bfloat16_is_finite),
    Law("save-and-load", "a saved model gives the same logits, bit for bit", save_and_load),
    Law("noise-unlearnable", "nothing is learned from noise: labels are not seen", noise_is_unlearnable),
    Law("pattern-learnable", "a plain pattern is learned: labels are the right ones", pattern_is_learnable),
    Law("greedy-generation", "greedy generation is the argmax of forward", greedy_generation, cannot_step),
    Law("dropout-off", "dropout acts in training only", dropout_is_off),
)

Outcome = Literal["passed", "broken", "not applicable"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one law says about one subject."""

    law: Law
    subject: Subject
    outcome: Outcome
    message: str = ""
    """What was seen, or why the law does not apply; one line."""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Not broken: a law that does not apply stands in nobody's way."""
        return self.outcome != "broken"


def law_named(name: str) -> Law:
    return next(law for law in LAWS if law.name == name)


def check(name: str) -> Iterator[Verdict]:
    """Verdicts on every variant of an architecture, one by one; `file.py:name` brings an outsider's."""
    return check_subjects(subjects(name))


def check_subjects(judged: Iterable[Subject]) -> Iterator[Verdict]:
    for subject in judged:
        for law in LAWS:
            yield judge(law, subject)


def judge(law: Law, subject: Subject) -> Verdict:
    """One verdict, whatever happens inside the law."""
    reason = law.exempt(subject)
    if reason is not None:
        return Verdict(law, subject, "not applicable", reason)
    began = time.perf_counter()
    message = None
    try:
        with undisturbed():
            law.function(subject)
    except (LawBroken, UserError) as broken:
        message = in_one_line(str(broken))
    except Exception as error:
        message = in_one_line(f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - began
    return Verdict(law, subject, "passed" if message is None else "broken", message or "", seconds)


@contextmanager
def undisturbed() -> Iterator[None]:
    """The same conditions for every law, and the caller's own restored afterwards.

    One thread, because the models are so small that a second one costs more than it brings.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(threads)


def in_one_line(text: str, limit: int = 300) -> str:
    words = " ".join(text.split())
    return words if len(words) <= limit else words[: limit - 1] + "…"
