"""Figures: their numbers are the results' own, whatever can be drawn is drawn, and the files are always the same."""

from __future__ import annotations

import csv
import itertools
import math
import statistics
import struct
from pathlib import Path
from typing import Any

import pytest

from lockstep.report.figure import Figure
from lockstep.report.figures import figures
from lockstep.report.figures.drawing import log_ticks
from lockstep.report.figures.inference import at_longest
from lockstep.report.figures.model_state import cells
from lockstep.report.figures.overviews import overviews, quality_changes
from lockstep.report.figures.pareto import front
from lockstep.report.figures.style import DASHES, PALETTE, SHAPES, Look
from lockstep.report.figures.training import MOST_POINTS, reading, thinned
from lockstep.report.files import pixels, samples_text, spelled_out, table, vector, write_figures
from lockstep.report.intervals import student
from lockstep.report.results import Clock, CurvePoint, Fit, Measurements, Results, Tick
from tests.report.made_up import HOSTILE, STEPS, TOKENS_PER_STEP, UNASKED, made_up_study, masked_study, unfinished_study


def named(results: Results, measurements: Measurements) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures(results, measurements)}


def rows_of(figure: Figure, **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in figure.rows if all(row.get(key) == value for key, value in wanted.items())]


# Everything can be drawn.


@pytest.mark.parametrize("study", [made_up_study, unfinished_study, masked_study])
def test_every_figure_renders_and_says_something(study: Any) -> None:
    results, measurements = study()
    drawn = figures(results, measurements)
    assert len({figure.name for figure in drawn}) == len(drawn)
    for figure in drawn:
        assert vector(figure.spec).startswith("<svg"), figure.name
        assert figure.rows, figure.name
        assert figure.title, figure.name
        assert figure.says.endswith("."), figure.name
        assert names_of_data(figure.spec) == 1, figure.name


def names_of_data(spec: Any) -> int:
    """How many times a specification holds data: it must be once, at the top."""
    if isinstance(spec, list):
        return sum(map(names_of_data, spec))
    if not isinstance(spec, dict):
        return 0
    return ("data" in spec) + sum(names_of_data(part) for key, part in spec.items() if key != "data")


def test_a_figure_without_data_is_left_out() -> None:
    results, _ = made_up_study(("transformer++", "lstm"))
    bare = results.model_copy(
        update={
            "comparisons": (),
            "sweeps": (),
            "contestants": tuple(
                one.model_copy(update={"runs": (), "pictures": (), **UNASKED}) for one in results.contestants
            ),
        }
    )
    names = named(bare, Measurements(contestants={}))
    assert sorted(names) == ["loss_by_position", "loss_by_repeat_distance", "perplexity_over_length"]


def test_an_axis_that_can_be_chosen_is_the_x_at_the_top() -> None:
    drawn = named(*made_up_study())
    assert set(drawn["training_curves"].axes) == {"tokens", "flops", "seconds"}
    assert set(drawn["pareto"].axes) == {
        "decode_milliseconds",
        "training_seconds",
        "training_flops",
        "state_bytes",
        "peak_bytes",
    }
    for figure in drawn.values():
        for field, title in figure.axes.items():
            x = figure.spec["encoding"]["x"]
            assert x["field"] in figure.axes
            switched = figure.spec["encoding"] | {"x": x | {"field": field, "title": title}}
            assert title in vector(figure.spec | {"encoding": switched})


def test_more_contestants_than_colours_still_differ() -> None:
    names = tuple(f"model-{place}" for place in range(20))
    results, measurements = made_up_study(names, seeds=1)
    look = Look(results)
    looks = {(look.tint(name), look.own(DASHES, name), look.own(SHAPES, name)) for name in names}
    assert len(looks) == len(names)
    assert vector(named(results, measurements)["inference_decode"].spec)


def test_a_name_is_never_a_path_nor_an_expression() -> None:
    name = "../evil'\"); datum.x = (`\\"
    results, measurements = made_up_study(("lstm", name), seeds=2)
    for figure in figures(results, measurements):
        assert "/" not in figure.name
        assert vector(figure.spec).startswith("<svg")


# The numbers are the results' own.


