"""summary.md is Markdown, whatever names and texts it is given."""

from __future__ import annotations

import re

from lockstep.report.results import AuditResult, Measurements
from lockstep.report.summary import COLUMNS, MISSING, escaped, summary
from tests.report.by_hand import NOTHING, compare, contestant, measured, study
from tests.report.made_up import made_up_study, masked_study, unfinished_study

HOSTILE = "a|b `c` *d* _e_ <script>\n# f [g](h) \u202e &amp; \x1b[31m \\| "


def table_of(text: str) -> list[list[str]]:
    """Cells of the differences, split at bars that are not escaped; published numbers have tables of their own."""
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith(("| contestant", "| ---"))]
    lines = [line for table in tables for line in table]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_table_holds_the_differences() -> None:
    entries = [contestant("transformer++", [1.2, 1.3]), contestant("titans-mac", [1.1, 1.2])]
    pair = compare("titans-mac", "transformer++", -0.1, 1.25, (-0.12, -0.08))
    timed = {"transformer++": measured(rate=2000, decode=0.001), "titans-mac": measured(rate=500, decode=0.2151)}
    same = compare("titans-mac", "transformer++", 0.0, 0.3, (-0.01, 0.01), "accuracy")
    text = summary(study(entries, [pair, same]), Measurements(contestants=timed))
    head, _, base, row = table_of(text)
    assert head == list(COLUMNS)
    assert base[0] == "transformer++ (baseline)"
    cells = dict(zip(head, row, strict=True))
    assert cells["bits per byte"] == "1.1500"
    assert cells["difference (95 % interval)"] == "−0.1000 (−0.1200 to −0.0800)"
    assert cells["training tokens/s"] == "500 (−75.0 %)"
    assert cells["decode per token"] == "215 ms (+21,410.0 % (215.1 times))"
    assert cells["decode peak"] == "2 kB (0.0 %)"
    assert cells["training peak"] == MISSING
    assert cells["accuracy"] == "30.00 % (0.00 points)"
    assert dict(zip(head, base, strict=True))["difference (95 % interval)"] == MISSING


def test_the_last_lines_say_where_it_comes_from() -> None:
    entries = [contestant("transformer++", [1.2, 1.3]), contestant("titans-mac", [1.1, 1.2])]
    timed = Measurements(contestants={"transformer++": measured(seconds=100), "titans-mac": measured(seconds=140)})
    lines = summary(study(entries), timed).splitlines()
    assert lines[0] == "# by-hand"
    assert "Audit: passed over 1 runs." in lines
    # Four runs of 100,000 tokens at 3e8 FLOPs each; one clock a contestant.
    assert "Cost: 4 runs, 400K tokens, 120T FLOPs, 4.0 min of training." in lines
    assert lines[-1] == "Provenance: revision abc123, a machine, torch 2.13.0, corpus cccccccccccc, study dddddddddddd."


def test_names_and_texts_cannot_break_out() -> None:
    name = HOSTILE.strip()
    entries = [contestant(name, [1.2, 1.3]), contestant("titans-mac", [1.1, 1.2])]
    failed = AuditResult(passed=False, findings=(HOSTILE,), notes=(), table=())
    text = summary(study(entries, audit=failed, name=HOSTILE, corpus=HOSTILE), NOTHING)
    rows = table_of(text)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert text.count("\n# ") == 0
    assert not re.search(r"(?<!\\)[<>`]", text)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert escaped("a|b_c") == r"a\|b\_c"


def test_masked_models_have_a_table_of_their_own() -> None:
    rows = table_of(summary(*masked_study()))
    heads = [row for row in rows if row[0] == "contestant"]
    assert [head[2] for head in heads] == ["perplexity", "pseudo-perplexity"]
    assert rows[-1][0] == "bert (masked)"
    assert rows[-1][4] == MISSING


def test_any_study_has_a_summary() -> None:
    for results, measurements in (made_up_study(), made_up_study(seeds=1), unfinished_study()):
        text = summary(results, measurements)
        assert text.endswith(".\n")
        assert "None" not in text
        assert {len(row) for row in table_of(text)} == {len(COLUMNS)}
    assert "There is no verdict" in text
