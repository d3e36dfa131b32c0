"""A study that never ran: complete, plausible, and the same every time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any, Literal, get_args

import numpy as np

from lockstep.report.results import (
    AtContext,
    AtLength,
    AuditResult,
    Band,
    BatchTime,
    Bucket,
    Clock,
    CommonsenseScore,
    Comparison,
    Contestant,
    Cooled,
    CurvePoint,
    Evaluated,
    Inference,
    Measured,
    Measurements,
    Picture,
    Profile,
    Results,
    Run,
    Sample,
    Score,
    Spread,
    Streamed,
    StudyFacts,
    Sweep,
    TaskRun,
    TaskScore,
    Tick,
    Trial,
)
from lockstep.study.statistics import holm, over_seeds

STEPS, TOKENS_PER_STEP, LENGTH, VOCAB = 1200, 8192, 256, 4096
BYTES_PER_TOKEN = 3.1
SHARES = (0.25, 0.5, 1.0)
CONTESTANTS = ("transformer++", "titans-mac", "gated-deltanet", "lstm")
LENGTHS = (64, 256, 1024, 4096, 16384)

Metric = Literal["loss", "bits_per_byte", "perplexity", "accuracy"]

FINAL = {"transformer++": 3.02, "titans-mac": 2.97, "gated-deltanet": 2.985, "lstm": 3.31, "bert": 2.6}
"""Loss at the end, before the seed's luck; anybody else lies between."""
HOSTILE = '<script>alert(1)</script> & "quotes" \u202egnirts\u202c e\u0301 \U0001f9ea \u0000\u001b[31m </textarea>'


UNASKED: dict[str, Any] = {"tasks": (), "beyond": (), "contexts": (), "commonsense": ()}
"""Of a contestant that was not tested, or cannot be."""


def made_up_study(
    contestants: Sequence[str] = CONTESTANTS, seeds: int = 3, finished: bool = True
) -> tuple[Results, Measurements]:
    """A whole study; one that is not finished stands at 60 % of its budget."""
    entries = tuple(contestant(name, seeds, 1.0 if finished else 0.6) for name in contestants)
    results = Results(
        study=facts(contestants[0], seeds, finished),
        contestants=entries,
        comparisons=tuple(comparisons(entries)),
        sweeps=tuple(sweep(name, at_edge=place == 1) for place, name in enumerate(contestants)),
        fits=(),
        audit=audit(entries),
    )
    return results, Measurements(contestants={one.name: measured(one) for one in entries})


def unfinished_study() -> tuple[Results, Measurements]:
    """In the middle: one waits, one has diverged, nothing can be compared or audited yet."""
    results, measurements = made_up_study(finished=False)
    running, diverged, half, waiting = results.contestants
    told = "loss is not finite at step 431: the last finite one was 9.87"
    first = diverged.runs[0]
    ended = {"step": 431, "tokens": 431 * TOKENS_PER_STEP, "evaluated": first.evaluated[:4], "cooled": ()}
    lost = first.model_copy(update={"status": "diverged", "message": told, "curve": first.curve[:20], **ended})
    nothing = {"status": "waiting", "step": 0, "tokens": 0, "curve": (), "evaluated": (), "cooled": ()}
    idle, later = ([run.model_copy(update=nothing) for run in one.runs] for one in (waiting, half))
    unread: dict[str, Any] = {
        "positions": (),
        "repeats": (),
        "lengths": (),
        **UNASKED,
        "memory": None,
        "samples": (),
        "pictures": (),
    }
    entries = (
        running,
        diverged.model_copy(update=unread | {"runs": (lost, *diverged.runs[1:])}),
        half.model_copy(update=unread | {"runs": (half.runs[0], *later[1:])}),
        waiting.model_copy(update=unread | {"runs": tuple(idle)}),
    )
    changed = {"contestants": entries, "comparisons": (), "audit": None, "sweeps": results.sweeps[:2]}
    kept = {name: one for name, one in measurements.contestants.items() if name != waiting.name}
    return checked(results.model_copy(update=changed)), Measurements(contestants=kept)