def test_curves_have_every_point_on_every_axis() -> None:
    results, measurements = made_up_study()
    figure = named(results, measurements)["training_curves"]
    one = results.contestant("titans-mac")
    run = one.runs[1]
    rows = rows_of(figure, contestant="titans-mac", seed=1, split="training")
    assert [(row["step"], row["tokens"], row["loss"]) for row in rows] == [
        (at.step, at.tokens, at.loss) for at in run.curve
    ]
    assert all(row["flops"] == row["tokens"] * one.training_flops_per_token for row in rows)
    held = rows_of(figure, contestant="titans-mac", seed=1, split="validation")
    assert [row["loss"] for row in held] == [at.score.loss for at in run.evaluated]
    at_end = rows[-1]
    assert at_end["seconds"] == pytest.approx(measurements.contestants["titans-mac"].clocks[1].ticks[-1].seconds)


def clock(*ticks: tuple[int, float, float | None]) -> Clock:
    found = tuple(Tick(step=step, seconds=seconds, joules=joules) for step, seconds, joules in ticks)
    return Clock(data_seed=0, ticks=found, tokens_per_second=None)


def test_a_clock_is_read_between_its_ticks_and_never_beyond() -> None:
    ticks = clock((10, 5.0, 100.0), (20, 25.0, None), (30, 26.0, 300.0))
    assert reading(ticks, 10) == (5.0, 100.0)
    assert reading(ticks, 4) == (2.0, 40.0)
    assert reading(ticks, 15) == (15.0, None)
    assert reading(ticks, 30) == (26.0, 300.0)
    assert reading(ticks, 31) == (None, None)
    assert reading(clock(), 1) == (None, None)
    assert reading(None, 1) == (None, None)


def test_joules_are_an_axis_where_they_were_counted() -> None:
    results, measurements = made_up_study(("lstm",), seeds=1)
    timed = measurements.contestants["lstm"]
    ticks = tuple(tick.model_copy(update={"joules": 30 * tick.seconds}) for tick in timed.clocks[0].ticks)
    counted = timed.model_copy(update={"clocks": (timed.clocks[0].model_copy(update={"ticks": ticks}),)})
    figure = named(results, Measurements(contestants={"lstm": counted}))["training_curves"]
    assert "joules" in figure.axes
    assert all(row["joules"] == pytest.approx(30 * row["seconds"]) for row in figure.rows)


def test_a_long_curve_is_thinned_without_changing_its_mean() -> None:
    steps = list(itertools.accumulate([3, 1, 4, 1, 5, 9, 2, 6] * 60))
    curve = [CurvePoint(step=step, tokens=step, loss=math.sin(step), bits_per_byte=None) for step in steps]
    kept = thinned(curve, MOST_POINTS)
    assert len(kept) <= MOST_POINTS

    def total(points: list[CurvePoint]) -> float:
        before = [0, *(point.step for point in points)]
        return sum(point.loss * (point.step - start) for point, start in zip(points, before, strict=False))

    assert total(kept) == pytest.approx(total(curve))
    assert kept[-1].step == curve[-1].step
    assert thinned(curve[:MOST_POINTS], MOST_POINTS) == curve[:MOST_POINTS]


def test_cooled_points_have_the_mean_and_the_interval_of_their_seeds() -> None:
    results, measurements = made_up_study(seeds=3)
    figure = named(results, measurements)["cooled_points"]
    bits = [run.cooled[-1].score.bits_per_byte or 0 for run in results.contestant("lstm").runs]
    (mean,) = rows_of(figure, contestant="lstm", what="mean", share=1.0)
    assert mean["bits_per_byte"] == pytest.approx(statistics.mean(bits))
    # t of two degrees of freedom at 97.5 %, from a table.
    assert mean["high"] - mean["low"] == pytest.approx(2 * 4.30265 * statistics.stdev(bits) / math.sqrt(3), rel=1e-5)
    assert [row["bits_per_byte"] for row in rows_of(figure, contestant="lstm", what="seed", share=1.0)] == bits
    assert student([1.5]) == (1.5, None, None)


