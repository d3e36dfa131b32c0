"""Sentences hold the numbers that a pencil finds, and name no winner that was not found."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest

from lockstep.report.findings import difference_rows, slower_because, verdict
from lockstep.report.outcome import common_loss, compared, cost_of, turned
from lockstep.report.results import AuditResult, Comparison, Measurements, Profile, Results, Sweep, Trial
from lockstep.report.slowness import parts_of_difference
from lockstep.report.wording import difference, milliseconds, percent, times
from tests.report.by_hand import NOTHING, compare, contestant, measured, study
from tests.report.made_up import made_up_study, masked_study, unfinished_study

PLAIN = contestant("transformer++", [1.20, 1.30])
MEMORY = contestant("titans-mac", [1.10, 1.20])
WIN = compare("titans-mac", "transformer++", -0.1, 1.25, (-0.12, -0.08))

CLAIMS_A_WINNER = ("lowest", "highest", "better than")


def test_a_separable_win_is_told_with_units_percent_and_interval() -> None:
    found = verdict(study([PLAIN, MEMORY], [WIN]), NOTHING)
    assert found.standing == "final"
    assert found.winners == {"causal": "titans-mac"}
    # Means 1.15 and 1.25; seen from the winner, the other is 0.1 / 1.15 = 8.7 % behind.
    assert found.about("quality") == [
        "titans-mac has the lowest bits per byte, 1.1500; the next is transformer++ (1.2500), "
        "+0.1000 (+8.7 %; 95 % interval +0.0800 to +0.1200)."
    ]


def test_a_record_reads_the_same_from_either_side() -> None:
    turned_win = turned(WIN)
    assert (turned_win.effect, turned_win.low, turned_win.high) == (0.1, 0.08, 0.12)
    assert turned_win.baseline_mean == pytest.approx(1.15)
    assert verdict(study([PLAIN, MEMORY], [turned_win]), NOTHING) == verdict(study([PLAIN, MEMORY], [WIN]), NOTHING)
    again = turned(turned_win)
    assert again.model_dump() == pytest.approx(WIN.model_dump())
    assert compared(study([PLAIN, MEMORY], [WIN]), "loss", "titans-mac", "transformer++") is None


def test_the_baseline_is_told_beside_everybody() -> None:
    third = contestant("lstm", [1.50, 1.60])
    pairs = [
        WIN,
        compare("lstm", "transformer++", 0.3, 1.25, (0.2, 0.4)),
        compare("lstm", "titans-mac", 0.4, 1.15, (0.3, 0.5)),
    ]
    _, against = verdict(study([PLAIN, MEMORY, third], pairs), NOTHING).about("quality")
    assert against == (
        "Against the baseline transformer++ (1.2500 bits per byte): titans-mac −0.1000 (−8.0 %; 95 % interval −0.1200 "
        "to −0.0800); lstm +0.3000 (+24.0 %; 95 % interval +0.2000 to +0.4000)."
    )


def test_who_cannot_be_told_apart_is_listed() -> None:
    third = contestant("lstm", [1.50, 1.60])
    pairs = [
        compare("titans-mac", "transformer++", -0.1, 1.25, (-0.21, 0.01)),
        compare("lstm", "transformer++", 0.3, 1.25, (0.2, 0.4)),
        compare("lstm", "titans-mac", 0.4, 1.15, (0.3, 0.5)),
    ]
    found = verdict(study([PLAIN, MEMORY, third], pairs), NOTHING)
    assert found.winners == {}
    standing, distances, *_ = found.about("quality")
    assert standing == (
        "No winner in bits per byte. First by its mean is titans-mac (1.1500), not separable from transformer++"
        " (1.2500); lstm (1.5500) lies behind."
    )
    assert distances.startswith(
        "Against titans-mac: transformer++ (1.2500), +0.1000 (+8.7 %; 95 % interval −0.0100 to +0.2100; not separable);"
        " lstm (1.5500), +0.4000"
    )


def test_holm_may_take_back_what_an_interval_gives() -> None:
    weak = WIN.model_copy(update={"separable": False, "p": 0.03, "p_adjusted": 0.18})
    found = verdict(study([PLAIN, MEMORY], [weak]), NOTHING)
    assert found.winners == {}
    assert "not separable after Holm's correction" in found.about("quality")[1]
    assert any("adjusted by Holm over 1 pair" in text for text in found.about("certainty"))


def test_without_a_passed_audit_there_is_no_verdict() -> None:
    failed = AuditResult(passed=False, findings=("data.seed: 1 in a; 2 in b", "tokens differ"), notes=(), table=())
    found = verdict(study([PLAIN, MEMORY], [WIN], audit=failed), NOTHING)
    assert (found.standing, found.winners) == ("none", {})
    assert [one.text for one in found.sentences] == [
        "There is no verdict: the audit did not pass (data.seed: 1 in a; 2 in b; tokens differ)."
    ]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((-0.12, -0.08), "intervals are over documents within one run and say nothing about other seeds"),
        (None, "there is no interval, and nothing is known about other seeds"),
    ],
)
def test_one_seed_says_what_its_interval_is_worth(ends: tuple[float, float] | None, said: str) -> None:
    pair = compare("titans-mac", "transformer++", -0.1, 1.2, ends, kind="documents", samples=1)
    entries = [contestant("transformer++", [1.2]), contestant("titans-mac", [1.1])]
    found = verdict(study(entries, [pair]), NOTHING)
    assert any(said in text for text in found.about("certainty"))
    assert found.winners == {}, "what documents tell apart, another seed may turn round"
    told = found.about("quality")
    assert any("95 % interval over documents" in text for text in told) == (ends is not None)
    assert told[0].startswith("No winner in bits per byte")


def test_who_diverged_is_named_and_not_ranked() -> None:
    lost = contestant("lstm", [None, 0.5])
    found = verdict(study([PLAIN, MEMORY, lost], [WIN]), NOTHING)
    assert found.about("status") == [
        "lstm diverged in 1 of 2 runs (seed 0: the loss was not finite) and is not ranked; "
        "its other runs came to 0.5000 bits per byte at 100 % of the budget."
    ]
    assert found.winners == {"causal": "titans-mac"}
    assert not any("lstm" in text for text in found.about("quality"))


def test_the_masked_track_is_never_ranked_against_the_causal_one() -> None:
    found = verdict(*masked_study())
    masked = [text for text in found.about("quality") if "bert" in text]
    results, _ = masked_study()
    scores = [run.cooled[-1].score.perplexity for run in results.contestant("bert").runs]
    assert masked == [
        f"masked: bert came to {sum(scores) / 3:.2f} in pseudo-perplexity; nobody else of its group can be compared "
        "with it."
    ]
    causal = [text for text in found.about("quality") if "transformer++" in text]
    assert causal
    assert all("perplexity" not in text and "bert" not in text for text in causal)


def test_an_unfinished_study_says_what_is_missing() -> None:
    found = verdict(*unfinished_study())
    assert (found.standing, found.winners) == ("none", {})
    assert "nothing has been audited yet" in found.sentences[0].text
    missing = next(text for text in found.about("status") if "preliminary" in text)
    assert "lstm seeds 0, 1 and 2 waiting" in missing
    assert "titans-mac seeds 1 and 2 at step 720 of 1,200" in missing
    halfway = verdict(*made_up_study(finished=False))
    assert (halfway.standing, halfway.winners) == ("preliminary", {})
    assert halfway.about("quality")[0].startswith("So far, at 50 % of the budget: ")


def test_no_winner_without_a_separable_difference() -> None:
    """Random scores and records: a winner is named if and only if it is separable from all others."""
    draw = random.Random(0)
    named = 0
    for _ in range(300):
        entries = [
            contestant(name, [draw.uniform(1, 2)] * 2) for name in ("gpt2", "lstm", "gru", "rnn")[: draw.randint(2, 4)]
        ]
        means = {one.name: one.runs[0].cooled[0].score.bits_per_byte or 0.0 for one in entries}
        pairs = []
        for one, other in combinations(entries, 2):
            ours, theirs = draw.sample([one.name, other.name], 2)
            separable = draw.random() < 0.7
            effect = means[ours] - means[theirs]
            ends = (effect - 1e-9, effect + 1e-9) if separable else (-3.0, 3.0)
            pairs.append(compare(ours, theirs, effect, means[theirs], ends, separable=separable))
        best = min(means, key=means.__getitem__)
        clear = all(pair.separable for pair in pairs if best in (pair.contestant, pair.baseline))
        audit = AuditResult(passed=draw.random() < 0.8, findings=("tokens differ",), notes=(), table=())
        found = verdict(study(entries, pairs, audit=audit), NOTHING)
        assert found.winners == ({"causal": best} if clear and audit.passed else {})
        texts = " ".join(one.text for one in found.sentences)
        assert any(word in texts for word in CLAIMS_A_WINNER) == bool(found.winners)
        named += bool(found.winners)
    assert 50 < named < 250, "both cases occur"


def test_speed_gives_both_numbers_and_the_multiple() -> None:
    times_of = {"transformer++": measured(rate=2000, decode=0.00098), "titans-mac": measured(rate=500, decode=0.00215)}
    told = verdict(study([PLAIN, MEMORY], [WIN]), Measurements(contestants=times_of)).about("speed")
    assert told == [
        "Training speed: transformer++ is fastest with 2K tokens/s against titans-mac 500 tokens/s "
        "(4.00 times as long).",
        "Decoding after 512 tokens: transformer++ is fastest with 0.98 ms per token against titans-mac 2.15 ms "
        "per token (2.19 times as long).",
        "Prefill of 512 tokens: transformer++ is fastest with 9.8 ms against titans-mac 21.5 ms (2.19 times as long).",
    ]


def test_speeds_within_each_others_spread_have_no_fastest() -> None:
    alike = measured(rate=1000), measured(rate=1015)
    told = verdict(
        study([PLAIN, MEMORY], [WIN]), Measurements(contestants={"transformer++": alike[0], "titans-mac": alike[1]})
    ).about("speed")
    assert told[0].startswith("Training speed: titans-mac and transformer++ cannot be told apart by the spread")
    assert "fastest" not in " ".join(told)


def test_memory_is_told_at_the_longest_common_length() -> None:
    small = contestant("lstm", [1.3, 1.4], state_bytes={128: 1000, 1024: 1000, 4096: 1000})
    large = contestant("transformer++", [1.2, 1.3], state_bytes={128: 64_000, 1024: 512_000})
    told = verdict(study([large, small]), NOTHING).about("memory")
    assert told == ["State per sequence at 1,024 tokens: lstm 1 kB against transformer++ 512 kB (512.0 times)."]


def test_the_cost_of_a_common_loss() -> None:
    """Two evaluations at steps 50 and 100: 4.0 and 3.0, and 3.5 and 2.5; the common loss is 3.0."""
    slow = contestant("lstm", [1.3, 1.3], losses=[4.0, 3.0], training_flops_per_token=2e8)
    quick = contestant("titans-mac", [1.1, 1.1], losses=[3.5, 2.5], training_flops_per_token=4e8)
    assert common_loss([slow, quick]) == 3.0
    cost = cost_of(3.0, quick, measured(seconds=80))
    # Halfway between steps 50 and 100: step 75, 75,000 tokens, three quarters of 80 s.
    assert cost is not None
    assert (cost.tokens, cost.flops, cost.seconds) == pytest.approx((75_000, 3e13, 60.0))
    timed = Measurements(contestants={"lstm": measured(seconds=40), "titans-mac": measured(seconds=80)})
    assert verdict(study([slow, quick]), timed).about("cost") == [
        "To come to a validation loss of 3.0000, the highest at the end of training, took "
        "lstm 100K tokens, 20T FLOPs and 40.0 s; titans-mac 75K tokens, 30T FLOPs and 1.0 min."
    ]
    assert cost_of(2.0, quick, None) is None, "never reached"


def test_certainty_names_edges_sizes_and_kernels() -> None:
    trials = tuple(
        Trial(settings={"training.learning_rate": rate}, loss=1.0, status="finished") for rate in (0.001, 0.004)
    )
    sweep = Sweep(contestant="titans-mac", tokens=5000, trials=trials, best=1, at_edge=("training.learning_rate",))
    results = study([PLAIN, MEMORY], [WIN], match=None).model_copy(update={"sweeps": (sweep,)})
    told = verdict(results, Measurements(contestants={"titans-mac": measured()})).about("certainty")
    assert told == [
        "1 of 1 pair can be told apart, from 2 repeats; sizes are not matched; an optimum lies at the edge of its grid;"
        " 100K tokens are few.",
        "2 repeats, each with seeds of its own; intervals are over them, and contestants are paired.",
        "Differences in bits per byte are judged by their intervals alone, one by one.",
        "Tuned with 2 trials of 5K tokens each.",
        "titans-mac is provisional: its optimum lies at the edge of the grid (training.learning_rate 0.004).",
        "Sizes were stated by hand and not matched: 50M parameters.",
        "Times hold for these kernels and devices only: titans-mac with torch kernels on a machine.",
    ]


def test_rows_are_signed_and_missing_is_missing() -> None:
    timed = Measurements(
        contestants={"transformer++": measured(rate=2000), "titans-mac": measured(rate=500, peak=None)}
    )
    ours = [math.exp(bits * math.log(2) * 4) for bits in (1.1, 1.2, 1.2, 1.3)]
    effect = (ours[0] + ours[1] - ours[2] - ours[3]) / 2
    perplexity = compare("titans-mac", "transformer++", effect, (ours[2] + ours[3]) / 2, None, "perplexity")
    base, row = difference_rows(study([PLAIN, MEMORY], [WIN, perplexity]), timed)
    assert base.is_baseline
    assert base.bits_per_byte is not None
    assert base.bits_per_byte.difference is None
    assert row.bits_per_byte is not None
    assert row.bits_per_byte.difference == pytest.approx(-0.1)
    assert (row.interval, row.separable) == ((-0.12, -0.08), True)
    assert row.perplexity is not None
    assert row.perplexity.difference == pytest.approx(effect)
    assert row.perplexity.ratio == pytest.approx((ours[0] + ours[1]) / (ours[2] + ours[3]))
    assert row.training_tokens_per_second is not None
    assert row.training_tokens_per_second.ratio == 0.25
    assert row.decode_peak_bytes is None
    assert row.accuracy is not None
    assert row.accuracy.difference is None, "it was not compared"
    other_way = difference_rows(study([PLAIN, MEMORY], [WIN]), timed, baseline="titans-mac")[0]
    assert other_way.bits_per_byte is not None
    assert other_way.bits_per_byte.difference == pytest.approx(0.1)
    assert other_way.interval == (0.08, 0.12)


def test_rows_of_another_group_have_no_baseline() -> None:
    rows = {row.name: row for row in difference_rows(*masked_study())}
    assert rows["bert"].baseline is None
    assert not rows["bert"].is_baseline
    assert rows["bert"].perplexity is not None
    assert rows["bert"].perplexity.baseline is None
    assert rows["gated-deltanet"].baseline == "transformer++"


def test_slowness_is_accounted_for_by_parts() -> None:
    ours = {"attention": 0.0002, "memory write": 0.0010, "MLP": 0.0003}
    theirs = {"attention": 0.0004, "MLP": 0.0003}
    timed = Measurements(
        contestants={
            "transformer++": measured(rate=2000, decode=0.0007, parts=theirs),
            "titans-mac": measured(rate=2000, decode=0.0015, parts=ours),
        }
    )
    assert slower_because(study([PLAIN, MEMORY], [WIN]), timed) == [
        "Decoding after 512 tokens, titans-mac takes 1.5 ms per token against 0.7 ms of transformer++, 2.14 times. "
        "Of the 0.8 ms that the profiles differ by: memory write +1 ms (+125 %) and attention −0.2 ms (−25 %). "
        "It computes 1.00 times the FLOPs per token."
    ]


def test_shares_of_parts_add_up() -> None:
    draw = random.Random(1)
    for _ in range(100):
        ours, theirs = (
            Profile(what="decode", seconds={part: draw.random() for part in draw.sample("abcdef", 4)}) for _ in range(2)
        )
        parts = parts_of_difference(ours, theirs)
        assert sum(part.share for part in parts) == pytest.approx(1)
        assert {part.name for part in parts} == ours.seconds.keys() | theirs.seconds.keys()


def test_great_changes_are_told_as_multiples_too() -> None:
    assert percent(214.105) == "+21,410.5 % (215.1 times)"
    assert percent(0.001) == "+0.1 %"
    assert percent(-0.0001) == "0.0 %"
    assert percent(10.0) == "+1,000.0 %"
    assert times(2.15 / 0.98) == "2.19"
    assert milliseconds(2.15) == "2,150 ms"
    assert difference(compare("a", "b", 1e9, 20.0, None, "perplexity")).startswith("+1e+09")


def every_sentence(results: Results, measurements: Measurements) -> list[str]:
    return [*(one.text for one in verdict(results, measurements).sentences), *slower_because(results, measurements)]


def without_comparisons() -> tuple[Results, Measurements]:
    results, measurements = made_up_study()
    none: tuple[Comparison, ...] = ()
    return results.model_copy(update={"comparisons": none}), measurements


def test_any_study_can_be_told() -> None:
    """Whole, halfway, hardly begun, masked, of one contestant, without clocks: sentences, each with one full stop."""
    alone = made_up_study(("lstm",))
    studies = [
        made_up_study(),
        made_up_study(seeds=1),
        unfinished_study(),
        masked_study(),
        alone,
        without_comparisons(),
    ]
    studies.append((made_up_study()[0], NOTHING))
    for results, measurements in studies:
        for text in every_sentence(results, measurements):
            assert text.endswith(".")
            assert not text.endswith("..")
            assert "near zero" not in text
            assert "None" not in text
    assert verdict(*without_comparisons()).winners == {}
