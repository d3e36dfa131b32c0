"""What a report is made from: the results of a study, as it stands in results.json and measured.json.

The first file holds nothing that was measured in seconds, bytes or joules: the same study gives the same bytes.
Whatever is missing, because a run has not come so far or a model cannot do it, is None or absent, never zero.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Frozen, and of known keys alone."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Track = Literal["causal", "masked"]
Status = Literal["waiting", "running", "finished", "diverged"]


# What contestants score.


class Score(Record):
    """On held-out text."""

    loss: float
    """Nats per token."""
    perplexity: float
    bits_per_byte: float | None
    accuracy: float
    tokens: int
    bytes: int


class CurvePoint(Record):
    """Training loss, mean over the steps since the point before."""

    step: int
    tokens: int
    loss: float
    bits_per_byte: float | None


class Evaluated(Record):
    """A score on the validation split during training, at whatever learning rate there was: dynamics only."""

    step: int
    tokens: int
    score: Score


class Cooled(Record):
    """A score on the test split after its own learning-rate decay: what is compared."""

    share: float
    """Of the budget; 1 is the end."""
    step: int
    tokens: int
    score: Score


class Run(Record):
    """One contestant with one pair of seeds."""

    folder: str
    """Relative to the study's."""
    data_seed: int
    init_seed: int
    status: Status
    message: str | None
    """Why it diverged."""
    step: int
    tokens: int
    curve: tuple[CurvePoint, ...]
    evaluated: tuple[Evaluated, ...]
    cooled: tuple[Cooled, ...]


class Bucket(Record):
    """Test tokens that have something in common, over all seeds."""

    first: int | None
    last: int | None
    """Positions in the sequence (from 1), or distances back to the last occurrence; None and None: no occurrence."""
    tokens: int
    loss: float


class AtLength(Record):
    """Test tokens read in windows of another length than that of training, mean over seeds."""

    length: int
    loss: float
    perplexity: float
    bits_per_byte: float | None


class AtContext(Record):
    """The same test tokens after more or less context, mean over seeds."""

    context: int
    """Tokens read before them."""
    tokens: int
    loss: float
    perplexity: float


class Band(Record):
    """Answers to what stands between two depths; 0 is the beginning of an instance, 1 its end."""

    first: float
    last: float
    answers: int
    right: int


class TaskRun(Record):
    """What one repeat answered."""

    data_seed: int
    answers: int
    right: int


class TaskScore(Record):
    """Answers to one level of a task at one length."""

    task: str
    level: str
    length: int
    chance: float
    """Share of right answers of somebody who guesses among all that are possible."""
    runs: tuple[TaskRun, ...]
    bands: tuple[Band, ...]
    """Over all seeds."""

    @property
    def accuracies(self) -> tuple[float, ...]:
        return tuple(run.right / run.answers for run in self.runs)

    @property
    def accuracy(self) -> float:
        """Mean over seeds."""
        return sum(self.accuracies) / len(self.runs)


class CommonsenseScore(Record):
    """On one set of questions, mean over seeds."""

    set: str
    metric: str
    """accuracy; accuracy by length, where likelihoods are divided by the characters of an answer; perplexity."""
    value: float
    standard_error: float | None
    """Over the questions."""
    examples: int
    chance: float | None


class Sample(Record):
    """What the first seed's model wrote."""

    prompt: str
    text: str
    repetition: float | None
    """Share of its 4-grams that it had written before."""
    entropy: float | None
    """Of the distributions that were drawn from: mean nats per token."""


class Picture(Record):
    """A heat map of the first seed's model while it read the beginning of the test split."""

    kind: Literal["attention", "memory", "influence"]
    """attention: weights, rows attend to columns. memory: how far each weight moved. influence: how much the output at
    a row changes when the token at a column is another one; it exists for every architecture."""
    title: str
    layer: str | None
    values: tuple[tuple[float, ...], ...]
    """[rows, columns]"""
    rows: str
    """What a row is."""
    columns: str
    """What a column is."""


class Contestant(Record):
    """Everything about one contestant that no clock was needed for."""

    name: str
    architecture: str
    track: Track
    group: str
    """Only contestants of one group are compared: same track, same size."""
    model: dict[str, Any]
    """Its architecture's fields, as trained."""
    settings: dict[str, Any]
    """What else is its own: tuned fields, and those declared to vary."""
    parameters: int
    non_embedding_parameters: int
    training_flops_per_token: float
    decoding_flops_per_token: float | None
    """At the training length."""
    state_bytes: dict[int, int]
    """Per sequence, by length; computed."""
    runs: tuple[Run, ...]
    positions: tuple[Bucket, ...] = ()
    repeats: tuple[Bucket, ...] = ()
    lengths: tuple[AtLength, ...] = ()
    beyond: tuple[Bucket, ...] = ()
    """Positions in one long text, far beyond the training length."""
    contexts: tuple[AtContext, ...] = ()
    tasks: tuple[TaskScore, ...] = ()
    commonsense: tuple[CommonsenseScore, ...] = ()
    memory: dict[str, Any] | None = None
    """Probes and ablations of the first seed's model (`evaluation.memory`); None without a memory."""
    samples: tuple[Sample, ...] = ()
    pictures: tuple[Picture, ...] = ()


