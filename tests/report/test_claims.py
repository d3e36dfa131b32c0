"""Claims are tested as they were made, and only where they can be."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from lockstep.models.registry import architectures, find
from lockstep.report.claim import Answers, Better, Claim, Elsewhere, Entrant, Faster, Score
from lockstep.report.claims import PARTS, CheckedClaim, check_claims
from lockstep.report.claims_table import CLAIMS
from lockstep.report.reasons import why_results_may_differ
from lockstep.report.results import AuditResult, Comparison, Contestant, Measurements, Results
from tests.report.by_hand import NOTHING, compare, contestant, measured, study
from tests.report.made_up import made_up_study, masked_study, unfinished_study

PLAIN = contestant("transformer++", [1.05, 1.05])
MEMORY = contestant("titans-mac", [0.985, 0.985])
WIN = compare("titans-mac", "transformer++", -0.065, 1.05, (-0.08, -0.05))
ORDER = "Titans MAC has a lower perplexity on WikiText than Transformer++"


def found(text: str, results: Results, measurements: Measurements = NOTHING) -> CheckedClaim:
    """The one claim that begins so."""
    (one,) = [claim for claim in check_claims(results, measurements) if claim.claim.startswith(text)]
    return one


@pytest.mark.parametrize(
    ("pair", "verdict", "reason"),
    [
        (WIN, "reproduced", "separable in the claimed direction"),
        (compare("titans-mac", "transformer++", -0.065, 1.05, (-0.2, 0.07)), "not reproduced", "not separable"),
        (compare("titans-mac", "transformer++", 0.065, 0.985, (0.05, 0.08)), "not reproduced", "the opposite"),
        (compare("transformer++", "titans-mac", 0.065, 0.985, (0.05, 0.08)), "reproduced", "in the claimed direction"),
        (compare("titans-mac", "transformer++", -0.065, 1.05, None), "not testable here", "no interval"),
        (compare("titans-mac", "transformer++", -0.1, 1.05, (-2, -1), "loss"), "not testable here", "not compared"),
    ],
)
def test_an_ordering_needs_a_separable_difference_in_its_direction(pair: Comparison, verdict: str, reason: str) -> None:
    one = found(ORDER, study([PLAIN, MEMORY], [pair]))
    assert (one.verdict, reason in one.reason) == (verdict, True)
    assert one.source == "arXiv 2501.00663, table 1"


@pytest.mark.parametrize(("parameters", "verdict"), [(34_000_000, "reproduced"), (33_000_000, "not testable here")])
def test_a_much_smaller_model_says_nothing_about_large_ones(parameters: int, verdict: str) -> None:
    small = contestant("titans-mac", [0.985, 0.985], parameters=parameters)
    one = found(ORDER, study([PLAIN, small], [WIN]))
    assert one.verdict == verdict
    assert one.ours is not None


def test_our_numbers_and_our_size_are_told() -> None:
    one = found(ORDER, study([PLAIN, MEMORY], [WIN]))
    assert one.claim.endswith("25.43 against 31.52 at 340M, 19.93 against 25.21 at 760M")
    assert one.ours == (
        "titans-mac 0.9850 against transformer++ 1.0500 bits per byte, "
        "−0.0650 (−6.2 %; 95 % interval −0.0800 to −0.0500)"
    )
    assert one.reason == "separable in the claimed direction at 50M parameters and 100K tokens of enwik8."


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("titans-mac", {"group": "another size"}),
        ("titans-mac", {"model": {"use_memory": False}}),
        ("titans-mac", {"model": {"momentum": False}}),
        ("titans-mag", {}),
    ],
)
def test_an_ordering_is_about_whole_models_of_one_group(name: str, given: dict[str, Any]) -> None:
    other = contestant(name, [0.985, 0.985], **given)
    pair = WIN.model_copy(update={"contestant": name})
    one = found(ORDER, study([PLAIN, other], [pair]))
    assert (one.verdict, one.reason) == ("not testable here", "needs titans-mac and transformer++ in one group.")


def test_attention_in_a_window_is_not_the_baseline_that_papers_mean() -> None:
    windowed = contestant("transformer++", [1.05, 1.05], model={"window": 64})
    assert found(ORDER, study([windowed, MEMORY], [WIN])).verdict == "not testable here"
    full = contestant("transformer++", [1.05, 1.05], model={"window": None})
    assert found(ORDER, study([full, MEMORY], [WIN])).verdict == "reproduced"


def test_an_ablation_is_the_same_model_without_one_part() -> None:
    whole = contestant("titans-lmm", [1.0, 1.0], model={"momentum": True, "decay": True, "conv": 4, "memory_depth": 2})
    without = whole.model_copy(update={"name": "no-momentum", "model": {**whole.model, "momentum": False}})
    pair = compare("no-momentum", "titans-lmm", 0.1, 1.0, (0.05, 0.15))
    results = study([whole, without], [pair])
    one = found("Titans LMM is better than without momentum", results)
    assert (one.verdict, one.source) == ("reproduced", "arXiv 2501.00663, table 5")
    assert found("Titans LMM is better than without convolution", results).verdict == "not testable here"


@pytest.mark.parametrize(
    ("bits", "given", "facts", "verdict", "reason"),
    [
        (0.985, {}, {}, "reproduced", "−0.0050 against the claim"),
        (0.95, {}, {}, "not reproduced", "−0.0400 against the claim"),
        (0.985, {}, {"corpus": "pystdlib"}, "not testable here", "needs enwik8 at 50M; here pystdlib at 50M"),
        (0.985, {"parameters": 70_000_000, "non_embedding_parameters": 65_000_000}, {}, "not testable here", "at 70M"),
        (0.985, {"parameters": 70_000_000, "non_embedding_parameters": 60_000_000}, {}, "reproduced", "−0.0050"),
    ],
)
def test_a_number_needs_the_same_text_and_about_the_same_size(
    bits: float, given: dict[str, Any], facts: dict[str, Any], verdict: str, reason: str
) -> None:
    other = contestant("titans-mac", [bits, bits], **given)
    one = found("Titans (default) has 0.99 bits per byte on enwik8 at 50M", study([PLAIN, other], [WIN], **facts))
    assert (one.verdict, reason in one.reason) == (verdict, True), one.reason


def test_noise_is_needed_where_the_claim_is_about_noise() -> None:
    entries = [contestant("titans-lmm", [1.1, 1.1]), contestant("yaad", [1.0, 1.0])]
    pair = compare("yaad", "titans-lmm", -0.1, 1.1, (-0.15, -0.05))
    assert found("Yaad is better than Titans on noisy", study(entries, [pair])).verdict == "not testable here"
    assert found("Yaad is better than Titans on noisy", study(entries, [pair], noise=0.1)).verdict == "reproduced"
    large = found("At 1.3B Yaad", study(entries, [pair]))
    assert (large.verdict, "needs 1.3B parameters" in large.reason) == ("not testable here", True)


@pytest.mark.parametrize(
    ("decode", "verdict"), [(0.2151, "reproduced"), (0.25, "reproduced"), (0.0022, "not reproduced")]
)
def test_the_slowdown_is_compared_as_a_multiple(decode: float, verdict: str) -> None:
    timed = Measurements(contestants={"transformer++": measured(decode=0.001), "titans-mac": measured(decode=decode)})
    one = found("Titans takes +21,410.5 %", study([PLAIN, MEMORY], [WIN]), timed)
    assert one.verdict == verdict
    assert one.ours is not None
    assert one.ours.endswith(f"{decode / 0.001:,.1f} times" if decode > 0.01 else "+120.0 %, 2.20 times")


def test_a_change_is_reproduced_where_it_lies_within_our_interval() -> None:
    def checked(low: float, high: float) -> str:
        pair = compare("titans-mac", "transformer++", (low + high) / 2, 20.0, (low, high), "perplexity")
        return found("Titans has a perplexity of +0.1 %", study([PLAIN, MEMORY], [WIN, pair])).verdict

    assert checked(-0.1, 0.1) == "reproduced", "0.1 % of 20 is 0.02"
    assert checked(0.021, 0.1) == "not reproduced"
    assert checked(-1.0, -0.5) == "not reproduced"
    assert checked(-1.0, 1.0) == "not testable here", "an interval of ten percent would confirm anything"


def test_what_slows_down_is_read_from_profiles() -> None:
    def checked(memory: float, clock: float | None = None) -> CheckedClaim:
        ours = {"attention": 1.0, "memory write": memory / 2, "memory read": memory / 2, "MLP": 2.0}
        timed = Measurements(
            contestants={
                "transformer++": measured(decode=2.0, parts={"attention": 1.0, "MLP": 1.0}),
                "titans-mac": measured(decode=clock or 3 + memory, parts=ours),
            }
        )
        return found("The slowdown is primarily due", study([PLAIN, MEMORY], [WIN]), timed)

    assert checked(3.0).verdict == "reproduced"
    assert checked(3.0).reason == "75 % of the difference goes into its parts."
    assert checked(0.5).verdict == "not reproduced"
    assert checked(3.0, clock=20.0).reason == "profiles and clock disagree about how much slower it is."


@pytest.mark.parametrize(
    ("ours", "verdict"), [(2000.0, "reproduced"), (1010.0, "not reproduced"), (500.0, "not reproduced")]
)
def test_training_speed_needs_the_length_that_was_claimed(ours: float, verdict: str) -> None:
    timed = Measurements(contestants={"transformer++": measured(rate=ours), "titans-mac": measured(rate=1000.0)})
    text = "Transformer++ trains faster than Titans MAC"
    assert found(text, study([PLAIN, MEMORY], [WIN], sequence_length=2048), timed).verdict == verdict
    assert found(text, study([PLAIN, MEMORY], [WIN]), timed).verdict == "not testable here"


def test_nothing_is_tested_by_an_unsound_study() -> None:
    failed = AuditResult(passed=False, findings=("tokens differ",), notes=(), table=())
    unsound = (
        study([PLAIN, MEMORY], [WIN], audit=failed),
        study([PLAIN, MEMORY], [WIN], finished=False),
        unfinished_study()[0],
    )
    for results in unsound:
        assert {one.verdict for one in check_claims(results, NOTHING)} == {"not testable here"}


def test_every_claim_is_answered_once_for_each_pair() -> None:
    for results, measurements in (made_up_study(), made_up_study(seeds=1), masked_study()):
        checked = check_claims(results, measurements)
        assert {one.claim for one in checked} == {claim.text for claim in CLAIMS}
        assert all(one.reason.endswith(".") and one.source for one in checked)
        assert all(one.ours for one in checked if one.verdict != "not testable here")
    assert not any("bert" in (one.ours or "") for one in checked)


def entrants(claim: Claim) -> list[Entrant]:
    values = [getattr(claim, field.name) for field in fields(claim)]
    return [value for value in values if isinstance(value, Entrant)]


def test_claims_name_architectures_and_fields_that_exist() -> None:
    named = {name for claim in CLAIMS for entrant in entrants(claim) for name in entrant.architectures}
    assert named <= set(architectures())
    assert {entrant.without for claim in CLAIMS for entrant in entrants(claim)} <= PARTS.keys() | {None}
    assert {field for field, _ in PARTS.values()} <= find("titans-mac").model_fields.keys()


def test_the_numbers_of_an_ordering_have_its_order() -> None:
    """Of the claims themselves: whoever predicts better has less, whoever is faster or answers more has more."""
    count = 0
    for claim in CLAIMS:
        for ours, theirs in re.findall(r"(\d+(?:\.\d+)?)K? against (\d+(?:\.\d+)?)", claim.text):
            if isinstance(claim, Better | Faster | Answers):
                assert (float(ours) < float(theirs)) == isinstance(claim, Better), claim.text
                count += 1
    assert count > 55
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS)
    kinds = [type(claim) for claim in CLAIMS]
    assert kinds.count(Score) == 8
    assert all(claim.needs for claim in CLAIMS if isinstance(claim, Elsewhere))


def test_reasons_have_our_number_and_the_papers() -> None:
    titans: Contestant = contestant("titans-mac", [1.0, 1.0], model={"chunk": 64, "segment": 256})
    results = study([PLAIN, titans], [])
    told = {one.topic: one.text for one in why_results_may_differ(results, Measurements(contestants={"a": measured()}))}
    # 170M / 50M = 3.4; 15B / 100K = 150,000; 4096 / 512 = 8; 0.5M / 1000 = 500.
    assert told["scale"] == (
        "Our models have 50M parameters, those of the paper 170M to 760M (arXiv 2501.00663, section 5.1): "
        "its smallest has 3.40 times those of our largest."
    )
    assert "100K tokens, theirs on 15B to 30B" in told["tokens"]
    assert "150,000 times ours" in told["tokens"]
    assert told["sequence length"].endswith("8.00 times ours.")
    assert told["batch"].endswith("500.0 times ours.")
    assert told["tuning"].startswith("Ours were not tuned; adamw")
    assert "titans-mac chunk 64 and segment 256" in told["architecture"]
    assert all("2501.00663" in text for text in told.values())
    sweeps = {one.topic: one.text for one in why_results_may_differ(*made_up_study())}
    assert sweeps["tuning"].startswith(
        "Ours were tuned with 5 trials each, and the optimum of titans-mac lies at the edge"
    )