def masked_study() -> tuple[Results, Measurements]:
    """Two that read from left to right, and one of another track that is never ranked against them."""
    results, measurements = made_up_study(("transformer++", "gated-deltanet", "bert"))
    own = {"track": "masked", "group": "masked", "decoding_flops_per_token": None, "samples": (), **UNASKED}
    entries = tuple(one.model_copy(update=own) if one.name == "bert" else one for one in results.contestants)
    pairs = tuple(one for one in results.comparisons if "bert" not in (one.contestant, one.baseline))
    timed = dict(measurements.contestants)
    timed["bert"] = timed["bert"].model_copy(update={"inference": (), "streamed": ()})
    changed = {"contestants": entries, "comparisons": pairs}
    return checked(results.model_copy(update=changed)), Measurements(contestants=timed)


def checked(results: Results) -> Results:
    """Copies are not validated: this is."""
    return Results.model_validate(results.model_dump())


def luck(*words: object) -> np.random.Generator:
    """The same numbers for the same words, on every machine."""
    return np.random.default_rng(list(" ".join(map(str, words)).encode()))


def loss_at(name: str, seed: int, share: float) -> float:
    """A power law towards the final loss; seeds are shared by all, as real ones are."""
    final = FINAL.get(name, 3.1)
    shared, own = luck("order", seed).normal(0, 0.02), luck(name, seed).normal(0, 0.004)
    return float(final + shared + own + 0.55 * (max(share, 0.002) ** -0.42 - 1))


def score(loss: float, tokens: int = 200_000) -> Score:
    read = round(tokens * BYTES_PER_TOKEN)
    return Score(
        loss=loss,
        perplexity=math.exp(loss),
        bits_per_byte=loss * tokens / math.log(2) / read,
        accuracy=1 / (1 + math.exp(loss - 2.4)),
        tokens=tokens,
        bytes=read,
    )


def run(name: str, seed: int, share: float) -> Run:
    """One run up to a share of the budget."""
    last = int(STEPS * share)
    noise = luck(name, seed, "curve").normal(0, 0.03, STEPS + 1)
    curve, evaluated = [], []
    for step in range(20, last + 1, 20):
        loss = loss_at(name, seed, step / STEPS) + 0.02 + float(noise[step])
        bits = loss / math.log(2) / BYTES_PER_TOKEN
        curve.append(CurvePoint(step=step, tokens=step * TOKENS_PER_STEP, loss=loss, bits_per_byte=bits))
    for step in range(100, last + 1, 100):
        held = score(loss_at(name, seed, step / STEPS) + 0.06, 50_000)
        evaluated.append(Evaluated(step=step, tokens=step * TOKENS_PER_STEP, score=held))
    cooled = [
        Cooled(
            share=at,
            step=int(at * STEPS),
            tokens=int(at * STEPS) * TOKENS_PER_STEP,
            score=score(loss_at(name, seed, at)),
        )
        for at in SHARES
        if at <= share
    ]
    return Run(
        folder=f"runs/{name}/seed-{seed}",
        data_seed=seed,
        init_seed=seed,
        status="finished" if share == 1 else "running",
        message=None,
        step=last,
        tokens=last * TOKENS_PER_STEP,
        curve=tuple(curve),
        evaluated=tuple(evaluated),
        cooled=tuple(cooled),
    )


def contestant(name: str, seeds: int, share: float) -> Contestant:
    final = FINAL.get(name, 3.1)
    attends = name in ("transformer++", "bert")
    recurrent = {"titans-mac": 2_400_000, "gated-deltanet": 410_000, "lstm": 24_576}.get(name, 600_000)
    states = {length: 6144 * length if attends else recurrent + 1024 * min(length, LENGTH) for length in LENGTHS}
    starts = [1, *(2**power + 1 for power in range(int(math.log2(LENGTH))))]
    spans = [(first, max(first, 2 * (first - 1))) for first in starts]
    repeats: list[tuple[int | None, int | None]] = [*spans, (None, None)]
    return Contestant(
        name=name,
        architecture=name,
        track="causal",
        group="causal",
        model={"vocab_size": VOCAB, "dim": 256, "depth": 4, "heads": 4},
        settings={"training.learning_rate": 0.002 if name == "titans-mac" else 0.001},
        parameters=4_230_000 + 1000 * len(name),
        non_embedding_parameters=3_180_000 + 1000 * len(name),
        training_flops_per_token={"titans-mac": 3.3e7, "lstm": 1.8e7}.get(name, 2.1e7),
        decoding_flops_per_token=7.1e6,
        state_bytes=states,
        runs=tuple(run(name, seed, share) for seed in range(seeds)),
        positions=tuple(
            Bucket(first=a, last=b, tokens=800 * (b - a + 1), loss=final + 1.9 / a**0.5 - 0.15) for a, b in spans
        ),
        repeats=tuple(
            Bucket(first=a, last=b, tokens=9000, loss=final + 1.4 if a is None else final - 1.2 + 0.17 * math.log2(a))
            for a, b in repeats
        ),
        lengths=tuple(at_length(length, final, worse=attends) for length in LENGTHS),
        beyond=tuple(beyond(final, worse=attends)),
        contexts=tuple(after(context, final, worse=attends) for context in (16, 64, 256, 1024, 4096)),
        tasks=tuple(tasks(name, seeds)),
        commonsense=tuple(commonsense(name)),
        memory=memory() if name.startswith("titans") else None,
        samples=samples(name),
        pictures=tuple(pictures(name)),
    )


