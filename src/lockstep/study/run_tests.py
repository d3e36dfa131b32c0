"""Testing one checkpoint of a run by tasks, long texts and questions, as a study's `evaluate` tests its contestants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.config.evaluate import EvaluateSpec
from lockstep.config.files import parse_yaml
from lockstep.config.measurements import MeasurementsSpec
from lockstep.config.spec import validate
from lockstep.durable import whole_file
from lockstep.errors import UserError
from lockstep.study.evaluate import conditions, identity, open_same_corpus, scoring_spec
from lockstep.study.evaluations import check_tests, tests
from lockstep.study.subject import Subject
from lockstep.tables import aligned
from lockstep.training.checkpoint import load, resolve_checkpoint
from lockstep.training.context import check_same_code
from lockstep.training.distribution import World, find_device

Result = dict[str, Any]


def asked_for(texts: Sequence[str]) -> EvaluateSpec:
    """Each a name, or a name with knobs such as `needles: {lengths: [1024, 4096]}`."""
    named: dict[str, Any] = {}
    for text in texts:
        named |= parse_yaml(text if ":" in text else f"{text}:", f"--task {text}")
    return validate(EvaluateSpec, named, "--task")


def run_tests(
    folder: Path, name: str | None, asked: EvaluateSpec, output_dir: Path | None, overrides: Sequence[str] = ()
) -> dict[str, Result]:
    """What each test found, by its name; also written as <checkpoint>-<test>.json."""
    checkpoint = resolve_checkpoint(folder, name)
    run = scoring_spec(checkpoint.folder.parent / "config.yaml", overrides)
    prepared = open_same_corpus(run, checkpoint)
    check_same_code(checkpoint, run.model.architecture)
    check_tests(asked, run.data, prepared.tokenizer)
    device = find_device(run.training.device, World())
    model = load(checkpoint.folder).to(device)
    if not model.causal:
        raise UserError(f"--task: {run.model.architecture} is bidirectional, and tasks are asked of causal models")
    subject = Subject(run, checkpoint.folder.parent, prepared, device, MeasurementsSpec(), asked)
    output, results = output_dir or checkpoint.folder.parent / "evaluations", {}
    for test, knobs, find in tests(subject):
        found = find(subject, model) or {}
        about = {**identity(checkpoint, "test"), **conditions(run, device), "asked": knobs.model_dump(mode="json")}
        results[test] = {**about, **found}
        output.mkdir(parents=True, exist_ok=True)
        whole_file(output / f"{checkpoint.folder.name}-{test}.json", json.dumps(results[test], indent=2) + "\n")
    return results


def tests_table(results: dict[str, Result]) -> str:
    """One table per test."""
    parts = []
    for test, result in results.items():
        head = f"{result['experiment_name']}  {result['checkpoint']}  {test}"
        parts.append("\n".join([head, *(line for rows in tables(test, result) for line in aligned(rows))]))
    return "\n".join(parts)


def tables(test: str, result: Result) -> list[list[list[str]]]:
    if test == "beyond":
        if not result.get("positions"):
            return [[["the test split is made of tasks, and has no text to read"]]]
        return [positions(result), contexts(result)]
    if test == "commonsense":
        return [[["set", "metric", "value", "± error", "chance", "examples"], *map(answered_set, result["scores"])]]
    left_out = sorted(set(result["asked"]["lengths"]) - {one["length"] for one in result["scores"]})
    told = [[[f"no positions for {', '.join(f'{one:,}' for one in left_out)} tokens"]]] if left_out else []
    rows = [*map(answered_level, result["scores"])]
    return [*([[["level", "tokens", "right", "chance", "answers"], *rows]] if rows else []), *told]


def answered_level(one: Result) -> list[str]:
    right, chance = (f"{100 * share:.1f} %" for share in (one["right"] / one["answers"], one["chance"]))
    return [one["level"], f"{one['length']:,}", right, chance, f"{one['answers']:,}"]


def answered_set(one: Result) -> list[str]:
    error = "" if one["standard_error"] is None else f"{one['standard_error']:.4g}"
    chance = "" if one["chance"] is None else f"{one['chance']:.4g}"
    return [one["set"], one["metric"], f"{one['value']:.4g}", error, chance, f"{one['examples']:,}"]


def positions(result: Result) -> list[list[str]]:
    rows = [
        [f"{one['first']:,} to {one['last']:,}", loss_text(one["loss"]), f"{one['tokens']:,}"]
        for one in result["positions"]
    ]
    return [["position", "loss", "tokens"], *rows]


def contexts(result: Result) -> list[list[str]]:
    rows = [[f"{one['context']:,}", loss_text(one["loss"]), f"{one['tokens']:,}"] for one in result["contexts"]]
    return [["context", "loss", "tokens"], *rows]


def loss_text(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4f}"
