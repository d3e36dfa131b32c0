"""Right answers: their intervals, pictures and sentences, by numbers that a pencil finds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from lockstep.report.answers import beats_chance, gap, hardest, nearest, pooled, rate, score_at
from lockstep.report.figure import Figure
from lockstep.report.figures import figures
from lockstep.report.figures.drawing import log_ticks
from lockstep.report.files import vector
from lockstep.report.findings import verdict
from lockstep.report.intervals import newcombe, wilson
from lockstep.report.results import (
    AtContext,
    Band,
    Bucket,
    CommonsenseScore,
    Contestant,
    Measurements,
    Results,
    Streamed,
    TaskScore,
)
from lockstep.report.wording import in_tokens
from tests.report.by_hand import LENGTH, NOTHING, answered, contestant, measured, spread, study


def asked(name: str, *scores: TaskScore, **fields: Any) -> Contestant:
    return contestant(name, [1.0, 1.0], tasks=scores, **fields)


def drawn(results: Results, measurements: Measurements = NOTHING) -> dict[str, Figure]:
    found = {one.name: one for one in figures(results, measurements)}
    assert all(vector(one.spec).startswith("<svg") for one in found.values())
    return found


# Intervals.


@pytest.mark.parametrize(("right", "answers"), [(0, 20), (1, 200), (37, 100), (200, 200)])
def test_wilson_is_that_of_scipy(right: int, answers: int) -> None:
    theirs = stats.binomtest(right, answers).proportion_ci(method="wilson")
    assert wilson(right, answers) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_the_difference_of_shares_is_newcombes_own_example() -> None:
    # Newcombe (1998), table II, method 10: 56/70 against 48/80, and 10/10 against 0/10.
    assert newcombe((56, 70), (48, 80)) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert newcombe((10, 10), (0, 10)) == pytest.approx((0.6075, 1.0), abs=5e-5)


def test_intervals_are_over_seeds_where_they_differ_and_over_answers_else() -> None:
    seeds = rate(answered("recall", "4 pairs", 512, [80, 84, 88]))
    reach = 4.30265 * 4 / math.sqrt(3) / 100
    assert seeds[:3] == pytest.approx((0.84, 0.84 - reach, 0.84 + reach))
    assert seeds.over == "seeds"
    assert rate(answered("recall", "4 pairs", 512, [84])) == (0.84, *wilson(84, 100), "answers")
    assert rate(answered("recall", "4 pairs", 512, [0, 0, 0])) == (0.0, *wilson(0, 300), "answers")
    assert rate(answered("recall", "4 pairs", 512, [99, 90])).high == 1.0


def test_chance_must_lie_below_both_intervals() -> None:
    assert beats_chance(answered("recall", "", 8, [20, 22, 21], chance=0.1))
    assert not beats_chance(answered("recall", "", 8, [20, 60, 5], chance=0.1)), "seeds differ too much"
    assert not beats_chance(answered("recall", "", 8, [11, 11, 11], chance=0.1)), "answers are too few"
    assert not beats_chance(answered("recall", "", 8, [0, 0, 0], chance=1e-5)), "less than chance is not more"


def test_pooled_answers_are_of_the_seeds_that_have_them_all() -> None:
    both = pooled(
        [answered("needles", "number", 512, [10, 20], 100, 0.1), answered("needles", "word", 512, [5], 50, 0.4)]
    )
    assert both is not None
    assert [(run.data_seed, run.answers, run.right) for run in both.runs] == [(0, 150, 15)]
    # 200 answers at a tenth and 50 at two fifths.
    assert both.chance == pytest.approx(0.16)
    assert pooled([]) is None


def test_a_gap_pairs_seeds() -> None:
    ours, theirs = answered("recall", "", 8, [50, 70]), answered("recall", "", 8, [40, 59])
    found = gap(ours, theirs)
    assert found is not None
    # Differences 10 and 11: 10.5 ± 12.706 × 0.7071 / √2.
    assert (found.effect, found.low, found.high) == pytest.approx((0.105, 0.105 - 0.06353, 0.105 + 0.06353), abs=1e-4)
    assert found.separable
    assert gap(ours, answered("recall", "", 8, [40])) is None
    same = gap(answered("recall", "", 8, [50, 50]), answered("recall", "", 8, [48, 48]))
    assert same is not None
    assert not same.separable, "two of a hundred may be luck, even if it strikes twice"


def test_the_hardest_level_is_answered_least_and_lengths_are_near_by_ratio() -> None:
    one = asked("a", answered("recall", "4 pairs", 512, [9, 9]), answered("recall", "8 pairs", 512, [50, 50]))
    assert hardest([one], "recall", 512) == "4 pairs"
    equal = asked("a", answered("recall", "4 pairs", 512, [9, 9]), answered("recall", "8 pairs", 512, [9, 9]))
    assert hardest([equal], "recall", 512) == "8 pairs"
    assert nearest((100, 600), 300) == 600
    assert score_at(one, "recall", 1024) is None
    assert [in_tokens(length) for length in (512, 4096, 2**20, 1000)] == ["512", "4K", "1M", "1,000"]


# Figures.


def rows_of(figure: Figure, **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in figure.rows if all(row.get(key) == value for key, value in wanted.items())]


def layers_of(spec: Any) -> list[dict[str, Any]]:
    inner = spec.get("spec", spec)
    return [part for layer in inner.get("layer", [inner]) for part in layer.get("layer", [layer])]


def test_levels_of_one_length_are_an_axis_in_their_order() -> None:
    one = asked(
        "a", *(answered("noise", f"{share} % corrupted", 512, [90 - share, 88 - share]) for share in (0, 10, 30))
    )
    figure = drawn(study([one]))["task_noise"]
    assert figure.spec["encoding"]["x"]["sort"] == ["0 % corrupted", "10 % corrupted", "30 % corrupted"]
    assert [row["accuracy"] for row in figure.rows] == pytest.approx([0.89, 0.79, 0.59])
    assert figure.says.startswith("30 % corrupted, the level answered least, at 512 tokens: a 59.0 %.")
    assert "Whiskers are 95 % intervals over seeds (Student's t)." in figure.says


def test_chance_is_drawn_grey_dashed_and_named() -> None:
    scores = [answered("recall", level, 512, [50, 52], chance=1 / 64) for level in ("4 pairs", "8 pairs")]
    figure = drawn(study([asked("a", *scores)]))["task_recall"]
    guessed = [layer for layer in layers_of(figure.spec) if layer["encoding"].get("y", {}).get("field") == "chance"]
    line, words = guessed
    assert line["mark"]["strokeDash"]
    assert words["encoding"]["text"] == {"value": "chance"}
    assert {row["chance"] for row in figure.rows} == {1 / 64}
    assert "chance" in vector(figure.spec)


def test_lengths_are_an_axis_with_a_panel_for_each_level() -> None:
    scores = [
        answered("copying", level, length, [right], chance=0.1)
        for length, right in ((256, 90), (512, 80), (2048, 20))
        for level in ("4 symbols", "8 symbols")
    ]
    figure = drawn(study([asked("a", *scores)]))["task_copying"]
    assert figure.spec["facet"]["sort"] == ["4 symbols", "8 symbols"]
    assert figure.spec["columns"] == 2
    x = figure.spec["spec"]["encoding"]["x"]
    assert (x["field"], x["scale"]["base"], x["axis"]["values"]) == ("length", 2, [256, 512, 2048])
    (rule,) = [layer for layer in layers_of(figure.spec) if layer["encoding"].get("x", {}).get("datum")]
    assert rule["encoding"]["x"]["datum"] == LENGTH
    assert "over the answers of one seed (Wilson)" in figure.says
    (row,) = rows_of(figure, level="8 symbols", length=2048)
    assert (row["low"], row["high"]) == wilson(20, 100)


def bands(*right: int) -> tuple[Band, ...]:
    """Of ten answers each; none where it is negative."""
    step = 1 / len(right)
    return tuple(
        Band(first=place * step, last=(place + 1) * step, answers=10 if one >= 0 else 0, right=max(0, one))
        for place, one in enumerate(right)
    )


def test_depths_are_cells_and_empty_ones_are_left_out() -> None:
    scores = [
        answered("needles", "word", 512, [16], 20, bands=bands(9, 7)),
        answered("needles", "word", 2048, [3], 10, bands=bands(3, -1)),
    ]
    drawn_all = drawn(study([asked("a", *scores)]))
    figure = drawn_all["task_needles_depth_1"]
    found = {(row["tokens"], row["depth"]): row["accuracy"] for row in figure.rows}
    assert found == {("512", "0–50 %"): 0.9, ("512", "50–100 %"): 0.7, ("2K", "0–50 %"): 0.3}
    cells, numbers, *line = layers_of(figure.spec)
    assert cells["encoding"]["color"]["scale"]["domain"] == [0, 1]
    assert numbers["name"] == "cell_numbers"
    assert all('"512"' in layer["transform"][0]["filter"] for layer in line)
    assert len(line) == 2
    assert "Answered least: a 30 % (2K tokens, depth 0–50 %)." in figure.says
    assert "Right of the dashed line" in figure.says


def test_the_training_length_is_marked_only_between_lengths() -> None:
    for length, said in ((256, "No length is beyond"), (1024, "All lengths are beyond")):
        score = answered("needles", "word", length, [16], 20, bands=bands(9, 7))
        figure = drawn(study([asked("a", score)]))["task_needles_depth_1"]
        assert len(layers_of(figure.spec)) == 2
        assert said in figure.says


def test_one_level_at_one_length_is_a_dot_beside_chance() -> None:
    found = drawn(study([asked("a", answered("states", "S5", 512, [40, 44], chance=1 / 120))]))
    (row,) = found["task_others"].rows
    assert (row["task"], row["accuracy"], row["chance"]) == ("State tracking", pytest.approx(0.42), 1 / 120)
    assert "task_states" not in found


def test_recall_stands_against_the_state_at_the_tested_length() -> None:
    scores = [
        answered("recall", level, 1024, right) for level, right in (("4 pairs", [90, 91]), ("64 pairs", [30, 32]))
    ]
    one = asked("a", *scores, state_bytes={512: 1000, 1024: 2000, 4096: 8000})
    two = asked("b", *scores, state_bytes={512: 5000})
    three = asked("c", *scores, state_bytes={})
    figure = drawn(study([one, two, three]))["task_by_state"]
    assert {row["contestant"]: row["state_bytes"] for row in figure.rows} == {"a": 2000, "b": 5000}
    assert {(row["level"], row["accuracy"]) for row in figure.rows} == {("64 pairs", 0.31)}
    needles = asked("a", answered("needles", "word", 512, [40, 44]))
    assert "Needles" in drawn(study([needles]))["task_by_state"].title
    assert "task_by_state" not in drawn(study([asked("a", answered("states", "S5", 512, [40, 44]))]))


def bucket(first: int, last: int, loss: float) -> Bucket:
    return Bucket(first=first, last=last, tokens=100, loss=loss)


def test_beyond_training_every_number_is_drawn_with_a_rule_at_the_training_length() -> None:
    one = asked(
        "a",
        beyond=(bucket(257, 512, 3.0), bucket(513, 1024, 3.2), bucket(1025, 2048, 4.0)),
        contexts=tuple(AtContext(context=at, tokens=64, loss=3.0, perplexity=math.exp(3)) for at in (128, 2048)),
    )
    found = drawn(study([one]))
    assert [row["loss"] for row in found["beyond_positions"].rows] == [3.0, 3.2, 4.0]
    assert found["beyond_positions"].rows[0]["position"] == pytest.approx(math.sqrt(257 * 512))
    for name in ("beyond_positions", "beyond_context"):
        rules = [layer["encoding"]["x"] for layer in layers_of(found[name].spec) if layer["mark"]["type"] == "rule"]
        assert rules == [{"datum": LENGTH}]
    assert "after 2,048 tokens the perplexity is a 20.1." in found["beyond_context"].says


def test_streamed_reading_is_told_in_bytes_and_time() -> None:
    def read(length: int, peak: int, decode: float) -> Streamed:
        numbers: dict[str, Any] = {"seconds": 1.0, "tokens_per_second": length, "process_peak_bytes": None}
        held = {"peak_bytes": peak, "state_bytes": 10, "decode_peak_bytes": 20}
        return Streamed(length=length, decode_seconds=spread(decode), **numbers, **held)

    timed = measured().model_copy(update={"streamed": (read(1024, 5000, 0.001), read(4096, 20_000, 0.002))})
    found = drawn(study([asked("a"), asked("b")]), Measurements(contestants={"a": timed, "b": measured()}))
    held = found["inference_streamed_memory"]
    assert [(row["length"], row["peak_bytes"]) for row in held.rows] == [(1024, 5000), (4096, 20_000)]
    assert "a 20 kB by 4,096 tokens" in held.says
    assert "No number for b" in held.says
    assert [row["milliseconds"] for row in found["inference_streamed_decode"].rows] == pytest.approx([1.0, 2.0])


def question(name: str, value: float, error: float | None, chance: float | None, metric: str = "accuracy") -> Any:
    return CommonsenseScore(set=name, metric=metric, value=value, standard_error=error, examples=100, chance=chance)


def test_common_sense_has_dots_with_errors_and_chance() -> None:
    sets = (question("boolq", 0.6, 0.03, 0.5), question("lambada_openai", 50.0, 60.0, None, "perplexity"))
    found = drawn(study([contestant("a", [1.0], commonsense=sets)]))
    (row,) = found["commonsense"].rows
    assert (row["low"], row["high"], row["chance"]) == (pytest.approx(0.57), pytest.approx(0.63), 0.5)
    assert any(layer["mark"]["type"] == "tick" for layer in layers_of(found["commonsense"].spec))
    (words,) = found["commonsense_perplexity"].rows
    assert (words["value"], words["low"], words["high"]) == (50.0, 50.0, 110.0), "no whisker below nothing"


# Sentences.


def said(*contestants: Contestant, topic: str = "recall") -> list[str]:
    return verdict(study(contestants), NOTHING).about(topic)


def test_the_hardest_level_is_told_with_chance_and_intervals() -> None:
    ours = asked("a", answered("recall", "4 pairs", 512, [99, 98]), answered("recall", "8 pairs", 512, [80, 82]))
    other = asked("b", answered("recall", "4 pairs", 512, [30, 31]), answered("recall", "8 pairs", 512, [1, 2]))
    # t of one degree of freedom is 12.706; halves of the differences between the two seeds times that.
    assert said(other, ours) == [
        "Associative recall, 8 pairs (the hardest of 2 levels) at 512 tokens: a answers 81.0 % (68.3 to 93.7) and "
        "b 1.5 % (0.0 to 7.9); chance is 1.0 %; 95 % intervals over seeds (Student's t). Not told from chance, or "
        "below it: b."
    ]


def test_who_beats_chance_is_not_named_among_the_lost() -> None:
    (text,) = said(asked("a", answered("induction", "induction", 512, [80, 82])))
    assert "Not told from chance" not in text
    (text,) = said(asked("a", answered("induction", "induction", 512, [0, 0], chance=0.5)))
    assert text.endswith("Not told from chance, or below it: a.")


def over_lengths(name: str, *right: int, chance: float = 0.01) -> Contestant:
    lengths = (256, 512, 1024, 2048)
    return asked(
        name,
        *(answered("needles", "word", at, [one, one], chance=chance) for at, one in zip(lengths, right, strict=False)),
    )


def test_the_longest_length_and_where_half_is_lost() -> None:
    _, longest, halved = said(
        over_lengths("a", 90, 90, 80, 70), over_lengths("b", 90, 80, 41, 20), over_lengths("c", 90, 80, 40, 20)
    )
    assert longest.startswith(
        "Needles in a haystack at 2,048 tokens (4.00 times the training length): a answers 70.0 % (63.3 to 75.9), "
        "b 20.0 %"
    )
    assert halved == (
        "Needles in a haystack: of what is right at the training length, 512 tokens, half or more is lost first at "
        "1,024 tokens in c and at 2,048 tokens in b, and not by 2,048 tokens in a."
    )


@pytest.mark.parametrize(
    ("one", "count"),
    [
        (over_lengths("a", 90, 90, 90, 90), 3),
        (over_lengths("a", 90, 1, 1, 1), 2),
        (over_lengths("a", 90, 40, 30, 20, chance=0.25), 2),
        (over_lengths("a", 90, 90), 2),
    ],
)
def test_half_is_told_only_where_there_is_something_to_lose(one: Contestant, count: int) -> None:
    """Nothing beyond chance, half of it not beyond chance, or no length beyond that of training."""
    texts = said(one)
    assert len(texts) == count
    assert count == 2 or "by nobody: not by 2,048 tokens in a" in texts[-1]


@pytest.mark.parametrize(
    ("far", "word", "factor"),
    [
        (3.0, "the same within 2 %", "1.00"),
        (2.5, "better", "0.61"),
        (3.7, "worse", "2.01"),
        (3.019, "the same", "1.02"),
    ],
)
def test_loss_beyond_training_is_told_with_its_factor(far: float, word: str, factor: str) -> None:
    one = asked(
        "a", beyond=(bucket(129, 256, 9.0), bucket(257, 512, 3.0), bucket(513, 1024, 1.0), bucket(1025, 2048, far))
    )
    (text,) = said(one)
    assert text.startswith("In one long text, at positions 1,025 to 2,048 against those up to the training length, 512")
    assert f"a {word}" in text
    assert f"{factor} times the perplexity" in text
    assert said(asked("a", beyond=(bucket(129, 256, 9.0), bucket(257, 512, 3.0)))) == []


def test_sense_is_more_than_chance_by_two_errors() -> None:
    clear = contestant("a", [1.0], commonsense=(question("boolq", 0.6, 0.03, 0.5),))
    unclear = contestant("b", [1.0], commonsense=(question("boolq", 0.55, 0.03, 0.5),))
    assert said(unclear, clear, topic="commonsense") == [
        "boolq, accuracy: a 60.0 ± 3.0 % and b 55.0 ± 3.0 %; chance is 50.0 %. Not more than chance by two standard "
        "errors: b."
    ]


def test_masked_models_are_not_asked() -> None:
    score = answered("recall", "4 pairs", 512, [99, 98])
    masked = contestant("bert", [1.0, 1.0], track="masked", tasks=(score,))
    assert said(masked) == []
    assert not [name for name in drawn(study([masked])) if name.startswith("task")]


@pytest.mark.parametrize(("low", "high"), [(52.8, 54.1), (15.5, 16.7), (3, 3), (1, 10), (2, 5e6), (0.011, 0.0112)])
def test_a_logarithmic_axis_always_has_numbers(low: float, high: float) -> None:
    ticks = log_ticks([low, high])
    inside = [tick for tick in ticks if low * 0.99 <= tick <= high * 1.01]
    assert len(inside) >= (1 if low == high else 2)
    assert len(ticks) <= 12