def at_length(length: int, final: float, worse: bool) -> AtLength:
    beyond = max(0.0, math.log2(length / LENGTH))
    loss = final + 0.12 * max(0.0, math.log2(LENGTH / length)) + (0.35 if worse else -0.01) * beyond
    return AtLength(
        length=length, loss=loss, perplexity=math.exp(loss), bits_per_byte=loss / math.log(2) / BYTES_PER_TOKEN
    )


# Tests of trained contestants.

MEMORY = {"transformer++": 1.0, "titans-mac": 0.95, "gated-deltanet": 0.8, "lstm": 0.2}
"""How well a contestant remembers what it has read; anybody else lies between."""


def tasks(name: str, seeds: int) -> Iterator[TaskScore]:
    """Recall at the training length, needles beyond it, and a task of one level."""
    for pairs in (4, 8, 16):
        yield task_score(name, seeds, "recall", f"{pairs} pairs", LENGTH, 1 / 64, difficulty=math.log2(pairs) - 2)
    yield task_score(name, seeds, "induction", "induction", LENGTH, 1 / 64, difficulty=1)
    for length in (LENGTH // 2, LENGTH, 4 * LENGTH, 16 * LENGTH):
        for hard, level in enumerate(("passkey", "word")):
            yield task_score(name, seeds, "needles", level, length, 1e-5, hard + math.log2(length / LENGTH))


def task_score(
    name: str, seeds: int, task: str, level: str, length: int, chance: float, difficulty: float, answers: int = 200
) -> TaskScore:
    """What stands deeper is answered a little better; who attends forgets only beyond the training length."""
    memory = MEMORY.get(name, 0.6)
    fall = max(0.0, difficulty) * (0.35 if name == "transformer++" and length > LENGTH else 0.25 * (1.1 - memory))
    base = max(0.0, min(1.0, memory * (1 - fall)))
    edges = np.linspace(0, 1, 6)
    shares = [[base * (0.88 + 0.12 * float(last)) * (1 - 0.02 * seed) for last in edges[1:]] for seed in range(seeds)]
    right = [[round(share * answers / 5) for share in own] for own in shares]
    return TaskScore(
        task=task,
        level=level,
        length=length,
        chance=chance,
        runs=tuple(TaskRun(data_seed=seed, answers=answers, right=sum(own)) for seed, own in enumerate(right)),
        bands=tuple(
            Band(first=float(a), last=float(b), answers=seeds * answers // 5, right=sum(own[place] for own in right))
            for place, (a, b) in enumerate(pairwise(edges))
        ),
    )


def beyond(final: float, worse: bool) -> Iterator[Bucket]:
    for power in range(15):
        first, last = (2**power // 2 + 1, 2**power)
        far = max(0.0, math.log2(last / LENGTH))
        loss = final + 1.9 / first**0.5 + (0.4 if worse else -0.01) * far
        yield Bucket(first=first, last=last, tokens=4 * (last - first + 1), loss=loss)


def after(context: int, final: float, worse: bool) -> AtContext:
    loss = final + 1.5 / context**0.5 + (0.4 if worse else 0.0) * max(0.0, math.log2(context / LENGTH))
    return AtContext(context=context, tokens=256, loss=loss, perplexity=math.exp(loss))


def commonsense(name: str) -> Iterator[CommonsenseScore]:
    better = 0.05 * MEMORY.get(name, 0.6)
    for asked, chance, metrics in (
        ("hellaswag", 0.25, ("accuracy", "accuracy by length")),
        ("boolq", 0.5, ("accuracy",)),
        ("arc_easy", 0.25, ("accuracy", "accuracy by length")),
    ):
        for metric in metrics:
            yield CommonsenseScore(
                set=asked, metric=metric, value=chance + better, standard_error=0.02, examples=500, chance=chance
            )
    words: dict[str, Any] = {"set": "lambada_openai", "examples": 500, "chance": None}
    yield CommonsenseScore(metric="perplexity", value=900 - 4000 * better, standard_error=80.0, **words)
    yield CommonsenseScore(metric="accuracy", value=better, standard_error=0.01, **words)


def streamed(entry: Contestant, pace: float, attends: bool) -> Iterator[Streamed]:
    for length in (1024, 4096, 16384):
        state = entry.state_bytes[length]
        yield Streamed(
            length=length,
            seconds=4e-5 * pace * length,
            tokens_per_second=1 / (4e-5 * pace),
            peak_bytes=int(3e6 * pace + 1.1 * state),
            process_peak_bytes=None,
            state_bytes=state,
            decode_seconds=spread(1e-3 * pace * (1 + (length / 2048 if attends else 0))),
            decode_peak_bytes=int(1e6 + 1.2 * state),
        )


def samples(name: str) -> tuple[Sample, ...]:
    return (
        Sample(prompt="def open(", text="self, path, mode='r'):\n    return path", repetition=0.031, entropy=2.41),
        Sample(prompt="The \u00e6ther ", text=f"{name} wrote: {HOSTILE}", repetition=0.25, entropy=1.98),
        Sample(prompt="", text="", repetition=None, entropy=None),
    )


def pictures(name: str, size: int = 24) -> Iterator[Picture]:
    """Of all three kinds, where the contestant has what they show."""
    rows, columns = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    causal = columns <= rows
    for layer in range(2):
        weights = np.exp(-(rows - columns) / (4 + 6 * layer)) * causal
        attention = weights / weights.sum(axis=1, keepdims=True)
        if name.startswith(("transformer", "titans", "bert")):
            yield picture("attention", attention, layer, "query position", "key position")
        if name.startswith("titans"):
            moved = np.abs(luck(name, layer).normal(0, 0.02, (size, size)))
            yield picture("memory", moved, layer, "input unit", "output unit")
    yield picture("influence", np.exp(-(rows - columns) / 9) * causal, None, "output position", "token position")


def picture(
    kind: Literal["attention", "memory", "influence"],
    values: np.ndarray[Any, Any],
    layer: int | None,
    rows: str,
    columns: str,
) -> Picture:
    cells = tuple(tuple(round(float(cell), 6) for cell in row) for row in values)
    place = None if layer is None else f"blocks.{layer}.mixer"
    title = {"attention": "Attention weights", "memory": "Change of the memory's weights", "influence": "Influence"}[
        kind
    ]
    return Picture(kind=kind, title=title, layer=place, values=cells, rows=rows, columns=columns)


def memory() -> dict[str, Any]:
    """As `evaluation.memory.measure_memory` returns it."""
    losses = {"intact": 2.98, "off": 3.41, "frozen": 3.22, "reset": 3.05, "warm": 2.99}
    bits = 1 / math.log(2) / BYTES_PER_TOKEN
    return {
        "sequences": 8,
        "tokens": 8 * LENGTH,
        "bytes": round(8 * LENGTH * BYTES_PER_TOKEN),
        "reset_every": LENGTH // 4,
        "probes": [probe(layer) for layer in range(2)],
        "ablations": {kind: {"loss": loss, "bits_per_byte": loss * bits} for kind, loss in losses.items()},
    }


def probe(layer: int) -> dict[str, Any]:
    """As `MemoryProbe.as_dict` returns it; the second layer never forgets in one head."""
    random = luck("probe", layer)
    chunks = LENGTH // 16
    updates = [float(0.2 / (1 + 0.3 * at) + random.uniform(0, 0.02)) for at in range(chunks)]
    surprises = [float(0.9 - 0.3 * (1 - math.exp(-at / 4)) + random.uniform(0, 0.03)) for at in range(chunks)]
    ranks = {
        "full": 64,
        "stable": 6.2 + layer,
        "effective": 21.5,
        "stable_share": 0.097 + layer / 64,
        "effective_share": 0.336,
    }
    gate = {"mean": 0.5, "deviation": 0.1, "low": 0.31, "high": 0.72}
    retrieval = retrievals(layer)
    return {
        "layer": f"blocks.{2 * layer + 1}.mixer.memory",
        "sequences": 8,
        "tokens": LENGTH,
        "chunk": 16,
        "update": sum(updates) / chunks,
        "update_series": updates,
        "surprise": sum(surprises) / chunks,
        "surprise_series": surprises,
        "utilisation": [ranks, ranks | {"stable": 9.4, "stable_share": 0.147, "effective_share": 0.41}],
        "retrieval": retrieval,
        "candidates": sum(group["tokens"] for group in retrieval),
        "half_life": [38.0, 152.0, 620.0, None if layer else 900.0],
        "gates": {name: dict(gate) for name in ("keep", "rate", "momentum")},
        "saturation": 0.02,
    }


def retrievals(layer: int) -> list[dict[str, Any]]:
    """By age; older is worse."""
    ages = [2**power for power in range(int(math.log2(LENGTH)) + 1)]
    return [
        {
            "age": age,
            "tokens": min(age, 16),
            "cosine": 0.82 - 0.07 * math.log2(age) - 0.05 * layer,
            "top1": 0.7 - 0.08 * math.log2(age),
            "strength": 0.9 - 0.05 * math.log2(age),
            "initial_cosine": 0.05 + 0.01 * layer,
            "initial_top1": 0.01,
        }
        for age in ages
    ]


def comparisons(entries: Sequence[Contestant]) -> Iterator[Comparison]:
    """All pairs, all metrics, all shares, by the study's own statistics; the earlier contestant is the baseline."""
    for share in SHARES:
        for metric in get_args(Metric):
            pairs = []
            for base, other in combinations(entries, 2):
                ours, theirs = cooled_scores(other, metric, share), cooled_scores(base, metric, share)
                if ours and theirs:
                    pairs.append(
                        (other.name, base.name, over_seeds(ours, theirs), float(np.mean(list(theirs.values()))))
                    )
            primary = share == 1 and metric == "bits_per_byte" and all(pair[2].p is not None for pair in pairs)
            adjusted = holm([pair[2].p or 0.0 for pair in pairs]) if primary else [None] * len(pairs)
            for (ours_name, base_name, found, mean), p in zip(pairs, adjusted, strict=True):
                yield Comparison(
                    metric=metric,
                    contestant=ours_name,
                    baseline=base_name,
                    share=share,
                    effect=found.effect,
                    baseline_mean=mean,
                    low=found.low,
                    high=found.high,
                    p=found.p,
                    p_adjusted=p,
                    samples=found.samples,
                    kind=found.kind,
                    separable=found.separable if p is None else p < 0.05,
                )


def cooled_scores(entry: Contestant, metric: str, share: float) -> dict[int, float]:
    found = {run.data_seed: at.score for run in entry.runs for at in run.cooled if at.share == share}
    return {seed: getattr(one, metric) for seed, one in found.items()}


def sweep(name: str, at_edge: bool) -> Sweep:
    """Five learning rates; the highest diverges, unless it is the best of all."""
    best = 4 if at_edge else 2
    trials = []
    for place, rate in enumerate((2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)):
        lost = place == 4 and not at_edge
        loss = None if lost else FINAL.get(name, 3.1) + 0.3 + 0.05 * (place - best) ** 2
        settings = {"training.learning_rate": rate}
        trials.append(Trial(settings=settings, loss=loss, status="diverged" if lost else "finished"))
    edges = ("training.learning_rate",) if at_edge else ()
    return Sweep(contestant=name, tokens=1_000_000, trials=tuple(trials), best=best, at_edge=edges)


def audit(entries: Sequence[Contestant]) -> AuditResult:
    head = (
        "contestant",
        "seed",
        "step",
        "tokens",
        "stream hash",
        "corpus digest",
        "tokenizer fingerprint",
        "parameters",
    )
    rows = [
        (
            one.name,
            str(run.data_seed),
            str(run.step),
            f"{run.tokens:,}",
            f"{run.data_seed:08x}",
            "c0ffee",
            "f00d",
            f"{one.parameters:,}",
        )
        for one in entries
        for run in one.runs
    ]
    return AuditResult(passed=True, findings=(), notes=("learning_rate is tuned",), table=(head, *rows))


def measured(entry: Contestant) -> Measured:
    """Times of a machine that counts no joules."""
    pace = {"transformer++": 1.0, "titans-mac": 2.6, "gated-deltanet": 1.3, "lstm": 0.8}.get(entry.name, 1.1)
    attends = entry.name in ("transformer++", "bert")
    inference = [
        Inference(
            length=length,
            prefill_seconds=spread(4e-5 * pace * length * (1 + (length / 4096 if attends else 0))),
            decode_seconds=spread(1e-3 * pace * (1 + (length / 2048 if attends else 0))),
            prefill_peak_bytes=int(2e6 + 4096 * length * pace),
            decode_peak_bytes=int(1e6 + 1.2 * entry.state_bytes[length]),
            state_bytes=entry.state_bytes[length],
        )
        for length in LENGTHS
    ]
    return Measured(
        device="a made-up processor, 2 threads",
        kernel_backend="torch",
        clocks=tuple(clock(run, pace) for run in entry.runs),
        inference=tuple(inference),
        batches=tuple(BatchTime(length=at, batch=16, seconds=spread(3e-4 * pace * at)) for at in LENGTHS[:4]),
        streamed=tuple(streamed(entry, pace, attends)),
        profiles=tuple(profiles(entry.name, pace)),
        training_peak_bytes=int(9e7 * pace),
    )


def clock(run: Run, pace: float) -> Clock:
    """A tick every 50 steps; the second half of the run is slower."""
    ticks = [
        Tick(step=step, seconds=0.4 * pace * (step + max(0, step - STEPS // 2)), joules=None)
        for step in range(50, run.step + 1, 50)
    ]
    rate = TOKENS_PER_STEP / (0.4 * pace)
    return Clock(
        data_seed=run.data_seed,
        ticks=tuple(ticks),
        tokens_per_second=spread(rate) if ticks else None,
    )


def spread(median: float, count: int = 20) -> Spread:
    return Spread(median=median, low=0.94 * median, high=1.15 * median, count=count)


def profiles(name: str, pace: float) -> Iterator[Profile]:
    mixers = {"titans-mac": {"attention": 0.05, "memory write": 0.22, "memory read": 0.08}, "lstm": {"recurrence": 0.2}}
    mixer = mixers.get(name, {"attention": 0.12})
    once = mixer | {"MLP": 0.09, "head": 0.04, "rest": 0.01}
    yield Profile(
        what="training", seconds={part: pace * at for part, at in (once | {"backward": 0.5, "optimizer": 0.03}).items()}
    )
    yield Profile(what="prefill", seconds={part: 0.1 * pace * at for part, at in once.items()})
    yield Profile(what="decode", seconds={part: 0.002 * pace * at for part, at in once.items()})


def facts(baseline: str, seeds: int, finished: bool) -> StudyFacts:
    return StudyFacts(
        name="made-up",
        corpus="stdlib",
        tokenizer="byte-level BPE",
        vocab_size=VOCAB,
        bytes_per_token=BYTES_PER_TOKEN,
        steps=STEPS,
        tokens=STEPS * TOKENS_PER_STEP,
        tokens_per_step=TOKENS_PER_STEP,
        sequence_length=LENGTH,
        schedule="warmup-stable-decay",
        precision="float32",
        optimizer="adamw",
        noise=0.0,
        match="non-embedding parameters within 1 %",
        seeds=tuple((seed, seed) for seed in range(seeds)),
        baseline=baseline,
        primary="bits_per_byte",
        cooled_at=SHARES,
        device="a made-up processor, 2 threads",
        versions={"python": "3.11.9", "torch": "2.13.0"},
        revision="0123abcd",
        corpus_digest="c0ffee" * 10,
        study_digest="beef" * 16,
        finished=finished,
    )