def test_without_bytes_the_loss_is_compared() -> None:
    results, measurements = made_up_study(("lstm", "gated-deltanet"))
    text = results.model_dump()
    for one in text["contestants"]:
        for run in one["runs"]:
            for at in run["cooled"]:
                at["score"]["bits_per_byte"] = None
    drawn = named(Results.model_validate(text), measurements)
    assert drawn["differences"].rows[0]["effect"] == next(
        pair.effect for pair in results.comparisons if pair.share == 1 and pair.metric == "loss"
    )
    assert "loss" in drawn["pareto"].rows[0]


def test_a_difference_keeps_its_meaning_when_the_pair_is_turned_round() -> None:
    results, measurements = made_up_study()
    other = results.model_copy(update={"study": results.study.model_copy(update={"baseline": "lstm"})})
    (forward,) = rows_of(named(results, measurements)["differences"], contestant="lstm")
    (turned,) = rows_of(named(other, measurements)["differences"], contestant="transformer++")
    assert turned["effect"] == -forward["effect"]
    assert (turned["low"], turned["high"]) == (-forward["high"], -forward["low"])
    assert (forward["verdict"], turned["verdict"]) == ("worse", "better")
    entries = results.contestants
    up = quality_changes(results, entries, "perplexity")["lstm"]
    down = quality_changes(other, entries, "perplexity")["transformer++"]
    assert (1 + up / 100) * (1 + down / 100) == pytest.approx(1)


def test_inference_is_told_per_token() -> None:
    results, measurements = made_up_study()
    drawn = named(results, measurements)
    at = measurements.contestants["titans-mac"].inference[3]
    (read,) = rows_of(drawn["inference_prefill"], contestant="titans-mac", length=at.length)
    (written,) = rows_of(drawn["inference_decode"], contestant="titans-mac", length=at.length)
    assert read["milliseconds"] == pytest.approx(1000 * at.prefill_seconds.median / at.length)
    assert written["low"] == pytest.approx(1000 * at.decode_seconds.low)
    held = {row["bytes"] for row in rows_of(drawn["inference_memory"], contestant="titans-mac", length=at.length)}
    assert held == {at.state_bytes, at.prefill_peak_bytes, at.decode_peak_bytes}
    assert "At 16,384 tokens of context lstm takes 0.8 ms" in drawn["inference_decode"].says


def test_times_are_told_at_a_length_that_all_have() -> None:
    rows = [
        {"contestant": name, "length": length, "milliseconds": 1.0} for name, length in (("a", 1), ("a", 2), ("b", 1))
    ]
    assert "At 1 tokens" in at_longest(rows)
    assert at_longest([{**rows[0], "length": 8}, rows[2]]) == ""


def dominated(row: dict[str, Any], others: list[dict[str, Any]]) -> bool:
    return any(
        other["cost"] <= row["cost"]
        and other["score"] <= row["score"]
        and (other["cost"], other["score"]) != (row["cost"], row["score"])
        for other in others
    )


