"""What a study will take, before anything is spent: sizes, counts, FLOPs, state, time and memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lockstep.config.study import StudySpec
from lockstep.data.stream import TokenStream
from lockstep.models.cost import Cost
from lockstep.models.spec import ModelSpec
from lockstep.models.state import state_bytes
from lockstep.progress import showing
from lockstep.study.contestants import Contestant, contestants
from lockstep.study.estimate import Estimate, estimate
from lockstep.study.evaluations import check_tests
from lockstep.study.match import cost_on_meta
from lockstep.tables import aligned, in_bytes, in_short, in_time
from lockstep.training.distribution import World, find_device
from lockstep.training.learning_rate import cooling_branches
from lockstep.training.plan import make_plan

CONTEXTS = (2**10, 2**12, 2**14, 2**16, 2**18, 2**20)
"""Lengths after which the size of a state is told."""


@dataclass(frozen=True)
class PlannedContestant:
    """One contestant's model and what it takes."""

    contestant: Contestant
    cost: Cost
    """At the training length."""
    estimate: Estimate

    @property
    def name(self) -> str:
        return self.contestant.name

    @property
    def spec(self) -> ModelSpec:
        return self.contestant.spec


@dataclass(frozen=True)
class StudyPlan:
    """All contestants, and what they share."""

    study: StudySpec
    vocab_size: int
    steps: int
    tokens: int
    device: torch.device
    contestants: tuple[PlannedContestant, ...]


def state_after(spec: ModelSpec, length: int) -> int | None:
    """Bytes of the state that one sequence of this length leaves; None where the model cannot go so far."""
    if (spec.learned_positions and length > spec.max_length) or not spec.causal:
        return None
    with torch.device("meta"):
        return state_bytes(spec.build().initial_state(1, capacity=length))


def plan_study(study: StudySpec) -> StudyPlan:
    """Prepare the corpus, solve the sizes, and time a few layers of each contestant."""
    found = contestants(study)
    first = found[0]
    for tokenizer in {one.prepared.tokenizer.fingerprint: one.prepared.tokenizer for one in found}.values():
        check_tests(study.evaluate, study.data, tokenizer)
    run = study.run_of(first.name)
    length, batch = study.data.max_sequence_length, study.data.batch_size
    stream = TokenStream(first.prepared.tokens("train"), length, run.effective_batch_size, run.seed_for_data)
    planned = make_plan(run, stream.windows)
    tokens = planned.steps * planned.tokens_per_step
    device = find_device(study.training.device, World())
    measured = []
    with showing("measuring", "steps", total=len(found)) as progress:
        for one in found:
            needed = estimate(one.spec, study.training, length, batch, tokens, device)
            measured.append(PlannedContestant(one, cost_on_meta(one.spec, length), needed))
            progress.add(1)
    vocabulary = first.prepared.tokenizer.vocab_size
    return StudyPlan(study, vocabulary, planned.steps, tokens, device, tuple(measured))


def plan_table(plan: StudyPlan) -> str:
    """The plan as aligned text."""
    study, length = plan.study, plan.study.data.max_sequence_length
    budget = f"{plan.tokens:,} tokens in {plan.steps:,} steps, sequences of {length:,}"
    sizes = matched_in_words(study) or "sizes as each contestant states them"
    parts = [f"{study.study_name}: {sizes}; {budget}; vocabulary {plan.vocab_size:,}"]
    for title, rows in (
        ("sizes, parameters, and FLOPs per token", size_rows(plan)),
        ("bytes of state per sequence, after so many tokens", state_rows(plan)),
        (f"estimated for training on this machine ({plan.device.type})", estimate_rows(plan)),
    ):
        parts += ["", title, *aligned(rows)]
    return "\n".join(parts)


def matched_in_words(study: StudySpec) -> str | None:
    """What sizes were solved for; None where they are as stated."""
    wanted = study.wanted
    if wanted is None:
        return None
    targets = {one.target for name in study.contestants if (one := study.wanted_of(name)) is not None}
    sizes = " to ".join(in_short(target) for target in sorted({min(targets), max(targets)}))
    return f"matched on {wanted.quantity} at {sizes} within {wanted.tolerance:.2%}"


def size_rows(plan: StudyPlan) -> list[list[str]]:
    head = ["", "dim", "depth", "heads", "hidden", "total", "non-embedding", "in products", "training", "decoding"]
    rows = [head]
    for one in plan.contestants:
        spec, cost = one.spec, one.cost
        heads = str(spec.heads) if spec.has_heads else "-"
        sizes = [str(spec.dim), str(spec.depth), heads, "own" if spec.hidden is None else str(spec.hidden)]
        counts = (cost.parameters, cost.non_embedding_parameters, cost.matrix_parameters)
        flops = [cost.training_flops, cost.decoding_flops] if spec.causal else [cost.training_flops]
        rows.append([one.name, *sizes, *map(in_short, counts), *map(in_short, flops)])
        rows[-1] += ["-"] * (len(head) - len(rows[-1]))
    return rows


def state_rows(plan: StudyPlan) -> list[list[str]]:
    rows = [["", *(f"{length >> 20}M" if length >= 2**20 else f"{length >> 10}K" for length in CONTEXTS)]]
    for one in plan.contestants:
        states = (state_after(one.spec, length) for length in CONTEXTS)
        rows.append([one.name, *("-" if state is None else in_bytes(state) for state in states)])
    return rows


def estimate_rows(plan: StudyPlan) -> list[list[str]]:
    rows = [["", "time", "memory", "of which activations"]]
    for one in plan.contestants:
        needed = one.estimate
        rows.append([one.name, in_time(needed.seconds), in_bytes(needed.bytes), in_bytes(needed.activation_bytes)])
    total = sum(one.estimate.seconds for one in plan.contestants)
    rows.append(["together", in_time(total), "", ""])
    times = total_share(plan)
    if times != 1:
        rows.append([f"all training, {times:.4g} times that", in_time(times * total), "", ""])
    return rows


def total_share(plan: StudyPlan) -> float:
    """How often the budget is spent: repeats with their decay branches, and the trials of tuning."""
    study = plan.study
    branches = cooling_branches(study.training, plan.steps)
    decay = sum(branch.end - branch.start for branch in branches) / plan.steps
    trials = 0.0
    if study.tuning is not None:
        trials = len(study.tuning.trials) * (study.tuning.train_steps or plan.steps) / plan.steps
    return len(study.seeds.pairs) * (1 + decay) + trials