# What was measured with a clock.


class Spread(Record):
    """Of several measurements, the warm-up left out."""

    median: float
    low: float
    """5 % lie below."""
    high: float
    """5 % lie above."""
    count: int


class Tick(Record):
    """Where a run's clock stood; joules where the device counts them."""

    step: int
    seconds: float
    joules: float | None


class Clock(Record):
    """Training of one run, without evaluation and saving."""

    data_seed: int
    ticks: tuple[Tick, ...]
    tokens_per_second: Spread | None


class Inference(Record):
    """One sequence, after a context of some length."""

    length: int
    prefill_seconds: Spread
    """Of the whole context: the time to the first token."""
    decode_seconds: Spread
    """Per token, right after it."""
    prefill_peak_bytes: int | None
    """The most that was held at once beyond the weights."""
    decode_peak_bytes: int | None
    state_bytes: int


class Streamed(Record):
    """A long text read in pieces, one sequence, and a few tokens decoded after it."""

    length: int
    seconds: float
    """From the first token on."""
    tokens_per_second: float
    peak_bytes: int
    """The most that was held at once beyond the weights until then."""
    process_peak_bytes: int | None
    """The most that the process grew by until then; None where the system does not tell."""
    state_bytes: int
    decode_seconds: Spread
    decode_peak_bytes: int


class BatchTime(Record):
    """Seed 003's measure: a batch of sequences read at once."""

    length: int
    batch: int
    seconds: Spread


class Profile(Record):
    """Where the time goes: seconds by part; the parts add up to the whole."""

    what: Literal["training", "prefill", "decode"]
    seconds: dict[str, float]
    """Such as attention, memory write, memory read, MLP, backward, optimizer, rest."""


class Measured(Record):
    """One contestant on this machine."""

    device: str
    kernel_backend: str
    clocks: tuple[Clock, ...] = ()
    inference: tuple[Inference, ...] = ()
    batches: tuple[BatchTime, ...] = ()
    streamed: tuple[Streamed, ...] = ()
    profiles: tuple[Profile, ...] = ()
    training_peak_bytes: int | None = None
    """Of one forward and backward of a micro-batch, beyond the weights."""


# What follows from it.


class Comparison(Record):
    """One contestant minus another, on the test split."""

    metric: Literal["loss", "bits_per_byte", "perplexity", "accuracy"]
    contestant: str
    baseline: str
    share: float
    """Of the budget; 1 is the end."""
    effect: float
    baseline_mean: float
    """So that an effect can be told in percent."""
    low: float | None
    high: float | None
    """Ends of the 95 % interval of this difference alone."""
    p: float | None
    p_adjusted: float | None
    """Holm, over all pairs of the group at the end of the budget; None where the comparison is not the primary one."""
    samples: int
    kind: Literal["seeds", "documents"]
    separable: bool
    """By p_adjusted where there is one, else by the interval."""


class Trial(Record):
    """One setting of the sweep."""

    settings: dict[str, float]
    loss: float | None
    """On the validation split at the end; None where it diverged or has not run."""
    status: Status


class Sweep(Record):
    """All trials of one contestant: as many, and as many tokens, as everybody else's."""

    contestant: str
    tokens: int
    trials: tuple[Trial, ...]
    best: int | None
    """Which trial was chosen."""
    at_edge: tuple[str, ...]
    """Tuned fields whose optimum lies at the edge of the grid: then the result is provisional."""


class Fit(Record):
    """loss = floor + scale × parameters^(-exponent), over the sizes of one architecture."""

    architecture: str
    parameters: tuple[int, ...]
    losses: tuple[float, ...]
    scale: float
    exponent: float
    floor: float | None
    """None where there are too few sizes to fit one: then it is taken as 0."""


class AuditResult(Record):
    """Whether the study may have a verdict."""

    passed: bool
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    """Contestant, seed, step, tokens, stream hash, corpus digest, tokenizer fingerprint, parameters; with a head."""


class StudyFacts(Record):
    """What was shared."""

    name: str
    corpus: str
    tokenizer: str
    vocab_size: int
    bytes_per_token: float
    steps: int
    tokens: int
    tokens_per_step: int
    sequence_length: int
    schedule: str
    precision: str
    optimizer: str
    noise: float
    match: str | None
    """In words; None: sizes as stated by hand."""
    seeds: tuple[tuple[int, int], ...]
    """(data, init) pairs."""
    baseline: str
    primary: str
    """The metric that was chosen beforehand."""
    cooled_at: tuple[float, ...]
    """Shares of the budget; the last is 1."""
    device: str
    versions: dict[str, str]
    revision: str | None
    corpus_digest: str
    study_digest: str
    """sha256 of study.yaml."""
    absent: dict[str, str] = {}
    """Contestants without a run, and why."""
    finished: bool


class Results(Record):
    """results.json."""

    study: StudyFacts
    contestants: tuple[Contestant, ...]
    comparisons: tuple[Comparison, ...]
    sweeps: tuple[Sweep, ...]
    fits: tuple[Fit, ...]
    audit: AuditResult | None
    """None before anything can be audited."""

    def contestant(self, name: str) -> Contestant:
        return next(one for one in self.contestants if one.name == name)


class Measurements(Record):
    """measured.json."""

    contestants: dict[str, Measured]