def test_the_front_is_exactly_what_nobody_dominates() -> None:
    for seed in range(50):
        numbers = [(seed * 7919 + place * 104729) % 97 for place in range(16)]
        rows = [{"cost": a % 10, "score": b % 10} for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
        found = {(row["cost"], row["score"]) for row in front(rows, "cost", "score")}
        assert found == {(row["cost"], row["score"]) for row in rows if not dominated(row, rows)}
    assert front([{"cost": None, "score": 1}], "cost", "score") == []


def test_the_parts_of_time_add_up() -> None:
    results, measurements = made_up_study()
    figure = named(results, measurements)["where_time_goes"]
    for name, one in measurements.contestants.items():
        drawn = sum(row["milliseconds"] for row in rows_of(figure, contestant=name))
        assert drawn == pytest.approx(1000 * sum(sum(profile.seconds.values()) for profile in one.profiles))


def test_memory_figures_repeat_the_probes() -> None:
    results, measurements = made_up_study()
    drawn = named(results, measurements)
    section = results.contestant("titans-mac").memory or {}
    layer = section["probes"][1]
    rows = rows_of(drawn["memory_update"], layer=layer["layer"])
    assert [row["update"] for row in rows] == layer["update_series"]
    assert [row["token"] for row in rows] == [layer["chunk"] * place for place in range(len(rows))]
    lost = section["ablations"]["off"]["loss"] - section["ablations"]["intact"]["loss"]
    assert rows_of(drawn["memory_ablations"], ablation="off")[0]["change"] == pytest.approx(lost)
    without = named(*made_up_study(("transformer++", "lstm")))
    assert not [name for name in without if name.startswith("memory_")]


def test_large_pictures_are_averaged_down() -> None:
    values = [[float(row * 100 + column) for column in range(64)] for row in range(96)]
    small = cells(values)
    assert (len(small), len(small[0])) == (32, 32)
    assert small[0][0] == pytest.approx(statistics.mean(values[row][column] for row in range(3) for column in range(2)))
    assert cells([[1.0, 2.0]]) == [[1.0, 2.0]]


def test_a_fit_is_drawn_through_what_it_was_fitted_to() -> None:
    results, measurements = made_up_study(("lstm",), seeds=1)
    sizes = (1_000_000, 4_000_000, 16_000_000)
    losses = tuple(1.5 + 40 * size**-0.25 for size in sizes)
    fit = Fit(architecture="lstm", parameters=sizes, losses=losses, scale=40, exponent=0.25, floor=1.5)
    figure = named(results.model_copy(update={"fits": (fit,)}), measurements)["scaling"]
    line = rows_of(figure, what="fitted")
    assert (line[0]["loss"], line[-1]["loss"]) == (pytest.approx(losses[0]), pytest.approx(losses[-1]))
    assert vector(figure.spec)


# Nothing is hidden.


def test_who_diverged_or_waits_is_said() -> None:
    results, measurements = unfinished_study()
    drawn = named(results, measurements)
    for name in ("training_curves", "cooled_points", "inference_decode"):
        assert "No number for lstm (waiting)." in drawn[name].says
        assert "Of titans-mac, 1 of 3 runs diverged." in drawn[name].says
    (cross,) = rows_of(drawn["training_curves"], diverged=True)
    lost = results.contestant("titans-mac").runs[0]
    assert (cross["contestant"], cross["seed"], cross["step"]) == ("titans-mac", 0, lost.curve[-1].step)
    assert "differences" not in drawn


def test_an_optimum_at_the_edge_and_a_diverged_trial_are_said() -> None:
    figure = named(*made_up_study())["tuning_sweep"]
    assert "titans-mac: learning rate 0.004, loss 3.27, at the edge of the grid" in figure.says
    assert "lstm: learning rate 0.001, loss 3.61; diverged at 0.004." in figure.says
    assert [row["contestant"] for row in rows_of(figure, at_edge=True)] == ["titans-mac"]


def test_masked_losses_stand_in_pictures_of_their_own() -> None:
    drawn = named(*masked_study())
    assert {row["contestant"] for row in drawn["training_curves_masked"].rows} == {"bert"}
    for name in ("training_curves", "cooled_points", "differences", "pareto", "loss_by_position"):
        assert "bert" not in {row["contestant"] for row in drawn[name].rows}


# How it looks.


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", PALETTE)
def test_colours_can_be_seen_on_white_and_on_near_black(colour: str) -> None:
    assert 1.05 / (luminance(colour) + 0.05) >= 3
    assert (luminance(colour) + 0.05) / (luminance("#111111") + 0.05) >= 3


def test_a_contestant_has_one_colour_everywhere() -> None:
    alone, _ = made_up_study()
    seen: dict[str, set[str]] = {}
    for figure in figures(*made_up_study()):
        for scale in scales_of(figure.spec, "contestant"):
            for name, colour in zip(scale["domain"], scale["range"], strict=True):
                seen.setdefault(name, set()).add(colour)
    assert seen == {one.name: {PALETTE[place]} for place, one in enumerate(alone.contestants)}


def scales_of(spec: Any, field: str) -> list[dict[str, Any]]:
    """The scales of all colours by some field."""
    if isinstance(spec, list):
        return [scale for part in spec for scale in scales_of(part, field)]
    if not isinstance(spec, dict):
        return []
    color = spec.get("color", {})
    color = color.get("condition", color) if isinstance(color, dict) else {}
    own = [color["scale"]] if color.get("field") == field and "scale" in color else []
    return own + [scale for key, part in spec.items() if key != "data" for scale in scales_of(part, field)]


def test_logarithmic_ticks_are_few_round_and_inside() -> None:
    for low, high in ((0.8, 9), (1, 1e9), (3, 4), (18.4, 167), (2e-5, 3e-2), (5, 5)):
        ticks = log_ticks([low, high])
        assert all(low / 1.1 <= tick <= high * 1.1 for tick in ticks)
        assert ticks == sorted(set(ticks))
        assert len(ticks) <= 12
        assert len(ticks) >= 4 or high / low < 2


# Files.


def test_files_are_whole_the_same_again_and_have_the_promised_names(tmp_path: Path) -> None:
    results, measurements = made_up_study(("transformer++", "titans-mac"), seeds=2)
    drawn = figures(results, measurements)
    written = [write_figures(drawn, results, measurements, tmp_path / name) for name in ("one", "two")]
    assert written[0] == written[1]
    for path in written[0]:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes(), path
    assert {path for path in written[0] if path.parent == Path()} == {
        Path("training_comparison.png"),
        Path("inference_comparison.png"),
        Path("comparative_metrics.png"),
        Path("memory_efficiency.png"),
        Path("benchmark_results.png"),
        Path("generation_samples.txt"),
    }
    assert Path("model_state/2-titans-mac-memory.png") in written[0]
    for figure in drawn:
        for suffix in ("png", "svg", "csv"):
            assert Path(f"figures/{figure.name}.{suffix}") in written[0]
    assert not list(tmp_path.rglob("*.partial"))


def test_an_image_about_memory_needs_one() -> None:
    results, measurements = made_up_study(("transformer++", "lstm"), seeds=1)
    images = overviews(figures(results, measurements), results, measurements)
    assert sorted(images) == [
        "benchmark_results",
        "comparative_metrics",
        "inference_comparison",
        "training_comparison",
    ]


def test_images_of_an_unfinished_study(tmp_path: Path) -> None:
    results, measurements = unfinished_study()
    written = write_figures(figures(results, measurements), results, measurements, tmp_path)
    assert {Path("training_comparison.png"), Path("inference_comparison.png")} <= set(written)


def test_nothing_at_all_writes_nothing(tmp_path: Path) -> None:
    results, _ = made_up_study(("lstm",), seeds=1)
    bare = results.contestants[0].model_copy(
        update={"runs": (), "samples": (), "pictures": (), "positions": (), "repeats": (), "lengths": (), **UNASKED}
    )
    empty = results.model_copy(update={"contestants": (bare,), "comparisons": (), "sweeps": ()})
    nothing = Measurements(contestants={})
    assert write_figures(figures(empty, nothing), empty, nothing, tmp_path) == []


def test_a_png_is_twice_as_large_as_its_figure_and_white() -> None:
    figure = named(*made_up_study(("lstm", "titans-mac"), seeds=1))["inference_decode"]
    svg = vector(figure.spec)
    width = float(svg.split('width="')[1].split('"')[0])
    png = pixels(svg)
    assert png.startswith(b"\x89PNG")
    assert struct.unpack(">I", png[16:20])[0] == pytest.approx(2 * width, abs=1)
    assert '<rect width="' in svg
    assert 'fill="#ffffff"' in svg


def test_a_table_comes_back_as_it_was() -> None:
    for figure in figures(*made_up_study(seeds=2)):
        back = list(csv.DictReader(table(figure.rows).splitlines()))
        assert len(back) == len(figure.rows)
        for row, read in zip(figure.rows, back, strict=True):
            assert {key: "" if value is None else str(value) for key, value in row.items()} == {
                key: read[key] for key in row
            }
            assert all(float(read[key]) == value for key, value in row.items() if isinstance(value, float))


def test_samples_cannot_command_a_terminal() -> None:
    text = samples_text(made_up_study(("lstm",))[0])
    assert "<script>alert(1)</script>" in text
    assert "\\x1b[31m" in text
    assert "\\u202e" in text
    assert not set(text) & {"\x00", "\x1b", "\u202e"}
    assert spelled_out("plain\n\ttext é 🧪") == "plain\n\ttext é 🧪"
    assert spelled_out(spelled_out(HOSTILE)) == spelled_out(HOSTILE)


def test_the_made_up_study_is_of_one_piece() -> None:
    results, _ = made_up_study()
    assert results == Results.model_validate_json(results.model_dump_json())
    assert all(run.tokens == STEPS * TOKENS_PER_STEP for one in results.contestants for run in one.runs)
