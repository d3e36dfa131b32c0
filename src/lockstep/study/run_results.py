"""What one run has to say: its curve, its evaluations, and its score at every cooled point."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.report.results import Cooled, CurvePoint, Evaluated, Run, Score
from lockstep.study.run_status import branches, divergence, records, run_status

MOST_POINTS = 150
"""Of a curve: more than a screen tells apart."""


def read_run_result(folder: Path, data_seed: int, init_seed: int, study_folder: Path) -> Run:
    """As far as it has come."""
    stands, lines = run_status(folder), records(folder)
    lost = [f"its branch {one.name} {why}" for one in branches(folder) if (why := divergence(one)) is not None]
    steps = [line for line in lines if "loss" in line]
    tokens = steps[-1]["tokens_processed"] if steps else 0
    by_step = {line["step"]: line["tokens_processed"] for line in steps}
    return Run(
        folder=str(folder.relative_to(study_folder)),
        data_seed=data_seed,
        init_seed=init_seed,
        status=stands.status,
        message=stands.message or "; ".join(lost) or None,
        step=steps[-1]["step"] if steps else 0,
        tokens=tokens,
        curve=curve(steps),
        evaluated=tuple(
            Evaluated(step=line["step"], tokens=by_step[line["step"]], score=score(line["evaluation"]))
            for line in lines
            if "evaluation" in line and line["step"] in by_step
        ),
        cooled=tuple(point for place in (*branches(folder), folder) if (point := cooled(place)) is not None),
    )


def curve(steps: Sequence[dict[str, Any]]) -> tuple[CurvePoint, ...]:
    """Means of equally many steps each."""
    width = max(1, -(-len(steps) // MOST_POINTS))
    points = []
    for start in range(0, len(steps), width):
        part = steps[start : start + width]
        bits = [line["bits_per_byte"] for line in part if "bits_per_byte" in line]
        points.append(
            CurvePoint(
                step=part[-1]["step"],
                tokens=part[-1]["tokens_processed"],
                loss=float(np.mean([line["loss"] for line in part])),
                bits_per_byte=float(np.mean(bits)) if len(bits) == len(part) else None,
            )
        )
    return tuple(points)


def cooled(folder: Path) -> Cooled | None:
    """The score at the end of a run, or of a decay branch of one."""
    stands, found = run_status(folder), found_in(folder, "test")
    if stands.status != "finished" or stands.metadata is None or not found:
        return None
    share = stands.step / stands.metadata["planned_steps"]
    tokens = stands.metadata["token_metrics"]["total_tokens_processed"]
    return Cooled(share=round(share, 4), step=stands.step, tokens=tokens, score=score(found["score"]))


def score(scores: dict[str, Any]) -> Score:
    """Whatever kind of perplexity a track has, it is told as one."""
    perplexity = next(value for key, value in scores.items() if key.endswith("perplexity"))
    rest = {key: scores[key] for key in ("loss", "bits_per_byte", "accuracy", "tokens", "bytes")}
    return Score(perplexity=perplexity, **rest)


def found_in(folder: Path, name: str, kind: str = "evaluations", asked: Any = None) -> dict[str, Any]:
    """What was measured of a run under a name; empty where it was not, or the model cannot do it.

    With `asked`, only what was measured by these settings.
    """
    stored = stored_in(folder, name, kind)
    if not stored or (asked is not None and stored["asked"] != asked):
        return {}
    return stored["found"] or {}


def stored_in(folder: Path, name: str, kind: str) -> dict[str, Any]:
    """What stands in its file, with where, when and of which weights it was found; empty where there is none."""
    path = folder / kind / f"{name}.json"
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return stored
