"""Published numbers agree with what else their papers print, stand beside the right ones of ours, and can fail."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from lockstep.models.registry import architectures
from lockstep.report.beside import Line, beside_published
from lockstep.report.claims import CheckedClaim, check_claims
from lockstep.report.published import MIRAS_SNIAH, OURS, PUBLISHED, SNIAH, M, find
from lockstep.report.results import Contestant, Results, TaskScore
from lockstep.report.summary import summary
from tests.report.by_hand import NOTHING, answered, contestant, study


@pytest.mark.parametrize(
    ("model", "printed"),
    [("Titans LMM", 92.68), ("Titans MAC", 97.95), ("Titans MAG", 96.70), ("Titans MAL", 96.91)],
)
def test_the_cells_of_table_2_have_the_mean_that_table_5_prints(model: str, printed: float) -> None:
    cells = [number for kind in SNIAH[model] for number in kind]
    assert len(cells) == 12
    assert fmean(cells) == pytest.approx(printed, abs=0.006)


@pytest.mark.parametrize(("model", "mean"), [("Moneta", 93.3), ("Yaad", 92.5), ("Memora", 92.5)])
def test_the_cells_of_miras_have_the_means_that_were_computed_from_it(model: str, mean: float) -> None:
    assert fmean(number for kind in MIRAS_SNIAH[model] for number in kind) == pytest.approx(mean, abs=0.06)


def test_published_rows_are_of_lengths_in_order_and_of_architectures_that_exist() -> None:
    assert {name for names in OURS.values() for name in names} <= set(architectures())
    for row in PUBLISHED:
        assert list(row.percent) == sorted(row.percent)
        assert all(0 <= number <= 100 for number in row.percent.values())
    longest = {(row.model, row.source.models.split(",")[0]): max(row.percent) for row in PUBLISHED}
    assert longest["Titans MAC", "fine-tuned on it"] == 10 * M
    assert longest["Titans MAC", "few-shot"] == M
    assert len({(row.source, row.model, row.level) for row in PUBLISHED}) == len(PUBLISHED)
    titans = [row for row in PUBLISHED if row.model == "Titans MAC" and row.level == "word"]
    assert titans[0].at(16_000) == 95.2
    assert titans[0].at(12_000) is None


# Ours beside theirs.


def asked(name: str, *scores: TaskScore) -> Contestant:
    return contestant(name, [1.0, 1.0], tasks=scores)


def test_ours_stands_above_its_namesakes_at_the_same_lengths() -> None:
    mac = asked("titans-mac", answered("needles", "word", 512, [90, 92]), answered("needles", "word", 4096, [40, 44]))
    other = asked("transformer++", answered("needles", "word", 4096, [9, 9]))
    (table,) = beside_published(study([mac, other]))
    assert table.title == "Needles in a haystack, word"
    assert table.lengths == ("512", "2K", "4K", "8K", "16K")
    # Student's t of one degree of freedom is 12.7: 42 ± 12.706 × 2.
    assert table.lines == (
        Line("titans-mac", None, ("91.0 (78.3 to 100.0)", None, "42.0 (16.6 to 67.4)", None, None)),
        Line("Titans MAC", "arXiv 2501.00663, table 2", (None, "98.2", "98.2", "95.6", "95.2")),
        Line("Titans", "arXiv 2512.24695, table 1", (None, None, "74.2", "42.8", "21.2")),
    )
    assert "of our own construction" in table.notes[0]
    assert any("170M to 760M" in note for note in table.notes)


def test_lengths_that_are_about_the_same_share_a_column() -> None:
    mamba = asked("mamba2", *(answered("babilong", "qa1", length, [50, 52]) for length in (4000, 64_000)))
    (table,) = beside_published(study([mamba]))
    assert table.title == "Stories in books, qa1"
    assert len(table.lengths) == 4
    ours, guide = table.lines
    assert [cell is not None for cell in ours.cells] == [True, True, False, False]
    assert guide.cells == ("90", "70", "45", "25")


def test_nothing_is_shown_without_the_task_or_a_namesake() -> None:
    plain = asked("transformer++", answered("needles", "word", 4096, [40, 44]))
    mac = asked("titans-mac", answered("recall", "8 pairs", 4096, [40, 44]))
    multiple = asked("mamba2", answered("needles", "multi-key", 4096, [40, 44]))
    results = study([plain, mac, multiple])
    assert beside_published(results) == []
    assert "arXiv" not in summary(results, NOTHING)


def test_the_summary_has_the_same_table() -> None:
    mac = asked("titans-mac", answered("needles", "word", 4096, [40, 44]))
    text = summary(study([mac]), NOTHING)
    assert "| titans-mac (here) | – | 42.0 (16.6 to 67.4) | – | – |" in text
    assert "| Titans MAC (arXiv 2501.00663, table 2) | 98.2 | 98.2 | 95.6 | 95.2 |" in text


# Claims.


def checked(text: str, results: Results) -> CheckedClaim:
    (one,) = [claim for claim in check_claims(results, NOTHING) if claim.claim.startswith(text)]
    return one


def pair(ours: list[int], theirs: list[int], task: str, level: str, length: int, **given: Any) -> Results:
    names: tuple[str, str] = given.get("names", ("titans-mac", "mamba2"))
    scores = [answered(task, level, length, right) for right in (ours, theirs)]
    entries = [contestant(name, [1.0] * len(ours), tasks=(score,)) for name, score in zip(names, scores, strict=True)]
    return study(entries)


MORE_WORDS = "Titans MAC finds more words in a haystack of 16K tokens than Mamba2: 95.2 against 0.0 %"
FEW, MANY = [10, 12, 14], [50, 53, 55]


@pytest.mark.parametrize(
    ("ours", "theirs", "length", "level", "verdict", "reason"),
    [
        (MANY, FEW, 16_384, "word", "reproduced", "in the claimed direction"),
        (FEW, MANY, 16_384, "word", "not reproduced", "the opposite is separable"),
        ([10, 60, 30], [40, 20, 35], 16_384, "word", "not reproduced", "not separable"),
        (MANY, FEW, 8192, "word", "not testable here", "needs needles in a haystack, word, at 16K tokens"),
        (MANY, FEW, 16_384, "number", "not testable here", "needs needles in a haystack, word, at 16K tokens"),
        ([1, 2, 0], [0, 1, 2], 16_384, "word", "not testable here", "neither is told from chance"),
        ([50], [10], 16_384, "word", "not testable here", "one seed gives no interval"),
        ([50, 50], [48, 48], 16_384, "word", "not reproduced", "not separable"),
        ([90, 90], [10, 10], 16_384, "word", "reproduced", "in the claimed direction"),
    ],
)
def test_who_finds_more_is_told_from_seeds(
    ours: list[int], theirs: list[int], length: int, level: str, verdict: str, reason: str
) -> None:
    one = checked(MORE_WORDS, pair(ours, theirs, "needles", level, length))
    assert (one.verdict, reason in one.reason) == (verdict, True), one.reason
    assert one.source == "arXiv 2501.00663, table 2"


def test_our_shares_are_told_with_their_difference() -> None:
    one = checked(MORE_WORDS, pair(MANY, FEW, "needles", "word", 16_384))
    # Differences 40, 41, 41: 40.667 ± 4.30265 × 0.57735 / √3 = 1.434.
    assert one.ours == (
        "titans-mac 52.7 % against mamba2 12.0 % right, +40.67 points (95 % interval +39.23 points to +42.10 points)"
    )
    assert one.reason.endswith("of enwik8; 16,384 tokens an instance.")


def test_babilong_is_tested_at_the_lengths_that_were_asked() -> None:
    results = pair(MANY, FEW, "babilong", "qa1", 65_536)
    at = {
        where: checked(f"Titans answers more of BABILong than Mamba-2 at {where}", results) for where in ("64K", "1M")
    }
    assert at["64K"].verdict == "reproduced"
    assert at["64K"].claim.endswith("85 against 70 %")
    assert at["1M"].verdict == "not testable here"
    beyond = "Beyond 64K tokens Titans keeps its accuracy"
    assert checked(beyond, results).verdict == "not testable here"
    assert "more than 64K tokens" in checked(beyond, results).reason
    assert checked(beyond, pair(MANY, FEW, "babilong", "qa1", 131_072)).verdict == "reproduced"
    assert checked(beyond, pair(FEW, MANY, "babilong", "qa1", 131_072)).verdict == "not reproduced"


def test_noise_may_be_that_of_a_task() -> None:
    """By how far accuracy falls: who is better without noise too has not shown to bear it better."""

    def noisy(ours: dict[str, list[int]], theirs: dict[str, list[int]]) -> CheckedClaim:
        entries = [
            contestant(
                name, [1.0] * 3, tasks=tuple(answered("noise", level, 512, right) for level, right in own.items())
            )
            for name, own in (("yaad", ours), ("titans-lmm", theirs))
        ]
        return checked("Yaad is better than Titans on noisy data", study(entries))

    clean, corrupted = "0 % corrupted", "20 % corrupted"
    level = {clean: [90, 92, 91], corrupted: [88, 91, 89]}
    falling = {clean: [95, 96, 97], corrupted: [60, 63, 62]}
    low_throughout = {clean: [60, 62, 61], corrupted: [58, 61, 59]}
    assert noisy(level, falling).verdict == "reproduced"
    assert noisy(falling, level).verdict == "not reproduced"
    assert "the opposite is separable" in noisy(falling, level).reason
    assert noisy(level, low_throughout).verdict == "not reproduced"
    assert noisy({corrupted: MANY}, {corrupted: FEW}).verdict == "not testable here"
    # Falls of 2, 1, 2 and 35, 33, 35: differences 33, 32, 33.
    assert "yaad -1.67 points against titans-lmm -34.33 points" in str(noisy(level, falling).ours).replace("−", "-")


def test_claims_repeat_the_table_that_stands_beside_ours() -> None:
    texts = " ".join(claim.claim for claim in check_claims(study([contestant("lstm", [1.0])]), NOTHING))
    for source, better, worse, level, length in (
        ("arXiv 2501.00663, table 2", "Titans LMM", "TTT", "word", 16_384),
        ("arXiv 2504.13173, table 3", "Memora", "Gated DeltaNet", "number", 8192),
    ):
        rows = [row for row in PUBLISHED if row.source.name == source and row.level == level]
        numbers = {row.model: row.percent[length] for row in rows if length in row.percent}
        assert f"than {worse}: {numbers[better]:.1f} against {numbers[worse]:.1f} %" in texts
    assert find(rows[0].source, "Memora", "number").percent[8192] == 93.2
