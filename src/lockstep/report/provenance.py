"""What the page says of where its numbers come from."""

from __future__ import annotations

from lockstep.report.results import Contestant, Measurements, Results, StudyFacts
from lockstep.report.wording import joined
from lockstep.tables import in_short


def shared_facts(study: StudyFacts) -> dict[str, str]:
    return {
        "Corpus": study.corpus,
        "Tokenizer": f"{study.tokenizer}, {study.vocab_size:,} entries, {study.bytes_per_token:.3g} bytes per token",
        "Budget": f"{study.steps:,} steps of {study.tokens_per_step:,} tokens, {study.tokens:,} in all",
        "Sequence length": f"{study.sequence_length:,} tokens",
        "Schedule": study.schedule,
        "Optimizer": study.optimizer,
        "Precision": study.precision,
        "Noise": f"{study.noise:g}",
        "Sizes": study.match or "as stated by hand",
        "Seeds": "; ".join(f"data {data}, init {init}" for data, init in study.seeds),
        "Baseline": study.baseline,
        "Primary metric": f"{study.primary.replace('_', ' ')}, chosen beforehand",
        "Cooled at": f"{joined([f'{100 * share:.4g} %' for share in study.cooled_at])} of the budget",
    }


def machine_facts(study: StudyFacts) -> dict[str, str]:
    return {
        "Device": study.device,
        **{name.capitalize(): version for name, version in study.versions.items()},
        "Revision": study.revision or "unknown",
        "Corpus digest": study.corpus_digest,
        "Study digest": study.study_digest,
    }


def own_fields(results: Results, measurements: Measurements) -> dict[str, dict[str, str]]:
    """By field, what each contestant has there; a dash where it has no such field."""
    columns = {one.name: _fields_of(one, measurements) for one in results.contestants}
    names = dict.fromkeys(field for column in columns.values() for field in column)
    return {field: {name: column.get(field, "—") for name, column in columns.items()} for field in names}


def _fields_of(one: Contestant, measurements: Measurements) -> dict[str, str]:
    measured = measurements.contestants.get(one.name)
    timed = {"Device": measured.device, "Kernels": measured.kernel_backend} if measured else {}
    decoding = one.decoding_flops_per_token
    return {
        "Architecture": one.architecture,
        "Track": one.track,
        "Group": one.group,
        "Parameters": f"{one.parameters:,}",
        "Non-embedding parameters": f"{one.non_embedding_parameters:,}",
        "Training FLOPs per token": in_short(one.training_flops_per_token),
        **({} if decoding is None else {"Decoding FLOPs per token": in_short(decoding)}),
        **timed,
        **{name: str(value) for name, value in (one.settings | one.model).items()},
    }
