"""Measuring trained contestants; whatever was measured before, in the same way and of the same weights, is kept.

runs/<run>/evaluations/test.json                 score on the test split, and its breakdowns; in decay branches too
runs/<run>/evaluations/lengths.json              at other lengths
runs/<run>/evaluations/{beyond,commonsense}.json, evaluations/<task>.json   what the study's `evaluate` names
runs/<run>/evaluations/{memory,samples,pictures}.json   of the first repeat
runs/<run>/measured/{inference,streamed,profile}.json   seconds and bytes, of the first repeat
"""

from __future__ import annotations

from lockstep.evaluation.detail import score_in_detail
from lockstep.evaluation.inference import longest, measure_batch, measure_inference, measure_training_peak
from lockstep.evaluation.language import score_causal, score_masked, score_pseudo
from lockstep.evaluation.memory import measure_memory
from lockstep.evaluation.parts import profile
from lockstep.evaluation.pictures import pictures as draw_pictures
from lockstep.evaluation.samples import write_sample
from lockstep.evaluation.streaming import measure_streaming
from lockstep.models.language_model import LanguageModel
from lockstep.models.precision import autocast_to
from lockstep.models.sampling import Sampling
from lockstep.study.evaluations import tests
from lockstep.study.run_status import branches, run_status
from lockstep.study.subject import Found, Subject, keep
from lockstep.training.loop import AUTOCAST
from lockstep.training.optimizers import build_optimizers

SHOWN_TOKENS = 48
"""Of the test split, in pictures."""
SAMPLING = Sampling(temperature=0.8, seed=0)


def measure_run(subject: Subject, first: bool) -> None:
    """All that is missing; what needs only one repeat is done for the first."""
    for folder in (*branches(subject.folder), subject.folder):
        if run_status(folder).status == "finished":
            keep(folder, "evaluations/test.json", {"sequences": subject.spec.sequences}, subject, test_score)
    if run_status(subject.folder).status != "finished":
        return
    asked = subject.spec.model_dump(mode="json")
    for name, keys, find in EVERY_REPEAT if not first else (*EVERY_REPEAT, *FIRST_REPEAT):
        keep(subject.folder, name, {key: asked[key] for key in keys}, subject, find)
    for name, knobs, test in tests(subject):
        keep(subject.folder, f"evaluations/{name}.json", knobs.model_dump(mode="json"), subject, test)


def test_score(subject: Subject, model: LanguageModel) -> Found:
    """Causal: score, positions, repeats and documents. Masked: pseudo-perplexity as the score, and hidden tokens."""
    data = subject.held_out()
    if not model.causal:
        few = subject.held_out(sequences=subject.run.evaluation.pseudo_sequences)
        pseudo = score_pseudo(model, few, subject.device).as_dict()
        masked = score_masked(model, data, subject.device, subject.run.training.mlm_probability).as_dict()
        return {"score": pseudo, "masked": masked}
    if data.split in subject.prepared.manifest.asked:
        return {"score": score_causal(model, data, subject.device).as_dict()}
    detail = score_in_detail(model, data, subject.device)
    documents = detail.documents
    sums = {name: getattr(documents, name).tolist() for name in ("nats", "tokens", "bytes")}
    return {
        "score": detail.score.as_dict(),
        "positions": [bucket.as_dict() for bucket in detail.positions],
        "repeats": [bucket.as_dict() for bucket in detail.repeats],
        "repeated_tokens": detail.ngram,
        "documents": sums,
    }


def at_lengths(subject: Subject, model: LanguageModel) -> Found | None:
    """As many tokens at every length, or one window where that is longer; no length that the split does not have.

    Instances of a task have one length, and are tested at others by `evaluate`.
    """
    if not model.causal or "test" in subject.prepared.manifest.asked:
        return None
    most, found = longest(model), []
    sequences = subject.spec.sequences
    for length in subject.spec.lengths:
        if (most is None or length <= most) and length < len(subject.prepared.tokens("test")):
            enough = None if sequences is None else max(1, sequences * subject.length // length)
            data = subject.held_out(length, enough)
            found.append({"length": length, **score_causal(model, data, subject.device).as_dict()})
    return {"lengths": found}


def streamed(subject: Subject, model: LanguageModel) -> Found:
    found = measure_streaming(model, subject.spec.streamed, subject.device) if model.causal else None
    return {"streamed": [one.as_dict() for one in found or ()]}


def memory(subject: Subject, model: LanguageModel) -> Found | None:
    return measure_memory(model, subject.held_out(), subject.device) if model.causal else None


def samples(subject: Subject, model: LanguageModel) -> Found | None:
    if not model.causal:
        return None
    written, tokenizer, most = [], subject.prepared.tokenizer, longest(model)
    for prompt in subject.spec.prompts:
        room = subject.spec.sample_tokens
        if most is not None:
            # Learned positions end: what there is room for is written.
            room = min(room, most - max(1, len(tokenizer.encode(prompt.encode()))))
        if room < 1:
            continue
        one = write_sample(model, tokenizer, prompt, room, SAMPLING)
        text = {"prompt": prompt, "text": one.text}
        written.append({**text, "repetition": one.repetition, "entropy": one.entropy})
    return {"samples": written}


def pictures(subject: Subject, model: LanguageModel) -> Found:
    tokens = subject.first_tokens(min(SHOWN_TOKENS, longest(model) or SHOWN_TOKENS))
    return {"pictures": [picture.as_dict() for picture in draw_pictures(model, tokens)]}


def inference(subject: Subject, model: LanguageModel) -> Found:
    """Seconds and bytes over contexts, and of whole batches."""
    spec, device, most = subject.spec, subject.device, longest(model)
    contexts = [one for one in spec.contexts if model.causal and (most is None or one < most)]
    lengths = [one for one in spec.batch_lengths if most is None or one <= most]
    return {
        "inference": [measure_inference(model, one, device, spec.decoded, spec.rounds).as_dict() for one in contexts],
        "batches": [measure_batch(model, one, spec.batch_size, device, spec.rounds).as_dict() for one in lengths],
    }


def profiles(subject: Subject, model: LanguageModel) -> Found:
    """Where the time goes, and what a micro-batch of training holds."""
    rounds, device, training = subject.spec.rounds, subject.device, subject.run.training
    batch = subject.first_tokens(subject.run.data.batch_size * subject.length).view(-1, subject.length)
    found = []
    lower = AUTOCAST.get(training.precision)
    with autocast_to(device, lower):
        peak = measure_training_peak(model, batch)
    optimizers = build_optimizers(model, training)
    spent = profile(model, batch, "training", device, rounds, optimizers, lower)
    found.append({"what": "training", "seconds": spent})
    if model.causal:
        one = subject.first_tokens(subject.length)
        for what in ("prefill", "decode"):
            found.append({"what": what, "seconds": profile(model, one, what, device, rounds)})
    return {"training_peak_bytes": peak, "profiles": found}


EVERY_REPEAT = (("evaluations/lengths.json", ("lengths", "sequences"), at_lengths),)
FIRST_REPEAT = (
    ("evaluations/memory.json", (), memory),
    ("evaluations/samples.json", ("prompts", "sample_tokens"), samples),
    ("evaluations/pictures.json", (), pictures),
    ("measured/inference.json", ("contexts", "decoded", "batch_lengths", "batch_size", "rounds"), inference),
    ("measured/streamed.json", ("streamed",), streamed),
    ("measured/profile.json", ("rounds",), profiles),
)
"""File, the settings that decide what is in it, and who finds it."""
