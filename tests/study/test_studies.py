"""Ready-made studies: each can be begun as it stands, and asks what its first lines say."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from lockstep.config.files import load_study
from lockstep.config.study import StudySpec
from lockstep.config.tokenizer import BYTES_VOCABULARY, TokenizerSpec
from lockstep.data.corpora import names as corpora
from lockstep.data.gpt2 import SIZE as GPT2_VOCABULARY
from lockstep.models.registry import find
from lockstep.study.contestants import group_of, solve
from lockstep.study.flags import QUICK
from lockstep.study.match import amount_of, cost_on_meta
from lockstep.study.tune import at_edge
from lockstep.training.plan import make_plan

FOLDER = Path(__file__).parents[2] / "studies"
STUDIES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
WINDOWS = 10**6
"""Of a corpus, so that epochs have steps without one."""
OF_NO_SIZE = {"dropout", "attention_dropout"}
"""Fields that add no parameter."""


@cache
def study(name: str) -> StudySpec:
    return load_study(FOLDER / f"{name}.yaml")


def vocabulary(tokenizer: TokenizerSpec) -> int:
    """As many tokens as the tokenizer would have, without a corpus to train it on."""
    fixed = {"bytes": BYTES_VOCABULARY, "gpt2": GPT2_VOCABULARY}.get(tokenizer.tokenizer_type, tokenizer.vocab_size)
    assert fixed is not None
    return fixed


def solved() -> list[tuple[str, str]]:
    """Contestants whose size must be solved here: with nothing given, each architecture is known to reach each scale
    (tests/study/test_match.py), and noise has the contestants of miras."""
    found = []
    for name in (one for one in STUDIES if one != "noise"):
        for contestant in study(name).contestants:
            given = study(name).run_of(contestant).model.fields().keys() - OF_NO_SIZE
            if given or study(name).scale is None:
                found.append((name, contestant))
    return found


def test_the_promised_studies_are_there() -> None:
    enwik8 = {f"enwik8-{scale}" for scale in ("small", "medium", "large")}
    others = {
        "quick",
        "recall",
        "long-context",
        "titans-vs-transformer",
        "miras",
        "noise",
        "wikitext-2",
        "wikitext-103",
        "memory-size",
    }
    assert set(STUDIES) >= enwik8 | others | {"ablation", "scaling", "foundry-10M"}


@pytest.mark.parametrize("name", STUDIES)
def test_a_file_is_named_and_explained(name: str) -> None:
    assert study(name).study_name == name
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    explained = next(number for number, line in enumerate(lines) if not line.startswith("# "))
    assert 1 <= explained <= 3
    assert lines[explained] == f"study_name: {name}"


@pytest.mark.parametrize("name", STUDIES)
def test_somebody_is_compared_with_somebody(name: str) -> None:
    one = study(name)
    causal = {contestant: find(section.architecture).causal for contestant, section in one.contestants.items()}
    groups = Counter(group_of(one, contestant, causal[contestant]) for contestant in one.contestants)
    assert max(groups.values()) >= 2
    # A group of one is compared with nobody: only a masked model may stand alone.
    assert all(count >= 2 or group.startswith("masked") for group, count in groups.items())
    assert groups[group_of(one, one.compared_with, causal[one.compared_with])] >= 2


@pytest.mark.parametrize(("name", "contestant"), solved())
def test_sizes_can_be_reached(name: str, contestant: str) -> None:
    run, wanted = study(name).run_of(contestant), study(name).wanted_of(contestant)
    assert wanted is not None
    spec = solve(run, wanted, vocabulary(run.tokenizer), contestant)
    amount = amount_of(cost_on_meta(spec, run.data.max_sequence_length), wanted.on)
    assert amount == pytest.approx(wanted.target, rel=wanted.tolerance)


@pytest.mark.parametrize("name", STUDIES)
def test_budget_and_cooled_points_make_a_plan(name: str) -> None:
    one = study(name)
    for contestant in one.contestants:
        run = one.run_of(contestant)
        plan = make_plan(run, WINDOWS)
        ends = [branch.end / plan.steps for branch in plan.branches]
        assert ends == pytest.approx(sorted(run.training.cooled_at), abs=1 / plan.steps)
        assert all(branch.start in plan.milestones for branch in plan.branches)
        assert run.training.schedule == "wsd"
    if one.tuning is not None:
        trial = one.run_of(one.compared_with, changes={"training.train_steps": one.tuning.train_steps})
        assert make_plan(trial, WINDOWS).steps < plan.steps
        # Neither end of the grid may be the only sensible value.
        assert any(not at_edge(one.tuning.grid, settings) for settings in one.tuning.trials)
        assert one.tuning.seed not in one.seeds.data


@pytest.mark.parametrize("name", STUDIES)
def test_what_is_asked_for_can_be_had(name: str) -> None:
    """Text by a known name, prompts that a model reads, lengths that include the one it was trained at."""
    one = study(name)
    if not one.data.has_text:
        assert one.evaluate.tasks(one.data.tasks)
        return
    assert {one.data.training_corpus, one.data.source_corpus} & set(corpora())
    if name == "first":
        return  # Shown by `plan` alone: it names nothing to measure.
    assert one.measurements.prompts
    assert one.data.max_sequence_length in one.measurements.lengths
    assert one.measurements.batch_lengths


def test_noise_is_miras_on_noisy_text() -> None:
    miras, noise = study("miras").model_dump(), study("noise").model_dump()
    assert miras["evaluate"]["noise"] is not None
    assert miras["data"].pop("noise") == 0
    assert noise["data"].pop("noise") > 0
    assert {miras.pop("study_name"), noise.pop("study_name")} == {"miras", "noise"}
    assert miras == noise


@pytest.mark.parametrize("name", STUDIES)
def test_tokens_are_equal_whatever_the_tokenizer(name: str) -> None:
    """An epoch of one tokenizer has more tokens than that of another: there the budget is in steps."""
    runs = [study(name).run_of(contestant) for contestant in study(name).contestants]
    assert len({run.tokenizer for run in runs}) == 1 or runs[0].training.train_steps is not None
    assert len({(run.tokens_per_step, run.training.train_steps) for run in runs}) == 1


def test_masked_models_have_a_track_and_a_tokenizer_of_their_own() -> None:
    foundry = study("foundry-10M")
    kinds = {name: foundry.run_of(name).tokenizer.tokenizer_type for name in foundry.contestants}
    assert {name for name, section in foundry.contestants.items() if not find(section.architecture).causal} == {"bert"}
    assert kinds.pop("bert") == "wordpiece"
    assert set(kinds) == {"gpt2", "lstm", "gru", "rnn", "mamba"}
    assert set(kinds.values()) == {"sentencepiece"}


def test_scales_of_enwik8_differ_in_nothing_that_favours_one() -> None:
    small, medium, large = (study(f"enwik8-{scale}") for scale in ("small", "medium", "large"))
    assert [one.training.train_steps for one in (small, medium, large)] == [10_000, 100_000, 200_000]
    assert [one.scale for one in (small, medium, large)] == ["small", "medium", "large"]
    for one in (small, medium, large):
        assert list(one.contestants) == list(small.contestants)
        assert len({str(one.run_of(name).model.fields()) for name in one.contestants}) == 1
        assert one.run_of("yaad").tokens_per_step == small.run_of("yaad").tokens_per_step


def test_controls_differ_in_the_memory_alone() -> None:
    for name in ("titans-vs-transformer", "wikitext-2"):
        whole, control = (study(name).run_of(one).model.fields() for one in ("titans-mac", "without memory"))
        assert control == {**whole, "use_memory": False}


def test_the_laws_of_scaling_can_be_fitted() -> None:
    sizes: dict[str, set[float]] = {}
    for contestant, section in study("scaling").contestants.items():
        wanted = study("scaling").wanted_of(contestant)
        assert wanted is not None
        sizes.setdefault(section.architecture, set()).add(wanted.target)
    assert len(sizes) == 2
    assert all(len(found) == 4 for found in sizes.values())
    assert len({frozenset(found) for found in sizes.values()}) == 1


def test_the_embedded_study_is_the_one_in_the_folder() -> None:
    assert QUICK.resolve() == (FOLDER / "quick.yaml").resolve()
